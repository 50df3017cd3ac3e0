"""Which slot sits in which row of the cache, and which ids it holds there."""

from collections.abc import Sequence

from lmrl.models.cache import SlotCache

__all__ = ["Slots"]


class Slots:
    """The books of a `SlotCache`: slots are any integers, rows are places in memory.

    Args:
        cache: whose rows are given out.
    """

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._row: dict[int, int] = {}  # slot -> row
        self._slot: list[int] = []  # row -> slot
        self._held: dict[int, list[int]] = {}

    def held(self, slot: int) -> list[int]:
        """The ids whose keys and values the slot's row holds."""
        return self._held[slot]

    def keep(self, slots: Sequence[int], new: Sequence[Sequence[int]]) -> None:
        """Note what has been read into each slot's row."""
        for slot, ids in zip(slots, new, strict=True):
            self._held[slot].extend(ids)

    def row(self, slot: int) -> int:
        """Where the slot sits."""
        return self._row[slot]

    def rewind(self, slot: int, context: Sequence[int]) -> list[int]:
        """Cut a slot back to the longest prefix it shares with a context, and return the ids left to read.

        The last id is always left, so that reading gives a hidden vector.
        """
        if slot not in self._row:
            self._admit(slot)
        held, wanted = self._held[slot], list(context)
        shared = min(len(held), len(wanted) - 1)
        if held[:shared] != wanted[:shared]:
            shared = next(i for i in range(shared) if held[i] != wanted[i])
        del held[shared:]
        return wanted[shared:]

    def arrange(self, slots: Sequence[int]) -> tuple[int, list[int]]:
        """Bring slots into neighbouring rows.

        Returns:
            The first row, and the order in which the rows hold the slots: row ``first + i`` is ``slots[order[i]]``.
        """
        rows = [self._row[slot] for slot in slots]
        first = min(rows)
        if max(rows) - first + 1 != len(rows):
            # To the front: rows that leave a batch one after the other then cost one short copy each.
            self._to_front(rows)
            rows = [self._row[slot] for slot in slots]
            first = 0
        return first, sorted(range(len(rows)), key=rows.__getitem__)

    def _admit(self, slot: int) -> None:
        self._row[slot] = len(self._slot)
        self._slot.append(slot)
        self._held[slot] = []
        if len(self._slot) > self._cache.rows:
            self._cache.grow(2 * self._cache.rows)

    def _to_front(self, rows: list[int]) -> None:
        inside = set(rows)
        free = [row for row in range(len(rows)) if row not in inside]
        outside = [row for row in rows if row >= len(rows)]
        used = max(len(self._held[self._slot[row]]) for row in (*free, *outside))
        self._cache.swap(free, outside, used)
        for left, right in zip(free, outside, strict=True):
            self._slot[left], self._slot[right] = self._slot[right], self._slot[left]
            self._row[self._slot[left]], self._row[self._slot[right]] = left, right
