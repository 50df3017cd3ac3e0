"""Records: one per finished cell of a results table, read from run folders or from a folder of records.

A folder of records holds all that a report needs, without weights and texts::

    <task>.jsonl             a line per algorithm and training seed: configuration, commands, timing, tuned settings,
                             scores, the first transcript, and the values of curves that tables show
    curves/<task>.parquet    learning curves of the task, without throughput (``perf/...``)
    episodes.parquet         return, length, success and illegal actions of each episode of each evaluation
    reproduce.json           the commands that made the table
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from omegaconf import OmegaConf

from lmrl.data.storage import parquet_batches
from lmrl.envs.registry import probe, tasks
from lmrl.errors import UserError, in_one_line
from lmrl.evaluation.curves import Curve, Curves, find_metrics, read_curves
from lmrl.evaluation.episode_table import EpisodeTable, read_table
from lmrl.evaluation.result_json import check_record, read_json, write_json
from lmrl.evaluation.run_folder import current_evaluations, read_scores, read_transcript
from lmrl.evaluation.tuning import TUNED
from lmrl.utils.configuration import check_config
from lmrl.utils.files import locked, parse_json, replacing

DATA = "data"
"""The name of the dataset among the algorithms; its scores are those of its own returns."""

_NOTED = "reproduce.json"
_PLAIN = "evaluation"
_TUNED = "evaluation_tuned"
_PARTS = (_PLAIN, "evaluation_last", _TUNED)
"""Evaluations of a run: as trained, of the last checkpoint, and with tuned settings."""

_EXCESS = "val/bc/excess"
_LOSSES = ("train/loss", "val/loss")

_EPISODES = pa.schema(
    [
        ("task", pa.string()),
        ("algorithm", pa.string()),
        ("seed", pa.int32()),
        ("part", pa.string()),
        ("return", pa.float64()),
        ("length", pa.int32()),
        ("success", pa.int8()),
        ("illegal", pa.int32()),
    ]
)
_CURVES = pa.schema(
    [
        ("quantity", pa.string()),
        ("algorithm", pa.string()),
        ("seed", pa.int32()),
        ("step", pa.int64()),
        ("value", pa.float64()),
    ]
)

Key: TypeAlias = tuple[str, int]
"""Algorithm and training seed: what identifies a cell of one task."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A correction that changes the numbers of some runs. Reports mark runs that were made before it."""

    name: str
    version: str
    """The first version of the package that has it."""
    date: str
    words: str
    """What was wrong, for the footnote of a table."""
    optimizer: str | None = None
    """Only runs with this optimizer are concerned; None: any."""
    architecture: str | None = None
    """Only runs of models of this type are concerned; None: any."""
    algorithm: str | None = None
    """Only runs of this class are concerned; None: any."""


FIXES = (
    Fix(
        "muon-scale",
        "0.2.0",
        "2026-11-26",
        "Muon scaled GPT-2's matrices by inputs over outputs",
        optimizer="muon",
        architecture="gpt2",
    ),
    Fix(
        "return-bins",
        "0.2.0",
        "2026-11-26",
        "return conditioning put different returns into one bin",
        algorithm="lmrl.modules.ReturnConditionedBC",
    ),
)
"""All such corrections; `Record.missing_fixes` names those that a run lacks."""


@dataclass(frozen=True, slots=True)
class Record:
    """One finished cell: an algorithm or a scripted policy on a task, with one training seed."""

    task: str
    algorithm: str
    """Name of the run folder: ``ilql``, ``random``."""
    seed: int
    """The training seed."""
    folder: Path
    """The run folder; for a record from a file, where `lmrl reproduce` puts it."""
    scores: Mapping[str, Any]
    """Content of ``scores.json``."""
    episodes: EpisodeTable
    """The episodes that the scores count."""
    timing: Mapping[str, Any] = field(default_factory=dict)
    """Content of ``timing.json``; empty if nothing was timed."""
    cell: Mapping[str, Any] = field(default_factory=dict)
    """Content of ``cell.json``; empty for runs outside a table."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Content of ``config.yaml``; empty for policies that were not trained."""
    curve_values: Mapping[str, Curve] = field(default_factory=dict)
    """The excess of BC at each validation, and the last training and held-out loss; see `read_record_curves`."""
    probe: Any = None
    """What the task's probe found (`lmrl.envs.task.Probe`); None without one."""
    transcript: str = ""
    """The first episode as text."""
    tuned: "Record | None" = None
    """The same run with tuned decoding settings."""
    missing_fixes: tuple[str, ...] = ()
    """Names of the `FIXES` that would change the run, or a run that it starts from, and that are newer."""

    def __repr__(self) -> str:
        """Describe the record in one line, without configuration and episodes."""
        mean = self.scores.get("return_mean", float("nan"))
        return f"<Record of {self.algorithm} on {self.task}, seed {self.seed}: mean return {mean:.2f}>"


