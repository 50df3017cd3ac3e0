"""A person at the terminal plays one episode, with a drawing of the game and, if wanted, advice."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from lmrl.envs.registry import make_picture
from lmrl.envs.task import Picture, Task
from lmrl.partners import environment
from lmrl.play.seat import advise
from lmrl.policies.human import HumanPolicy
from lmrl.report.wording import number
from lmrl.rollout import rollout
from lmrl.types import Episode, Policy, Request, Start

__all__ = ["play_episode"]


def play_episode(
    task: Task, arguments: Mapping[str, Any], seed: int, adviser: Policy | None = None, name: str = ""
) -> None:
    """Let the person at the terminal play one episode, and print how it ended.

    Args:
        task: what is played.
        arguments: of its environment.
        seed: of the episode.
        adviser: whose move is shown each turn; None: nobody's.
        name: of the adviser.
    """
    make, console = environment(task.name, arguments), Console(highlight=False)
    picture = make_picture(task.name, make)
    print(f"{task.name}: {task.description}.")
    if task.actions:
        print(f"Actions: {', '.join(action.strip() for action in task.actions)}.")

    def show(request: Request) -> None:
        _show(console, picture, request)
        if adviser is not None:
            console.print(_advice(adviser, name, request), style="cyan", markup=False)

    for _, episode in rollout(HumanPolicy(show=show), make, [Start(seed)], task=task.name, slots=1):
        _show(console, picture, _ended(episode))
        ending = "solved" if episode.success else "not solved"
        print(f"{ending}: return {episode.total_reward:g} in {len(episode)} turns, {episode.illegal} illegal")


def _advice(adviser: Policy, name: str, request: Request) -> str:
    move, value = advise(adviser, request)
    return f"{name} would say: {move}" + ("" if value is None else f"   V {number(value, 2)}")


def _show(console: Console, picture: Picture | None, request: Request) -> None:
    """The newest text, below a drawing if this is a terminal."""
    drawing = picture.terminal(request) if picture is not None and console.is_terminal else None
    if drawing is not None:
        console.print(drawing)
    console.print(request.observations[-1].rstrip("\n"), markup=False, soft_wrap=True)


def _ended(episode: Episode) -> Request:
    """The end as if there were one more turn."""
    return Request(0, episode.seed, episode.observations, episode.actions, info=episode.info)
