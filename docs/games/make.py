"""Play the games that the pages of the tasks show: ``python docs/games/make.py`` writes ``TASK.jsonl`` of every task.

Three games each of the player that recorded the dataset, of the best scripted player where there is one, and of a
policy of the zoo, from the same starts.
"""

import argparse
from pathlib import Path

import lmrl
from lmrl.data.storage import write_episodes
from lmrl.envs.registry import policy_names

GAMES = 3
SEED = 5
BEST = {
    "maze_fo": "ilql",
    "guess_city": "filtered_bc",
    "twenty_questions": "filtered_bc",
    "car_dealer": "filtered_bc",
}
"""Of the others it is PPO."""


def players(task: str) -> list[str]:
    """Who plays, in the order of the file."""
    scripted = [name for name in ("behaviour", "optimal") if name in policy_names(task)]
    return [*scripted, f"zoo:{task}/{BEST.get(task, 'ppo')}"]


def main() -> None:
    """Play and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="of all if left out")
    given = parser.parse_args()
    for task in given.tasks or lmrl.tasks():
        played = [lmrl.evaluate(player, task, episodes=GAMES, seed=SEED) for player in players(task)]
        episodes = [episode for one in played for episode in one.episodes]
        path = Path(__file__).with_name(f"{task}.jsonl")
        write_episodes(path, episodes, {"task": task, "players": players(task)})
        print(f"{path}: {', '.join(players(task))}; {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