def seed_folder(runs: Path, seed: int) -> Path:
    """Return the folder of a training seed: ``runs`` for seed 0, ``runs/seed_1`` for seed 1."""
    return runs if seed == 0 else runs / f"seed_{seed}"


def seed_folders(runs: Path) -> dict[int, Path]:
    """Return the folder of each training seed that has one, and of seed 0."""
    folders = {0: runs}
    for path in runs.glob("seed_*"):
        if re.fullmatch(r"seed_[1-9]\d*", path.name):
            folders[int(path.name[5:])] = path
    return dict(sorted(folders.items()))


def read_records(place: Path, task: str) -> dict[str, dict[int, Record]]:
    """Read all finished evaluations of a task.

    Evaluations of weights that a run folder no longer has are left out.

    Args:
        place: folder of runs (``<task>/<algorithm>/evaluation``, further training seeds in ``seed_1`` and so on), or
            folder that `write_records` has written.
        task: name of the task.

    Returns:
        Algorithm to training seed to record.

    Raises:
        UserError: naming the file, if one is broken.
    """
    lines = _lines_of(place, task)
    episodes = _read_episodes(place, task) if _has_records(place, task) else {}
    records: dict[str, dict[int, Record]] = {}
    for line in lines:
        if line["algorithm"] == DATA:
            continue
        record = _record(line, place, episodes)
        records.setdefault(record.algorithm, {})[record.seed] = record
    # A run can lack a fix because of the run that it starts from, so all records have to be known first.
    for seeds in records.values():
        for seed, record in seeds.items():
            missing_fixes = _missing_fixes(record, records)
            tuned = None if record.tuned is None else replace(record.tuned, missing_fixes=missing_fixes)
            seeds[seed] = replace(record, missing_fixes=missing_fixes, tuned=tuned)
    return records


def _missing_fixes(record: Record, records: Mapping[str, Mapping[int, Record]]) -> tuple[str, ...]:
    """Return the names of the fixes that would change the run, or one of the runs that it starts from."""
    chain = [record]
    start = _start(record, records)
    while start is not None and start not in chain:
        chain.append(start)
        start = _start(start, records)
    # All runs of a chain have the model of the first one, the only one whose configuration names it.
    model = _arguments(chain[-1]).get("architecture") or {}
    architecture = model.get("model_type")
    names = []
    for fix in FIXES:
        for run in chain:
            if fix.name not in names and _is_older(run, fix) and _is_concerned(run, fix, architecture):
                names.append(fix.name)
    return tuple(names)


def _arguments(record: Record) -> Mapping[str, Any]:
    """Return the arguments of the algorithm; empty if the record has none, or in an unknown form."""
    model = record.config.get("model")
    arguments = model.get("init_args") if isinstance(model, Mapping) else None
    return arguments if isinstance(arguments, Mapping) else {}


def _start(record: Record, records: Mapping[str, Mapping[int, Record]]) -> Record | None:
    """Return the record of the run whose weights a run starts from; None if it is not among the records."""
    pretrained = _arguments(record).get("pretrained")
    if not isinstance(pretrained, str):
        return None
    # ``runs/<task>/<algorithm>`` or ``runs/seed_1/<task>/<algorithm>``; other names are those of published models.
    folder = Path(pretrained)
    if folder.parent.name != record.task:
        return None
    seed = re.fullmatch(r"seed_([1-9]\d*)", folder.parent.parent.name)
    return records.get(folder.name, {}).get(int(seed[1]) if seed else 0)


