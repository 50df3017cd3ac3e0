"""Episodes as the viewer's page holds them: every distinct text once, numbers in columns, and what pictures need."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from lmrl.envs import registration
from lmrl.envs.layouts import Layout
from lmrl.envs.maze import Maze
from lmrl.envs.maze_paths import walked
from lmrl.episode import Episode
from lmrl.evaluation.rendering import printable
from lmrl.evaluation.token_values import TokenValue

__all__ = ["episode_facts", "picture_facts", "rounded", "said", "shown_text", "view_data"]

_KINDS = {"wordle": "wordle", "chess": "chess", "endgames": "chess"}
_LONGEST = 20_000
"""Characters of a text that are shown."""


class _Texts:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(_cut(text), len(self.numbers))

    def shown(self) -> list[str]:
        return [printable(text) for text in self.numbers]


def view_data(
    episodes: Iterable[Episode],
    values: Sequence[Sequence[Sequence[TokenValue]]] = (),
    run: str = "",
    env: Mapping[str, Any] | None = None,
    recorded: Any = None,
) -> dict[str, Any]:
    """What the page shows, JSON-like.

    Args:
        episodes: of any tasks, in order.
        values: of the first episodes, see `lmrl.evaluation.token_values`.
        run: whose values they are.
        env: arguments of the environment that was played, for the map of a maze.
        recorded: those that the file names, as far as a file may choose them (see
            `lmrl.envs.registration.recorded_arguments`); else a maze has no map.
    """
    texts, tasks, columns = _Texts(), dict[str, dict[str, Any]](), dict[str, list[Any]]()
    layouts: dict[str, Layout | None] = {}
    for episode in episodes:
        task = printable(episode.task)
        if task not in tasks:
            layouts[task] = layout = _layout(task, recorded or {}, env)
            tasks[task] = picture_facts(task, layout)
        for name, value in {"task": task, **_row(episode, texts, layouts[task])}.items():
            columns.setdefault(name, []).append(value)
    tokens = {index: [_tokens(turn, texts) for turn in turns] for index, turns in enumerate(values)}
    empty: dict[str, list[Any]] = {"return": []}
    return {"tasks": tasks, "episodes": columns or empty, "values": tokens, "run": run, "texts": texts.shown()}


def _row(episode: Episode, texts: _Texts, layout: Layout | None) -> dict[str, Any]:
    return {
        **episode_facts(episode),
        "said": [texts.number(text) for text in said(episode)],
        "path": None if layout is None else walked(episode, layout),
    }


def episode_facts(episode: Episode) -> dict[str, Any]:
    """The numbers of an episode; ``ending`` is 0 for solved, 1 for ended by the rules, 2 for cut short."""
    return {
        "return": rounded(episode.total_reward, 4),
        "turns": len(episode),
        "illegal": episode.illegal,
        "ending": 0 if episode.success else 1 if episode.terminated else 2,
        "seed": str(episode.seed),  # beyond what a number of JavaScript holds
        "rewards": [rounded(reward, 4) for reward in episode.rewards],
    }


def said(episode: Episode) -> list[str]:
    """All texts in the order in which they were said, an observation first and last."""
    found = [episode.observations[0]]
    for action, observation in zip(episode.actions, episode.observations[1:], strict=True):
        found += (action, observation)
    return found


def shown_text(text: str) -> str:
    """A text as pages show it: cut if it is very long, with a mark for what cannot be seen."""
    return printable(_cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)} characters)"


def _tokens(turn: Sequence[TokenValue], texts: _Texts) -> list[list[Any]]:
    return [[texts.number(t.text), rounded(t.probability, 4), rounded(t.v, 3), rounded(t.q, 3)] for t in turn]


def rounded(value: float | None, digits: int) -> float | None:
    """As JSON has it: no number where there is none."""
    return round(value, digits) if value is not None and isfinite(value) else None


def picture_facts(name: str, layout: Layout | None) -> dict[str, Any]:
    """What kind of picture a task has, and its map if it is a maze."""
    if layout is None:
        return {"kind": _KINDS.get(name, "")}
    return {"kind": "maze", "rows": list(layout.rows), "goal": list(layout.goal)}


def _layout(name: str, recorded: Any, env: Mapping[str, Any] | None) -> Layout | None:
    """The map, if the task is a maze; files may be of tasks that nobody knows."""
    if not name.startswith("maze"):
        return None
    try:
        made = registration.make(name, **registration.recorded_arguments(name, recorded, env, "the file"))
    except (ValueError, TypeError):  # arguments from a file may be anything
        return None
    made.close()
    return made.layout if isinstance(made, Maze) else None
