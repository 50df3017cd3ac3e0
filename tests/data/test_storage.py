import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmrl.data.storage import parquet_batches, read_episodes, read_metadata, write_episodes
from lmrl.errors import UserError
from lmrl.types import Episode
from tests.helpers.cases import cases

FORMATS = pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])

PLAIN = Episode("maze_fo", ("one\n", "two\n"), ("go\n",), (-1.0,), terminated=False, truncated=True, final_value=-2.5)
SAMPLED = Episode(
    task="maze_fo",
    observations=("é 左\n", "b\n", "Success\n"),
    actions=("go\n", ""),
    rewards=(-1.0, 0.1),
    terminated=True,
    truncated=False,
    seed=2**53 - 1,
    info={"success": True, "illegal": 1, "start": {"init_position": [1, 2]}, "note": None},
    action_ids=((5, 6), ()),
    action_logprobs=((-0.5, -0.25), ()),
    action_values=((1.5, -0.75), ()),
)
RECORD = {
    "task": "maze_fo",
    "observations": ["a", "b"],
    "actions": ["x"],
    "rewards": [1],
    "terminated": True,
    "truncated": False,
}


@FORMATS
def test_what_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new folder" / f"episodes{suffix}"
    assert write_episodes(path, [PLAIN, SAMPLED], {"task": "maze_fo", "size": 2}) == 2
    assert list(read_episodes(path)) == [PLAIN, SAMPLED]
    assert read_metadata(path) == {"task": "maze_fo", "size": 2}


@FORMATS
def test_without_episodes_or_metadata(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"episodes{suffix}"
    assert write_episodes(path, []) == 0
    assert list(read_episodes(path)) == []
    assert read_metadata(path) == {}


@FORMATS
def test_writing_and_reading_take_a_few_episodes_at_a_time(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"episodes{suffix}"
    taken = 0

    def endless() -> Iterator[Episode]:
        nonlocal taken
        while taken < 2000:
            taken += 1
            yield replace(PLAIN, seed=taken)

    assert write_episodes(path, endless()) == 2000
    assert [episode.seed for episode in read_episodes(path)] == list(range(1, 2001))
    if suffix == ".parquet":
        assert pq.ParquetFile(path).num_row_groups == 4


@FORMATS
def test_an_exception_on_the_way_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    def broken() -> Iterator[Episode]:
        for _ in range(1000):
            yield PLAIN
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_episodes(tmp_path / f"episodes{suffix}", broken())
    assert os.listdir(tmp_path) == []


def test_columns_of_the_parquet_file(tmp_path: Path) -> None:
    write_episodes(tmp_path / "e.parquet", [PLAIN, SAMPLED])
    table = pq.read_table(tmp_path / "e.parquet")
    assert [str(field.type) for field in table.schema] == [
        "string",
        "list<element: string>",
        "list<element: string>",
        "list<element: double>",
        "bool",
        "bool",
        "int64",
        "string",
        "list<element: list<element: int32>>",
        "list<element: list<element: float>>",
        "list<element: list<element: float>>",
        "float",
    ]
    assert table["action_ids"].to_pylist() == [None, [[5, 6], []]]
    assert json.loads(table["info"][1].as_py())["success"] is True


def test_files_of_other_tools_are_read(tmp_path: Path) -> None:
    """Only the required columns, other integer widths, rewards that are whole numbers."""
    table = pa.table({**{key: [value] for key, value in RECORD.items()}, "seed": pa.array([7], pa.int32())})
    pq.write_table(table, tmp_path / "e.parquet")
    (tmp_path / "e.jsonl").write_text("\n" + json.dumps({**RECORD, "seed": 7}) + "\n\n")
    expected = Episode("maze_fo", ("a", "b"), ("x",), (1.0,), terminated=True, truncated=False, seed=7)
    assert [*read_episodes(tmp_path / "e.parquet")] == [expected] == [*read_episodes(tmp_path / "e.jsonl")]


@cases(
    ("change", "message"),
    [
        ({"rewards": None}, "column 'rewards' is missing; an episode has: task, observations, "),
        ({"score": 3}, "unknown column 'score'; known: task, observations, "),
        ({"actions": [3]}, r"column 'actions' must be a list of texts, got \[3\]"),
        ({"observations": "ab"}, "column 'observations' must be a list of texts, got 'ab'"),
        ({"terminated": 1}, "column 'terminated' must be true or false, got 1"),
        ({"seed": 1.5}, "column 'seed' must be a whole number of at most 64 bits, got 1.5"),
        ({"rewards": [1.0, 2.0]}, "an episode of 1 actions needs 2 observations and 1 rewards, got 2 and 2"),
    ],
)
def test_a_wrong_record_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    good = RECORD
    bad = {key: value for key, value in {**RECORD, **change}.items() if value is not None}
    path = tmp_path / "e.jsonl"
    path.write_text(f"{json.dumps(good)}\n\n{json.dumps(bad)}\n")
    with pytest.raises(UserError, match=message) as caught:
        list(read_episodes(path))
    assert str(caught.value).startswith(f"{path}, line 3: ")

    table = pa.Table.from_pylist([bad])
    pq.write_table(table, tmp_path / "e.parquet")
    with pytest.raises(UserError, match=message) as caught:
        list(read_episodes(tmp_path / "e.parquet"))
    assert str(caught.value).startswith(f"{tmp_path / 'e.parquet'}, row 1: ")


def test_broken_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(RECORD) + "\n" + json.dumps(RECORD)[:-20] + "\n")
    episodes = read_episodes(path)
    assert next(episodes).task == "maze_fo"
    with pytest.raises(UserError, match=r"line 2: not valid JSON \("):
        next(episodes)
    path.write_bytes(b'{"task": "\xff"}\n')
    with pytest.raises(UserError, match=r"line 1: not valid JSON \("):
        list(read_episodes(path))
    path.write_text("[1]\n")
    with pytest.raises(UserError, match="line 1: an episode must be an object, got list"):
        list(read_episodes(path))


def test_info_of_a_parquet_file_must_be_json(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{**RECORD, "info": "{"}]), tmp_path / "e.parquet")
    with pytest.raises(UserError, match="row 1, column 'info': not valid JSON"):
        list(read_episodes(tmp_path / "e.parquet"))
    pq.write_table(pa.Table.from_pylist([{**RECORD, "info": "[]"}]), tmp_path / "e.parquet")
    with pytest.raises(UserError, match="column 'info' must be an object"):
        list(read_episodes(tmp_path / "e.parquet"))