def _is_older(record: Record, fix: Fix) -> bool:
    known = []
    trained_with = record.cell.get("trained_with")
    if trained_with is not None:
        known.append(_version(str(trained_with)))
    for versions in (record.cell.get("versions", {}), record.scores.get("provenance", {}).get("versions", {})):
        if "lmrl" in versions:
            known.append(_version(str(versions["lmrl"])))
    return bool(known) and min(known) < _version(fix.version)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _is_concerned(record: Record, fix: Fix, architecture: Any) -> bool:
    model = record.config.get("model")
    algorithm = model.get("class_path") if isinstance(model, Mapping) else None
    if algorithm is None:
        return False
    return (
        fix.optimizer in (None, _arguments(record).get("optimizer"))
        and fix.architecture in (None, architecture)
        and fix.algorithm in (None, algorithm)
    )


def read_record_curves(place: Path, task: str) -> dict[str, dict[int, Curves]]:
    """Read the learning curves of a task.

    Args:
        place: see `read_records`.
        task: name of the task.

    Returns:
        Algorithm to training seed to curves; nothing for policies that were not trained.

    Raises:
        UserError: naming the file, if one is broken.
    """
    by_algorithm: dict[str, dict[int, Curves]] = {}
    if _has_records(place, task):
        for (algorithm, seed), curves in _read_curve_file(place, task).items():
            by_algorithm.setdefault(algorithm, {})[seed] = curves
        return by_algorithm
    for seed, runs in seed_folders(place).items():
        for run in current_evaluations(runs, task):
            curves = _curves_of_run(run)
            if curves:
                by_algorithm.setdefault(run.name, {})[seed] = curves
    return by_algorithm


def read_data(place: Path, task: str) -> dict[str, Any]:
    """Read the record of the task's dataset: its scores and the percentiles of its returns; empty if there is none.

    Raises:
        UserError: the file is broken or lacks scores or returns; the message names it.
    """
    cell: dict[str, Any] = {}
    if _has_records(place, task):
        path = _file_of(place, task)
        for line in _read_lines(path):
            if line["algorithm"] == DATA:
                cell = line["cell"]
                break
    else:
        path = place / task / DATA / "cell.json"
        cell = read_json(path)
    missing = [name for name in ("scores", "returns") if not cell.get(name)]
    if cell and missing:
        raise UserError(f"{path}: the record of the dataset lacks {', '.join(missing)}")
    return cell


def write_records(runs: Path, records: Path) -> list[str]:
    """Add every finished cell of a folder of runs to a folder of records; cells of the same name are replaced.

    A run that has gone on since it was evaluated is left out.

    Args:
        runs: folder with ``<task>/<algorithm>/cell.json``, further training seeds in ``seed_1`` and so on.
        records: folder for the records, made if it is missing. Only files of tasks with finished cells are written.

    Returns:
        ``<task>/<algorithm>`` of each cell that was added, with ``seed N`` for further training seeds.

    Raises:
        UserError: a file is broken, and the message names it; or another process writes into the folder.
    """
    by_task: dict[str, list[tuple[int, Path]]] = {}
    for seed, folder in seed_folders(runs).items():
        for path in sorted(folder.glob("*/[!.]*/cell.json")):  # hidden folders are half written
            run = path.parent
            if run.name != DATA and run not in current_evaluations(folder, run.parent.name):
                continue
            by_task.setdefault(run.parent.name, []).append((seed, run))
    if not by_task:
        return []
    _check_apart(runs, records)
    # All files are checked before the first one is written.
    for task in by_task:
        _check_records(records, task)
    written = []
    with locked(records, "folder of records", wait=60.0):
        for task, cells in sorted(by_task.items()):
            _add_cells(records, task, cells)
            for seed, run in cells:
                written.append(f"{task}/{run.name}" + (f" seed {seed}" if seed else ""))
        _add_commands(runs, records)
    return written


