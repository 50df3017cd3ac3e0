"""The policy's action and expected return in every cell of a maze."""

import math
from collections import Counter, defaultdict
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
    """All free cells but the goal; the fields below have one entry for each."""
    values: tuple[float, ...] | None
    """V of the first observation there; None for a policy without values."""
    moves: tuple[str, ...]
    """The actions of the policy."""
    optimal: tuple[tuple[str, ...], ...]
    """The moves that begin a shortest path."""
    best_possible: int
    """Number of cells in which a policy can be right that sees the first observation only (cells may look alike)."""

    def is_right(self, index: int) -> bool:
        """Return whether the move from ``positions[index]`` begins a shortest path."""
        return self.moves[index] in self.optimal[index]

    @property
    def right(self) -> int:
        """Number of cells with a right move."""
        return sum(map(self.is_right, range(len(self.positions))))


def probe_maze(policy: Policy | LoadedPolicy, task: str, env_arguments: Mapping[str, Any] | None = None) -> MazeProbe:
    """Start one episode in every cell and ask the policy for its first move, and for V if it has ``state_values``.

    Args:
        policy: the policy with its own sampling settings; pass a greedy one (temperature 0) for greedy moves.
        task: a maze task.
        env_arguments: arguments of the environment, as for `lmrl.make`.

    Raises:
        UserError: an unknown task, or one that is no maze.
    """
    policy = unwrapped(policy)
    env = registry.make(task, **(env_arguments or {}))
    try:
        maze = env.unwrapped
        if not isinstance(maze, Maze):
            raise UserError(f"only a maze can be probed, task {task!r} is none")
        layout = maze.layout
        cells = list(layout.free)
        cells.remove(layout.goal)
        distances = layout.distances()
        requests: list[Request] = []
        optimal: list[tuple[str, ...]] = []
        right_moves: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by the text of the cell
        for slot, cell in enumerate(cells):
            text, info = maze.reset(seed=slot, options={"init_position": cell})
            requests.append(Request(slot=slot, seed=slot, observations=(text,), info=info))
            nearer = tuple(move for move in MOVES if distances[layout.after(cell, move)] < distances[cell])
            optimal.append(nearer)
            right_moves[text].update(nearer)
    finally:
        env.close()
    # A policy of the text alone makes one move in all cells that look alike: at best the one that is right most often.
    best_possible = sum(max(counts.values()) for counts in right_moves.values())
    return MazeProbe(
        rows=layout.rows,
        goal=layout.goal,
        positions=tuple(cells),
        values=tuple(map(float, policy.state_values(requests))) if isinstance(policy, Valued) else None,
        moves=tuple(reply.text for reply in policy.act(requests)),
        optimal=tuple(optimal),
        best_possible=best_possible,
    )


def read_probe(record: Mapping[str, Any], where: str) -> MazeProbe:
    """Restore a probe from the JSON object that `dataclasses.asdict` makes of it.

    Args:
        record: the object.
        where: the file, for the message.

    Raises:
        UserError: naming the file, if the object is something else.
    """
    try:
        values = record["values"]
        probe = MazeProbe(
            rows=tuple(map(str, record["rows"])),
            goal=_cell(record["goal"]),
            positions=tuple(map(_cell, record["positions"])),
            values=None if values is None else tuple(map(float, values)),
            moves=tuple(map(str, record["moves"])),
            optimal=tuple(tuple(map(str, moves)) for moves in record["optimal"]),
            best_possible=int(record["best_possible"]),
        )
        _check(probe)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(f"{where}: not a maze probe ({type(error).__name__}: {in_one_line(error)})") from error
    return probe


PROBE = Probe(probe_maze, asdict, read_probe)


def _check(probe: MazeProbe) -> None:
    """Raise a `UserError` if the fields do not belong together."""
    layout = Layout(probe.rows, probe.goal)
    for index, cell in enumerate(probe.positions):
        if cell not in layout.free:
            raise UserError(f"positions[{index}] must be a free cell, got {cell}")
    for name in ("values", "moves", "optimal"):
        entries = getattr(probe, name)
        if entries is not None and len(entries) != len(probe.positions):
            raise UserError(f"{name} must be as many as positions ({len(probe.positions)}), got {len(entries)}")
    if probe.values is not None and not all(map(math.isfinite, probe.values)):
        raise UserError("values must be finite")
    if not 0 <= probe.best_possible <= len(probe.positions):
        raise UserError(f"best_possible must be from 0 to {len(probe.positions)}, got {probe.best_possible}")


def _cell(pair: Sequence[int]) -> Cell:
    row, col = pair
    return int(row), int(col)
