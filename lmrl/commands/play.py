"""``lmrl play``: a person at the terminal plays one episode, with a drawing of the game and, if wanted, advice."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from lmrl.commands.arguments import env_arguments
from lmrl.commands.drawings import draw_board, draw_maze, draw_wordle
from lmrl.envs.layouts import find_layout
from lmrl.episode import Episode
from lmrl.evaluation.wording import number
from lmrl.partners import environment
from lmrl.players import named_adviser, played_task
from lmrl.policies.advice import advise
from lmrl.policies.human import HumanPolicy
from lmrl.protocols import Policy, Request
from lmrl.rollout import Start, rollout

__all__ = ["play_command"]


def play_command(
    task: str | None = None, *, seed: int = 0, advisor: str | None = None, env: list[str] | None = None
) -> None:
    """Play one episode yourself: read the text, type an action, press enter.

    Args:
        task: name of the task, e.g. maze_fo (default: that of the advisor, if it is a run).
        seed: decides what is random about the episode.
        advisor: a run folder, a checkpoint or another player whose move is shown each turn, and V if it has values.
        env: arguments of the environment, e.g. opponent=random or partner=lm:PATH.
    """
    row, arguments = played_task(task, *([] if advisor is None else [advisor])), env_arguments(env)
    task = row.name
    make, console = environment(task, arguments), Console(highlight=False)
    adviser = None if advisor is None else named_adviser(advisor, row, arguments)
    print(f"{row.name}: {row.description}.")
    if row.actions:
        print(f"Actions: {', '.join(action.strip() for action in row.actions)}.")

    def show(request: Request) -> None:
        _show(console, task, arguments, request)
        if adviser is not None and advisor is not None:
            console.print(_advice(adviser, advisor, request), style="cyan", markup=False)

    for _, episode in rollout(HumanPolicy(show=show), make, [Start(seed)], task=task, slots=1):
        _show(console, task, arguments, _ended(episode))
        ending = "solved" if episode.success else "not solved"
        print(f"{ending}: return {episode.total_reward:g} in {len(episode)} turns, {episode.illegal} illegal")


def _advice(adviser: Policy, name: str, request: Request) -> str:
    move, value = advise(adviser, request)
    return f"{name} would say: {move}" + ("" if value is None else f"   V {number(value, 2)}")


def _show(console: Console, task: str, arguments: Mapping[str, Any], request: Request) -> None:
    """The newest text, below a drawing if this is a terminal."""
    drawing = _drawing(task, arguments, request) if console.is_terminal else None
    if drawing is not None:
        console.print(drawing)
    console.print(request.observations[-1].rstrip("\n"), markup=False, soft_wrap=True)


def _drawing(task: str, arguments: Mapping[str, Any], request: Request) -> Text | None:
    if task == "wordle":
        return draw_wordle(request)
    if task in ("chess", "endgames"):
        return draw_board(request)
    if task in ("maze_fo", "maze_po"):
        return draw_maze(find_layout(arguments.get("layout", "double_t_maze")), request)
    return None


def _ended(episode: Episode) -> Request:
    """The end as if there were one more turn."""
    return Request(0, episode.seed, episode.observations, episode.actions, info=episode.info)