def _check_apart(runs: Path, records: Path) -> None:
    """Make sure that runs and records do not lie in each other, where readers would confuse them."""
    real_runs = Path(os.path.realpath(runs))
    real_records = Path(os.path.realpath(records))
    if real_runs.is_relative_to(real_records) or real_records.is_relative_to(real_runs):
        raise UserError(f"the folder of records, {records}, must lie outside of the folder of runs, {runs}")


def _check_records(records: Path, task: str) -> None:
    """Make sure that the files to be replaced are records, by reading them."""
    _read_lines(_file_of(records, task))
    _read_curve_file(records, task)
    _read_episodes(records, task)
    commands = records / _NOTED
    if commands.is_file() and "commands" not in read_json(commands):
        raise UserError(f"{commands} is there, and was not made by lmrl report: choose another folder for the records")


def _add_cells(records: Path, task: str, cells: list[tuple[int, Path]]) -> None:
    """Add cells to the three files of a task."""
    lines: dict[Key, dict[str, Any]] = {}
    for line in _read_lines(_file_of(records, task)):
        lines[line["algorithm"], line["seed"]] = line
    curves = _read_curve_file(records, task)
    tables = _read_episodes(records, task)
    for seed, run in cells:
        key = (run.name, seed)
        lines[key] = _line_of_run(run, task, seed)
        curves[key] = _curves_of_run(run)
        for part in _PARTS:
            tables.pop((run.name, seed, part), None)
            if (run / part / "scores.json").is_file():
                tables[run.name, seed, part] = read_table(run / part / "episodes.csv")
    # The scores come last: after an interruption they never name curves and episodes that were not written.
    _write_if_changed(records / "curves" / f"{task}.parquet", _parquet([_curve_table(curves)]))
    _write_if_changed(records / "episodes.parquet", _parquet(_episode_tables(records, task, tables)))
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for _, line in sorted(lines.items()))
    _write_if_changed(_file_of(records, task), text.encode())


def _add_commands(runs: Path, records: Path) -> None:
    """Add the commands of `lmrl reproduce` and the algorithms that they asked for, each once."""
    new = read_json(runs / _NOTED)
    if not new:
        return
    old = read_json(records / _NOTED)
    merged = {}
    for name in ("commands", "algorithms"):
        merged[name] = list(dict.fromkeys([*old.get(name, ()), *new.get(name, ())]))
    write_json(merged, records / _NOTED)


# Lines: the JSON of a cell, without its episodes and curves.


def _has_records(place: Path, task: str) -> bool:
    """Whether a folder is one of records, not of runs."""
    return _file_of(place, task).is_file()


def _file_of(place: Path, task: str) -> Path:
    return place / f"{task}.jsonl"


def _lines_of(place: Path, task: str) -> list[dict[str, Any]]:
    """Return a line per cell, of a folder of records or of a folder of runs."""
    if _has_records(place, task):
        return _read_lines(_file_of(place, task))
    lines = []
    for seed, runs in seed_folders(place).items():
        for run in current_evaluations(runs, task):
            lines.append(_line_of_run(run, task, seed))
    return lines


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        where = f"{path}, line {number}"
        line = parse_json(text, where)
        check_record(line, where)
        if line["task"] != path.stem:
            raise UserError(f"{where}: a record of task {line['task']!r} lies in the file of {path.stem!r}")
        lines.append(line)
    return lines


def _line_of_run(run: Path, task: str, seed: int) -> dict[str, Any]:
    """Collect the small files of a run folder into one JSON object."""
    cell = read_json(run / "cell.json")
    line: dict[str, Any] = {"task": task, "algorithm": run.name, "seed": seed}
    if run.name == DATA:
        return {**line, "cell": cell, "timing": read_json(run / "timing.json")}
    # The scores of a cell are copies of those in the folders of its evaluations.
    line["cell"] = {name: value for name, value in cell.items() if name not in ("scores", "tuned")}
    line["timing"] = read_json(run / "timing.json")
    line["config"] = {}
    config = run / "config.yaml"
    if config.is_file():
        check_config(config)
        # Unresolved, so that no value of the environment gets into the records.
        line["config"] = OmegaConf.to_container(OmegaConf.load(config), resolve=False)
    line["tuning"] = read_json(run / TUNED)
    line["scores"] = read_scores(run / _PLAIN, task)
    tuned = read_scores(run / _TUNED, task) if (run / _TUNED / "scores.json").is_file() else {}
    line["scores_tuned"] = tuned
    line["curve_values"] = _curve_values(_curves_of_run(run))
    line["probe"] = read_json(run / _PLAIN / "probe.json")
    line["transcript"] = read_transcript(run / _PLAIN)
    return line


