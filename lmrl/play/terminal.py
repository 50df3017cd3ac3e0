"""One episode at the terminal, of a person or to watch: rules first, a drawing of the game, scores, advice, V."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import Console

from lmrl.envs import registry
from lmrl.envs.task import Guide, Picture, Task
from lmrl.errors import UserError, counted, printable
from lmrl.partners import environment
from lmrl.play.seat import AGAIN, Seat, advise
from lmrl.policies.human import HumanPolicy
from lmrl.report.wording import number
from lmrl.types import LoadedPolicy, Policy, Request

__all__ = ["known_actions", "play_episode"]


def play_episode(
    task: Task,
    arguments: Mapping[str, Any],
    seed: int,
    adviser: Policy | None = None,
    name: str = "",
    player: Policy | None = None,
) -> None:
    """Let the person at the terminal, or a policy, play one episode, and print how it ended.

    Args:
        task: the task that is played.
        arguments: arguments of its environment.
        seed: seed of the episode.
        adviser: the policy whose move is shown each turn; None: no adviser.
        name: name of the adviser.
        player: the policy that plays, each move shown with V of the state where it has values; None: the person at the
            terminal.
    """
    console = Console(highlight=False)
    guide = registry.guide(task.name)
    make = environment(task.name, arguments)
    picture = registry.make_picture(task.name, make)

    def show(request: Request) -> None:
        _show(console, guide, picture, request, seat)
        if adviser is not None:
            move, value, _ = advise(adviser, request)
            advice = f"{name} would say: {guide.spelling(move).strip()}{_value(value)}"
            console.print(printable(advice), style="cyan", markup=False)

    human = HumanPolicy(partial(_typed, guide, arguments), show)
    seat = Seat(task.name, make, seed, "you", LoadedPolicy(player or human), env=arguments)
    try:
        example, answer = guide.example
        introduction = [f"{task.name}: {task.description}.", f"Rules: {guide.rules}", f"Action: {guide.action}"]
        if example:
            introduction.append(f"Example: {example} is answered by: {answer}")
        # Empty, or a line of its own: the print below ends it.
        introduction.append("" if player is not None else "Ctrl-C ends the game.\n")
        console.print("\n".join(introduction), markup=False, soft_wrap=True)
        while not seat.over:
            # HumanPolicy shows the request itself before it asks for a line.
            if player is not None:
                show(seat.request())
            move = seat.move(None)
            if player is not None:
                shown = guide.spelling(move.reply.text).rstrip("\n") or "(an empty line)"
                console.print(printable(f"> {shown}{_value(move.value)}"), markup=False, soft_wrap=True)
            seat.play(move)
        _show(console, guide, picture, seat.request(), seat)
        _print_ending(console, seat)
    except (KeyboardInterrupt, UserError):  # Ctrl-C, Ctrl-D, or a policy that fails
        solution = seat.solution(leaving=True)
        if solution:
            console.print(f"\n{solution}", markup=False, soft_wrap=True)
        raise
    finally:
        seat.close()


def known_actions(task: Task, arguments: Mapping[str, Any], seed: int) -> list[str]:
    """Return the possible first actions of an episode in readable form.

    Args:
        task: the task that is played.
        arguments: arguments of its environment.
        seed: seed of the episode.

    Raises:
        UserError: the task does not list it.
    """
    seat = Seat(task.name, environment(task.name, arguments), seed, "you", None, env=arguments)
    try:
        listed = seat.legal()
    finally:
        seat.close()
    if not listed:
        raise UserError(f"the actions of {task.name} cannot be listed")
    return listed


def _typed(guide: Guide, arguments: Mapping[str, Any], question: str) -> str:
    """Read the next line. At a terminal it may be a slip; from a pipe it is an action, whatever it says."""
    line = input(question)
    refused = ""
    while sys.stdin.isatty():
        slip = _slip(guide, arguments, line)
        is_repeated = line == refused and line.strip()
        if not slip or is_repeated:
            break
        print(printable(slip))
        refused = line
        line = input(question)
    return line


def _slip(guide: Guide, arguments: Mapping[str, Any], line: str) -> str:
    """Say why a line should not be played as it is; empty if it may be."""
    if not line.strip():
        return "An empty line is not played: type an action, or Ctrl-C to end the game."
    slip = guide.slip(line, arguments)
    return f"{slip} {AGAIN}" if slip else ""


def _value(value: float | None) -> str:
    return "" if value is None else f"   V {number(value, 2)}"


def _show(console: Console, guide: Guide, picture: Picture | None, request: Request, seat: Seat) -> None:
    """Print the newest observation, below a drawing if this is a terminal, then a note on it and the scores so far."""
    drawing = picture.terminal(request) if picture is not None and console.is_terminal else None
    if drawing is not None:
        console.print(drawing)
    newest = guide.spelling(request.observations[-1]).rstrip("\n")
    for text in (newest, seat.notes[-1]):
        if text:
            console.print(printable(text), markup=False, soft_wrap=True)
    episode = seat.episode()
    if episode.rewards:
        scores = f"turn {len(episode)}: reward {episode.rewards[-1]:g}, return {episode.total_reward:g}"
        console.print(scores, style="dim", markup=False)


def _print_ending(console: Console, seat: Seat) -> None:
    episode = seat.episode()
    solution = seat.solution()
    if solution:
        console.print(printable(solution), markup=False, soft_wrap=True)
    ending = "solved" if episode.success else "not solved"
    summary = f"{ending}: return {episode.total_reward:g} in {counted(len(episode), 'turn')}, {episode.illegal} illegal"
    console.print(summary, markup=False)