def test_missing_strange_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.parquet: no such file"):
        read_episodes(tmp_path / "none.parquet")
    with pytest.raises(UserError, match="is not a file"):
        read_metadata(tmp_path)
    with pytest.raises(UserError, match=r"\.parquet or \.jsonl files, got the suffix '\.csv'"):
        write_episodes(tmp_path / "e.csv", [])
    (tmp_path / "e.csv").write_text("")
    with pytest.raises(UserError, match=r"got the suffix '\.csv'"):
        read_episodes(tmp_path / "e.csv")
    (tmp_path / "e.parquet").write_bytes(b"no parquet")
    for read in (read_metadata, lambda path: list(read_episodes(path))):
        with pytest.raises(UserError, match="not a Parquet file"):
            read(tmp_path / "e.parquet")
    write_episodes(tmp_path / "d.parquet", [replace(PLAIN, actions=(f"{i} " * 99,)) for i in range(500)])
    data = bytearray((tmp_path / "d.parquet").read_bytes())
    data[100 : len(data) // 2] = b"\xff" * (len(data) // 2 - 100)
    (tmp_path / "d.parquet").write_bytes(data)
    with pytest.raises(UserError, match="damaged after row 0"):
        list(read_episodes(tmp_path / "d.parquet"))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_an_info_that_json_cannot_hold(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the info of episodes? 0.* must hold what JSON knows: .*set"):
        write_episodes(tmp_path / f"e.{suffix}", [replace(PLAIN, info={"seen": {1}})])
    assert os.listdir(tmp_path) == []


def test_text_that_is_no_unicode(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a text of episodes 0 to 0 is not valid Unicode"):
        write_episodes(tmp_path / "e.parquet", [replace(PLAIN, actions=("\ud800",))])
    assert os.listdir(tmp_path) == []


@cases(
    ("change", "message"),
    [
        ({"rewards": [float("nan")]}, r"column 'rewards' must be a list of finite numbers \(of float32\), got \[nan\]"),
        ({"rewards": [float("-inf")]}, "column 'rewards' must be a list of finite numbers"),
        ({"rewards": [1e39]}, "column 'rewards' must be a list of finite numbers"),
        ({"info": {"illegal": "2"}}, "'illegal' of column 'info' must be a whole number from 0, got '2'"),
        ({"info": {"illegal": -1}}, "'illegal' of column 'info' must be a whole number from 0"),
        ({"info": {"success": "no"}}, "'success' of column 'info' must be true or false, got 'no'"),
        ({"info": {"start": [1]}}, "'start' of column 'info' must be an object"),
        ({"info": {"replies": [None]}}, "'replies' of column 'info' must be a list of texts"),
        ({"action_ids": [[-1]]}, "column 'action_ids' must be a list of lists of whole numbers from 0"),
    ],
)
def test_values_that_nothing_can_be_done_with_are_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    rows = [RECORD, {**RECORD, **change}]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=f"line 2: {message}"):
        list(read_episodes(tmp_path / "e.jsonl"))
    plain = [{"action_ids": [[1]], **row, "info": json.dumps(row.get("info", {}))} for row in rows]
    pq.write_table(pa.Table.from_pylist(plain), tmp_path / "e.parquet")
    with pytest.raises(UserError, match=f"row 2: {message}"):
        list(read_episodes(tmp_path / "e.parquet"))


@cases(
    ("line", "message"),
    [
        ("[" * 50_000 + "]" * 50_000, r"line 1: not valid JSON \(nested too deep\)"),
        ('{"seed": ' + "1" * 5000 + "}", r"line 1: not valid JSON \(Exceeds the limit \(4300 digits\)"),
        ('{"task": "\\ud83d"}', r"line 1: not valid JSON \('utf-8' codec can't encode .* surrogates not allowed"),
        (json.dumps({**RECORD, "seed": 10**30}), "line 1: column 'seed' must be a whole number of at most 64 bits"),
        (json.dumps({**RECORD, "rewards": [10**400]}), "line 1: column 'rewards' must be a list of finite numbers"),
        (json.dumps({**RECORD, "\x1b]2;x\n": 1}), r"line 1: unknown column '\\x1b]2;x\\n'"),
    ],
)
def test_odd_json_is_refused_by_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UserError, match=message):
        list(read_episodes(path))


def test_json_lines_may_hold_info_as_the_text_that_parquet_has(tmp_path: Path) -> None:
    """``pandas.read_parquet(...).to_json(..., orient="records", lines=True)`` writes it so."""
    write_episodes(tmp_path / "e.parquet", [PLAIN, SAMPLED])
    rows = pq.read_table(tmp_path / "e.parquet").to_pylist()
    assert isinstance(rows[1]["info"], str)
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(read_episodes(tmp_path / "e.jsonl")) == list(read_episodes(tmp_path / "e.parquet"))
    (tmp_path / "e.jsonl").write_text(json.dumps({**RECORD, "info": "{"}) + "\n")
    with pytest.raises(UserError, match="line 1, column 'info': not valid JSON"):
        list(read_episodes(tmp_path / "e.jsonl"))


@pytest.mark.parametrize("info", ["[" * 50_000 + "]" * 50_000, "1" * 5000, '"\\ud83d"', "{"])
def test_odd_json_in_a_column_is_refused_by_row(tmp_path: Path, info: str) -> None:
    pq.write_table(pa.Table.from_pylist([{**RECORD, "info": info}]), tmp_path / "e.parquet")
    with pytest.raises(UserError, match="row 1, column 'info': not valid JSON"):
        list(read_episodes(tmp_path / "e.parquet"))


def test_pairs_of_halves_are_a_character(tmp_path: Path) -> None:
    (tmp_path / "e.jsonl").write_text(json.dumps({**RECORD, "actions": ["\U0001f600"]}) + "\n")
    assert "\\ud83d\\ude00" in (tmp_path / "e.jsonl").read_text()
    assert next(read_episodes(tmp_path / "e.jsonl")).actions == ("\U0001f600",)


@FORMATS
def test_what_no_reader_would_take_is_not_written(tmp_path: Path, suffix: str) -> None:
    for odd, message in (
        (
            replace(PLAIN, rewards=(float("nan"),), seed=7),
            "the reward of turn 0 in the episode of seed 7 must be a finite",
        ),
        (replace(PLAIN, info={"note": "\ud800"}), "not valid Unicode"),
        (replace(PLAIN, actions=("\ud800",)), "not valid Unicode"),
    ):
        with pytest.raises(UserError, match=message):
            write_episodes(tmp_path / f"e{suffix}", [odd])
    assert os.listdir(tmp_path) == []


@cases("place", range(12))
def test_a_flipped_bit_in_a_page_shows(tmp_path: Path, place: int) -> None:
    path = tmp_path / "e.parquet"
    write_episodes(path, [replace(SAMPLED, actions=(f"{i} go\n", ""), seed=i) for i in range(300)])
    columns = pq.ParquetFile(path).metadata.row_group(0)
    pages = [columns.column(i) for i in range(columns.num_columns) if columns.column(i).total_compressed_size > 60]
    page = pages[place % len(pages)]
    data = bytearray(path.read_bytes())
    data[(page.dictionary_page_offset or page.data_page_offset) + page.total_compressed_size - 5] ^= 1 << place % 8
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"e\.parquet: damaged after row 0 \("):
        list(read_episodes(path))