def _curves_of_run(run: Path) -> Curves:
    metrics = find_metrics(run)
    return {} if metrics is None else read_curves(metrics)


def _curve_values(curves: Curves) -> dict[str, list[list[float]]]:
    """Return the points of curves that tables show, by quantity: ``[step, value]``."""
    points = {}
    for name in (_EXCESS, *_LOSSES):
        if name in curves:
            points[name] = [[step, value] for step, value in zip(*curves[name], strict=True)]
    for name in _LOSSES:
        if name in points:
            points[name] = points[name][-1:]  # tables show only the last value of a loss
    return points


def _record(line: Mapping[str, Any], place: Path, episodes: Mapping[tuple[str, int, str], EpisodeTable]) -> Record:
    """Make the record of a line; its episodes come from a folder of records or from the run folder."""
    task = line["task"]
    algorithm = line["algorithm"]
    seed = line["seed"]
    from_records = _has_records(place, task)
    folder = seed_folder(Path("runs") if from_records else place, seed) / task / algorithm

    def episodes_of(part: str, scores: Mapping[str, Any]) -> EpisodeTable:
        if not from_records:
            return read_table(folder / part / "episodes.csv")
        table = episodes.get((algorithm, seed, part))
        if table is None or len(table.returns) != scores["episodes"]:
            name = f"{task}/{algorithm}, seed {seed}, {part}"
            raise UserError(
                f"{place / 'episodes.parquet'} does not hold the {scores['episodes']} episodes of {name}; "
                f"write the records again with: lmrl report --runs RUNS --records {place}"
            )
        return table

    hook = probe(task) if task in tasks() else None
    probed = line["probe"]
    curve_values = {}
    for name, points in line["curve_values"].items():
        curve = Curve([], [])
        for step, value in points:
            curve.steps.append(int(step))
            curve.values.append(float(value))
        curve_values[name] = curve
    record = Record(
        task=task,
        algorithm=algorithm,
        seed=seed,
        folder=folder,
        scores=line["scores"],
        episodes=episodes_of(_PLAIN, line["scores"]),
        timing=line["timing"],
        cell=line["cell"],
        config=line["config"],
        curve_values=curve_values,
        probe=hook.from_json(probed, f"{folder}/{_PLAIN}/probe.json") if hook is not None and probed else None,
        transcript=line["transcript"],
    )
    tuned = line["scores_tuned"]
    if not tuned:
        return record
    # Tuned scores of other weights belong to an earlier training.
    weights = record.scores.get("provenance", {}).get("weights")
    if tuned.get("provenance", {}).get("weights") != weights:
        return record
    return replace(record, tuned=replace(record, scores=tuned, episodes=episodes_of(_TUNED, tuned)))


# Parquet files: episodes and curves.

_MAX_TABLE_BYTES = 2**29  # bytes of a table in memory: a small file can claim to hold much more


