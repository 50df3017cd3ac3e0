"""``lmrl play``: a person at the terminal plays one episode."""

from lmrl.commands.arguments import env_arguments
from lmrl.envs import registration
from lmrl.partners import environment
from lmrl.policies.human import HumanPolicy
from lmrl.rollout import Start, rollout

__all__ = ["play_command"]


def play_command(task: str, *, seed: int = 0, env: list[str] | None = None) -> None:
    """Play one episode yourself: read the text, type an action, press enter.

    Args:
        task: name of the task, e.g. maze_fo.
        seed: decides what is random about the episode.
        env: arguments of the environment, e.g. opponent=random or partner=lm:PATH.
    """
    row = registration.task(task)
    make = environment(task, env_arguments(env))
    print(f"{row.name}: {row.description}.")
    if row.actions:
        print(f"Actions: {', '.join(action.strip() for action in row.actions)}.")
    for _, episode in rollout(HumanPolicy(), make, [Start(seed)], task=task, slots=1):
        print(episode.observations[-1].rstrip("\n"))
        ending = "solved" if episode.success else "not solved"
        print(f"{ending}: return {episode.total_reward:g} in {len(episode)} turns, {episode.illegal} illegal")
