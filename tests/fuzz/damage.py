"""Ways to damage a file in place. The generator of random numbers decides what is damaged."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import torch

Damage: TypeAlias = Callable[[Path, Random], None]
"""Changes a file in place."""

# Values that stand where something else belongs.
_ODD: tuple[Any, ...] = (
    None, True, 0, -1, 7.5, 10**30, 10**400, math.nan, math.inf, "", "x", "\ud83d", "\x1b]2;x\x07", "/etc/passwd", [],
    {}, [[]], [None], {"a": {}}, {"class_path": "os.system"},
)  # fmt: skip


def _on_bytes(change: Callable[[bytearray, Random], bytes | bytearray]) -> Damage:
    def damage(path: Path, chance: Random) -> None:
        path.write_bytes(change(bytearray(path.read_bytes()), chance))

    return damage


def _part(data: bytearray, chance: Random) -> slice:
    begin = chance.randrange(max(1, len(data)))
    return slice(begin, begin + chance.choice((1, 8, 64, 512)))


def _cut(data: bytearray, chance: Random) -> bytearray:
    return data[: chance.randrange(len(data))]


def _cut_line(data: bytearray, chance: Random) -> bytes:
    lines = bytes(data).splitlines(keepends=True)
    return b"".join(lines[: chance.randrange(len(lines))])


def _flip(count: int) -> Callable[[bytearray, Random], bytearray]:
    def change(data: bytearray, chance: Random) -> bytearray:
        for _ in range(count):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return data

    return change


def _zeros(data: bytearray, chance: Random) -> bytearray:
    part = _part(data, chance)
    data[part] = bytes(len(data[part]))
    return data


def _without(data: bytearray, chance: Random) -> bytearray:
    del data[_part(data, chance)]
    return data


def _twice(data: bytearray, chance: Random) -> bytearray:
    part = _part(data, chance)
    return data[: part.stop] + data[part] + data[part.stop :]


def _swapped(data: bytearray, chance: Random) -> bytearray:
    first, second = sorted((chance.randrange(len(data)), chance.randrange(len(data))))
    size = min(64, second - first)
    piece = data[first : first + size]
    data[first : first + size] = data[second : second + size]
    data[second : second + size] = piece
    return data


def _more(data: bytearray, chance: Random) -> bytearray:
    begin = chance.randrange(len(data))
    return data[:begin] + chance.randbytes(chance.choice((1, 16, 256))) + data[begin:]


BYTES: Mapping[str, Damage] = {
    "cut off": _on_bytes(_cut),
    "cut off at a line": _on_bytes(_cut_line),
    "one bit": _on_bytes(_flip(1)),
    "eight bits": _on_bytes(_flip(8)),
    "zeros": _on_bytes(_zeros),
    "a piece missing": _on_bytes(_without),
    "a piece twice": _on_bytes(_twice),
    "pieces swapped": _on_bytes(_swapped),
    "noise in between": _on_bytes(_more),
    "empty": _on_bytes(lambda data, chance: b""),
    "noise alone": _on_bytes(lambda data, chance: chance.randbytes(len(data))),
    "of another kind": _on_bytes(
        lambda data, chance: chance.choice((b"[]", b"null", b"7", b"{}\n", b"PK\x03\x04", b"PAR1PAR1", b"\xff\xfe"))
    ),
}
"""Damages of disks and copies, for any file."""


def _changed(value: Any, chance: Random) -> Any:
    """Return a copy of a value with something odd in a random place."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        kind = chance.random()
        if kind < 0.1:
            return {key: inner for key, inner in value.items() if key != name}
        if kind < 0.2:
            return {**value, chance.choice(("x", "", "__class__", "\x1b[31m")): chance.choice(_ODD)}
        return {**value, name: _changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        index = chance.randrange(len(value))
        if chance.random() < 0.1:
            return value[:index] + value[index + 1 :]
        return [*value[:index], _changed(value[index], chance), *value[index + 1 :]]
    if chance.random() < 0.05:
        deep: Any = 1
        for _ in range(chance.choice((150, 50_000))):
            deep = [deep]
        return deep
    return chance.choice(_ODD)


def _written(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 50_000 + "]" * 50_000


def _json(path: Path, chance: Random) -> None:
    path.write_text(_written(_changed(json.loads(path.read_text()), chance)))


def _json_line(path: Path, chance: Random) -> None:
    lines = path.read_text().splitlines()
    number = chance.randrange(len(lines))
    lines[number] = _written(_changed(json.loads(lines[number]), chance))
    path.write_text("\n".join(lines) + "\n")


def _digits(path: Path, chance: Random) -> None:
    """Put a number of 5,000 digits, or what is no number, in place of a digit."""
    text = path.read_text()
    digits = [index for index, letter in enumerate(text) if letter.isdigit()] or [0]
    index = chance.choice(digits)
    path.write_text(text[:index] + chance.choice(("9" * 5_000, "1e999", "NaN", "0x7", "--1")) + text[index + 1 :])


JSON: Mapping[str, Damage] = {"an odd value": _json, "odd digits": _digits}
"""Damages of a file that is one JSON value. Most leave it valid JSON with other values."""

JSON_LINES: Mapping[str, Damage] = {"an odd value": _json_line, "odd digits": _digits}


def _column(path: Path, chance: Random) -> None:
    """Write a valid Parquet file whose columns are not those of episodes, or hold something else."""
    table = pq.read_table(path)
    name = chance.choice(table.column_names)
    place = table.column_names.index(name)
    kind = chance.randrange(4)
    if kind == 0:
        table = table.remove_column(place)
    elif kind == 1:
        table = table.rename_columns([chance.choice(("x", "", "info")) if n == name else n for n in table.column_names])
    elif kind == 2:
        odd = (
            pa.nulls(len(table)),
            pa.array(range(len(table))),
            pa.array([b"\xff"] * len(table)),
            pa.array(["{"] * len(table)),
        )
        table = table.set_column(place, name, chance.choice(odd))
    else:
        values = table[name].to_pylist()
        row = chance.randrange(len(values))
        values[row] = None if chance.random() < 0.3 else _of_kind(values[row], chance)
        kind_of_column = table.schema.field(name).type
        try:
            table = table.set_column(place, table.schema.field(name), pa.array(values, kind_of_column))
        except (pa.ArrowException, OverflowError):  # the value is of another type, so the column gets another type
            table = table.set_column(place, name, pa.array([json.dumps(value) for value in values]))
    pq.write_table(table, path)


def _of_kind(value: Any, chance: Random) -> Any:
    """Return another value of the same type."""
    if isinstance(value, list) and value:
        return chance.choice((value[:-1], [], [*value[:-1], _of_kind(value[-1], chance)]))
    if isinstance(value, float):
        return chance.choice((math.nan, math.inf, -math.inf, 1e300))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((-1, 2**62))
    return chance.choice(("", "{", "[" * 5_000, '{"illegal": "x"}', "x"))


def _metadata(path: Path, chance: Random) -> None:
    table = pq.read_table(path)
    odd = (b"{", b"[]", b"7", b"\xff", b'{"env": []}', b'{"env": {"layout": "/etc/passwd"}}', b"[" * 5_000)
    pq.write_table(table.replace_schema_metadata({b"lmrl": chance.choice(odd)}), path)


PARQUET: Mapping[str, Damage] = {"odd columns": _column, "odd metadata": _metadata}
"""Damages that leave a valid Parquet file which lmrl has not written."""


def _entry(path: Path, chance: Random) -> None:
    """Put something odd among the plain values of a checkpoint, which stays a valid one of torch."""
    content = torch.load(path, weights_only=True)
    name = chance.choice(("lmrl", "hyper_parameters", "state_dict"))
    changed = {**content, name: _changed(dict(content[name]), chance)}
    try:
        torch.save(changed, path)
    except RecursionError:
        torch.save({**content, name: 7}, path)


CHECKPOINT: Mapping[str, Damage] = {"an odd value": _entry}