def _read_parquet(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a Parquet file of this schema; an empty table if there is none."""
    if not path.is_file():
        return schema.empty_table()
    try:
        parts = []
        size = 0
        for part in parquet_batches(path, rows=2**16):
            parts.append(part)
            size += part.nbytes
            if size > _MAX_TABLE_BYTES:
                raise UserError(f"{path}: not a file of records (larger than {_MAX_TABLE_BYTES >> 20} MB)")
        return pa.Table.from_batches(parts).cast(schema) if parts else schema.empty_table()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: not a file of records ({in_one_line(error)})") from error


def _groups(table: pa.Table, names: list[str]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yield each run of rows that agree in these columns, with the values that they agree in."""
    if table.num_rows == 0:
        return
    # Mark each row that differs from the row before it.
    starts = np.zeros(table.num_rows, dtype=bool)
    starts[0] = True
    for name in names:
        values = table[name].to_numpy()
        starts[1:] |= values[1:] != values[:-1]
    begins = np.flatnonzero(starts)
    ends = [*begins[1:], table.num_rows]
    for begin, end in zip(begins, ends, strict=True):
        part = table.slice(begin, end - begin)
        yield tuple(part[name][0].as_py() for name in names), part


def _read_episodes(records: Path, task: str) -> dict[tuple[str, int, str], EpisodeTable]:
    """Read the episodes of a task by algorithm, training seed and evaluation."""
    path = records / "episodes.parquet"
    table = _read_parquet(path, _EPISODES)
    table = table.filter(pc.equal(table["task"], task))
    tables = {}
    for (algorithm, seed, part), rows in _groups(table, ["algorithm", "seed", "part"]):
        tables[algorithm, seed, part] = EpisodeTable(
            rows["return"].to_numpy(),
            rows["length"].to_numpy().astype(np.int64),
            rows["success"].to_numpy().astype(np.int64),
            rows["illegal"].to_numpy().astype(np.int64),
        )
    return tables


def _episode_tables(
    records: Path, task: str, tables: Mapping[tuple[str, int, str], EpisodeTable]
) -> Iterator[pa.Table]:
    """Yield the episodes of each task in turn: those of `task` from `tables`, the others from the present file."""
    present = _read_parquet(records / "episodes.parquet", _EPISODES)
    for name in sorted({*present["task"].unique().to_pylist(), task}):
        if name != task:
            yield present.filter(pc.equal(present["task"], name))
            continue
        parts = []
        for (algorithm, seed, part), episodes in sorted(tables.items()):
            count = len(episodes.returns)
            columns = [[task] * count, [algorithm] * count, [seed] * count, [part] * count, *episodes]
            parts.append(pa.table(columns, names=_EPISODES.names).cast(_EPISODES))
        yield pa.concat_tables(parts) if parts else _EPISODES.empty_table()


def _read_curve_file(records: Path, task: str) -> dict[Key, Curves]:
    table = _read_parquet(records / "curves" / f"{task}.parquet", _CURVES)
    by_run: dict[Key, Curves] = {}
    for (quantity, algorithm, seed), rows in _groups(table, ["quantity", "algorithm", "seed"]):
        curve = Curve(rows["step"].to_pylist(), rows["value"].to_pylist())
        by_run.setdefault((algorithm, seed), {})[quantity] = curve
    return by_run


def _curve_table(curves: Mapping[Key, Curves]) -> pa.Table:
    # Sorted by quantity first: runs of one task have similar values, which compress well next to each other.
    keys = []
    for (algorithm, seed), quantities in curves.items():
        for quantity in quantities:
            if not quantity.startswith("perf/"):
                keys.append((quantity, algorithm, seed))
    parts = []
    for quantity, algorithm, seed in sorted(keys):
        curve = curves[algorithm, seed][quantity]
        count = len(curve.steps)
        columns = [[quantity] * count, [algorithm] * count, [seed] * count, curve.steps, curve.values]
        parts.append(pa.table(columns, names=_CURVES.names).cast(_CURVES))
    return pa.concat_tables(parts) if parts else _CURVES.empty_table()


def _parquet(tables: Iterator[pa.Table] | list[pa.Table]) -> bytes:
    """Return a Parquet file with a row group per table."""
    buffer = pa.BufferOutputStream()
    writer = None
    for table in tables:
        if writer is None:
            # Steps grow evenly, successive values differ in few bytes, and all other columns repeat their values.
            encodings = {}
            repeating = []
            for column in table.schema:
                if column.name == "step":
                    encodings[column.name] = "DELTA_BINARY_PACKED"
                elif pa.types.is_floating(column.type):
                    encodings[column.name] = "BYTE_STREAM_SPLIT"
                else:
                    repeating.append(column.name)
            writer = pq.ParquetWriter(
                buffer,
                table.schema,
                compression="zstd",
                compression_level=19,
                use_dictionary=repeating,
                column_encoding=encodings,
            )
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return bytes(buffer.getvalue())


def _write_if_changed(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    with replacing(path) as file:
        file.write(content)