def test_lines_that_were_cut_off_show_in_the_count(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    write_episodes(path, [replace(PLAIN, seed=i) for i in range(40)], {"task": "maze_fo"})
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match=r"e\.jsonl: ends after 39 episodes, its first line says 40: it was cut off"):
        list(read_episodes(path))
    path.write_text("".join(lines[1:20]))
    assert len(list(read_episodes(path))) == 19


@cases("found", ["[]", "7", "{", "[" * 5000, '"\\ud800"', b"\xff\xfe"])
def test_metadata_that_are_no_object(tmp_path: Path, found: str | bytes) -> None:
    table = pa.Table.from_pylist([RECORD]).replace_schema_metadata({"lmrl": found})
    pq.write_table(table, tmp_path / "e.parquet")
    with pytest.raises(
        UserError, match=r"e\.parquet(: its metadata must be an object|, metadata 'lmrl': not valid JSON)"
    ):
        read_metadata(tmp_path / "e.parquet")


def test_what_the_system_refuses_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e.parquet"
    write_episodes(path, [PLAIN])

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(pq, "ParquetFile", refused)
    with pytest.raises(OSError, match="Too many open files") as error:
        list(read_episodes(path))
    assert not isinstance(error.value, UserError)


BOMB = """
import resource, sys, time
from lmrl.data.storage import read_episodes
from lmrl.errors import UserError
list(read_episodes(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
for path in sys.argv[2:]:
    try:
        list(read_episodes(path))
    except UserError as error:
        print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - began)
"""


