"""The policy's action and expected return in every cell of a maze."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lmrl.envs import registry
from lmrl.envs.maze.env import Maze
from lmrl.envs.maze.layouts import MOVES, Cell, Layout
from lmrl.envs.task import Probe
from lmrl.errors import UserError, in_one_line
from lmrl.types import LoadedPolicy, Policy, Request, Valued, unwrapped

__all__ = ["PROBE", "MazeProbe", "probe_maze", "read_probe"]


@dataclass(frozen=True, slots=True)
class MazeProbe:
    r"""The first move from each cell, compared with the shortest paths.

    Example: a corridor of two cells left of the goal, the second move wrong::

        MazeProbe(
            rows=("#####", "#   #", "#####"),
            goal=(1, 3),
            positions=((1, 1), (1, 2)),
            values=(-1.9, -0.4),
            moves=("move right\n", "move up\n"),
            optimal=(("move right\n",), ("move right\n",)),
            best_possible=2,
        )
    """

    rows: tuple[str, ...]
    """The map, ``#`` for walls."""
    goal: Cell
    positions: tuple[Cell, ...]
    """All free cells but the goal; what follows has one entry for each."""
    values: tuple[float, ...] | None
    """V of the first observation there; None for a policy without values."""
    moves: tuple[str, ...]
    """What the policy said."""
    optimal: tuple[tuple[str, ...], ...]
    """The moves that begin a shortest path."""
    best_possible: int
    """In how many cells a player can be right who sees the first observation only (cells may look alike)."""

    def is_right(self, place: int) -> bool:
        """Whether the move from ``positions[place]`` begins a shortest path."""
        return self.moves[place] in self.optimal[place]

    @property
    def right(self) -> int:
        """Number of cells with a right move."""
        return sum(self.is_right(place) for place in range(len(self.positions)))


def probe_maze(policy: Policy | LoadedPolicy, task: str, env_arguments: Mapping[str, Any] | None = None) -> MazeProbe:
    """Set the policy down once in every cell and ask for its first move, and for V if it has ``state_values``.

    Args:
        policy: asked as it is: hand in a greedy one (temperature 0) for its greedy moves.
        task: a maze task.
        env_arguments: of the environment, as for `lmrl.make`.

    Raises:
        UserError: an unknown task, or one that is no maze.
    """
    policy = unwrapped(policy)
    env = registry.make(task, **(env_arguments or {}))
    try:
        maze = env.unwrapped
        if not isinstance(maze, Maze):
            raise UserError(f"only a maze can be probed, task {task!r} is none")
        cells = [cell for cell in maze.layout.free if cell != maze.layout.goal]
        requests = [_request(maze, place, cell) for place, cell in enumerate(cells)]
        layout = maze.layout
    finally:
        env.close()
    optimal = _optimal(layout, cells)
    return MazeProbe(
        rows=layout.rows,
        goal=layout.goal,
        positions=tuple(cells),
        values=tuple(map(float, policy.state_values(requests))) if isinstance(policy, Valued) else None,
        moves=tuple(reply.text for reply in policy.act(requests)),
        optimal=optimal,
        best_possible=_best_possible([request.observations[0] for request in requests], optimal),
    )


def read_probe(record: Mapping[str, Any], where: str) -> MazeProbe:
    """Make the probe of a JSON object that `dataclasses.asdict` made of one.

    Args:
        record: the object.
        where: the file it is from, for the message.

    Raises:
        UserError: naming the file, if the object is something else.
    """
    try:
        probe = _probe(record)
        _check(probe)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"{where}: not a maze probe ({type(error).__name__}: {in_one_line(error)})") from error
    return probe


PROBE = Probe(probe_maze, asdict, read_probe)


def _check(probe: MazeProbe) -> None:
    """Raise a `UserError` where the parts do not belong together."""
    layout = Layout(probe.rows, probe.goal)
    for place, cell in enumerate(probe.positions):
        if cell not in layout.free:
            raise UserError(f"positions[{place}] must be a free cell, got {cell}")
    for name in ("values", "moves", "optimal"):
        found = getattr(probe, name)
        if found is not None and len(found) != len(probe.positions):
            raise UserError(f"{name} must be as many as positions ({len(probe.positions)}), got {len(found)}")
    if probe.values is not None and not all(map(math.isfinite, probe.values)):
        raise UserError("values must be finite")
    if not 0 <= probe.best_possible <= len(probe.positions):
        raise UserError(f"best_possible must be from 0 to {len(probe.positions)}, got {probe.best_possible}")


def _probe(record: Mapping[str, Any]) -> MazeProbe:
    values = record["values"]
    return MazeProbe(
        rows=tuple(map(str, record["rows"])),
        goal=_cell(record["goal"]),
        positions=tuple(map(_cell, record["positions"])),
        values=None if values is None else tuple(map(float, values)),
        moves=tuple(map(str, record["moves"])),
        optimal=tuple(tuple(map(str, moves)) for moves in record["optimal"]),
        best_possible=int(record["best_possible"]),
    )


def _cell(pair: Sequence[int]) -> Cell:
    row, col = pair
    return int(row), int(col)


def _request(maze: Maze, place: int, cell: Cell) -> Request:
    text, info = maze.reset(seed=place, options={"init_position": cell})
    return Request(slot=place, seed=place, observations=(text,), info=info)


def _optimal(layout: Layout, cells: Sequence[Cell]) -> tuple[tuple[str, ...], ...]:
    distance = layout.distances()
    return tuple(tuple(move for move in MOVES if distance[layout.after(cell, move)] < distance[cell]) for cell in cells)


def _best_possible(texts: Sequence[str], optimal: Sequence[tuple[str, ...]]) -> int:
    right: dict[str, Counter[str]] = {text: Counter() for text in texts}
    for text, moves in zip(texts, optimal, strict=True):
        right[text].update(moves)
    return sum(max(counts.values()) for counts in right.values())