def repeated(path: Path, text: str, turns: int, rows: int) -> Path:
    """A small file of episodes of many turns, all with the same text, which is kept once."""
    indices = pa.array(np.zeros(turns * rows, np.int32))
    texts = pa.DictionaryArray.from_arrays(indices, pa.array([text]))
    observations = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * turns), texts)
    columns: dict[str, object] = {name: pa.array([RECORD[name]] * rows) for name in RECORD}
    table = pa.table({**columns, "observations": observations})
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=2**30)
    return path


@pytest.mark.nightly
def test_a_small_file_does_not_become_a_large_one(tmp_path: Path) -> None:
    good = tmp_path / "good.parquet"
    write_episodes(good, [PLAIN] * 600)
    bombs = [
        repeated(tmp_path / "texts.parquet", "a" * 50_000_000, 2, 512),
        repeated(tmp_path / "text.parquet", "a" * 300_000_000, 1, 1),
        repeated(tmp_path / "turns.parquet", "a", 50_000_000, 1),
        repeated(tmp_path / "rows.parquet", "a", 16_000_000, 1),
        repeated(tmp_path / "both.parquet", "a" * 10_000, 20_000, 100),
    ]
    assert all(path.stat().st_size < 2**16 for path in bombs)
    command = [sys.executable, "-c", BOMB, str(good), *map(str, bombs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path.cwd())
    *told, last = done.stdout.splitlines()
    assert [line.partition(":")[0].partition(",")[0] for line in told] == [str(path) for path in bombs], done.stderr
    kilobytes, seconds = map(float, last.split())
    assert kilobytes < 2**20 and seconds < 5 * len(bombs)


def test_long_episodes_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    episodes = [replace(PLAIN, observations=(str(number) * 200_000, "end")) for number in range(300)]
    write_episodes(path, episodes)
    assert list(read_episodes(path)) == episodes
    parts = [part.num_rows for part in parquet_batches(path)]
    assert sum(parts) == 300 and max(parts) < 100


@pytest.mark.parametrize(
    "options", [{"use_dictionary": False}, {"dictionary_pagesize_limit": 100}, {"row_group_size": 3}]
)
def test_files_of_other_writers_are_read(tmp_path: Path, options: dict[str, object]) -> None:
    episodes = [replace(SAMPLED, seed=number, observations=(str(number), "b\n", "c")) for number in range(50)]
    path = tmp_path / "a.parquet"
    write_episodes(path, episodes)
    table = pq.read_table(path)
    large = pa.large_list(pa.large_string())
    for kind in (table.schema.field("observations").type, large):
        column = table.column_names.index("observations")
        changed = table.set_column(column, "observations", table["observations"].cast(kind))
        pq.write_table(changed, path, **options)
        assert list(read_episodes(path)) == episodes
