"""The session of ``benchmarks/gpu_session.sh``: jobs of a queue, one after the other, within a number of seconds.

A GPU may be at hand for minutes only. So each job has a time limit, a job that no longer fits is skipped, a job that
fails does not stop the others, and a job that is stopped keeps its rows. ``--device cpu --tiny`` runs the same commands
at a size that only shows that they run.

``--out`` holds ``results/`` (files of `python -m benchmarks`), ``logs/`` (output of each job), ``session.jsonl`` (a
line per job) and ``work/`` (datasets, runs, the model). A second session with the same ``--out`` runs what is left.
Afterwards ``--keep`` adds the rows of all jobs that ended well to one file per card in ``benchmarks/results``.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Timer
from typing import Any

import yaml
from packaging.version import Version

from benchmarks import results
from benchmarks.row import Row

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
QUEUE = ROOT / "benchmarks" / "gpu_queue.yaml"
#: Expected of a tiny job, whatever its real size would take.
TINY_SECONDS = 20.0
#: A job that is stopped may save its run for so long before it is killed.
GRACE = 10.0
_REQUIREMENT = re.compile(r'^  "([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """An entry of the queue."""

    name: str
    command: str
    seconds: float
    """Expected on an H100."""
    done: str | None = None
    """Date, card and results file of the rows in the repository."""
    resume: str = ""
    """Words for the command, if an earlier attempt was stopped."""


@dataclass
class Outcome:
    """A line of the session's log."""

    job: str
    state: str
    """``done``, ``failed``, ``stopped`` (it took too long) or ``skipped``."""
    note: str = ""
    seconds: float = 0.0
    rows: int = 0
    results: list[str] = field(default_factory=list)
    """Names of the results files."""
    card: str = ""
    date: str = ""


def read_queue(path: Path = QUEUE) -> list[Job]:
    """Return the jobs of a queue in their order."""
    jobs = [Job(**entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        raise SystemExit(f"{path} names a job twice")
    return jobs


def main(words: Sequence[str] | None = None) -> int:
    """Run the session.

    Returns:
        0; 1 if a job failed or was stopped; 2 if the session cannot begin.
    """
    options = parser().parse_args(words)
    if options.keep:
        return keep_rows(options.out, RESULTS)
    began = time.monotonic()
    card = check_environment(options.device)
    if card is None:
        return 2
    jobs = read_queue(options.queue)
    unknown = set(options.jobs) - {job.name for job in jobs}
    if unknown:
        print(f"unknown job {', '.join(sorted(unknown))}; known: {', '.join(job.name for job in jobs)}")
        return 2
    session = Session(options, card, began)
    session.prepare_model()
    for job in jobs:
        if not options.jobs or job.name in options.jobs:
            session.run(job)
    session.print_summary()
    return int(any(outcome.state in ("failed", "stopped") for outcome in session.outcomes))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="benchmarks/gpu_session.sh", description=__doc__.splitlines()[0])
    made.add_argument("jobs", nargs="*", metavar="JOB", help="run these jobs only, done or not (default: all not done)")
    made.add_argument("--device", default="cuda", help="cuda, or cpu with --tiny")
    made.add_argument("--tiny", action="store_true", help="at a size that only shows that everything runs")
    made.add_argument("--out", type=Path, default=Path("runs/gpu_session"), help="folder of results, logs and runs")
    made.add_argument("--seconds", type=float, default=600, help="of the whole session (600)")
    made.add_argument("--model", type=Path, help="folder of SmolLM2, or its GGUF file")
    made.add_argument("--queue", type=Path, default=QUEUE, help="another queue")
    made.add_argument("--keep", action="store_true", help="run nothing: add the rows in --out to benchmarks/results")
    return made


def keep_rows(out: Path, folder: Path) -> int:
    """Add the rows of each job that is done to ``session-<card>.json`` and ``.md``; rows of other jobs stay there.

    Args:
        out: folder of a session.
        folder: where the file of the card is.

    Returns:
        0; 2 if the folder holds no finished job.
    """
    lines = (out / "session.jsonl").read_text(encoding="utf-8").splitlines()
    done = {line["job"]: line for line in map(json.loads, lines) if line["state"] == "done"}
    rows: dict[str, list[Row]] = {}
    facts: dict[str, Any] = {}
    for job, line in done.items():
        for name in line["results"]:
            record = results.read(out / "results" / name)
            facts[job] = {key: record[key] for key in ("machine", "versions", "commit", "date", "load")}
            for row in record["rows"]:
                fields = {key: value for key, value in row.items() if key != "benchmark"}
                rows.setdefault(job, []).append(Row(**fields))
    if not rows:
        print(f"{out} holds no rows of a finished job", file=sys.stderr)
        return 2
    print(results.write_parts(folder, "session", rows, facts))
    return 0


def check_environment(device: str) -> str | None:
    """Print the card and the versions, and a line for each requirement of lmrl that is not met.

    Returns:
        The name of the card; None if torch does not see a GPU.
    """
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[0]
    for name, least in _REQUIREMENT.findall(project):
        try:
            found = version(name)
        except PackageNotFoundError:
            print(f"missing: {name}>={least}")
            continue
        if Version(found) < Version(least):
            print(f"too old: {name} {found}, needs >={least}")
    import torch  # after the lines above, of which one may say why this fails

    if device != "cpu" and not torch.cuda.is_available():
        print("torch sees no GPU here; --device cpu --tiny shows that everything runs", file=sys.stderr)
        return None
    card = "CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    versions = [f"{name} {version(name)}" for name in ("torch", "transformers", "lightning")]
    print(f"{card}, {', '.join(versions)}, {_cores()} cores", flush=True)
    return card


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Session:
    """What is left of the time, and what has become of the jobs."""

    def __init__(self, options: argparse.Namespace, card: str, began: float) -> None:
        self.options = options
        self.card = card
        self.end = began + options.seconds
        self.out: Path = options.out.absolute()
        self.log = self.out / "session.jsonl"
        self.work = self.out / "work"
        self.model: Path | None = None if options.model is None else options.model.absolute()
        """Folder of the model, or its GGUF file until it is prepared."""
        self.outcomes: list[Outcome] = []
        self.earlier = self._read_log()
        self.environment = {"LMRL_DATA": str(self.work / "data"), **os.environ}
        for folder in ("results", "logs", "work"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)

    def prepare_model(self) -> None:
        """Turn a GGUF file into a model folder, which a later session with the same ``--out`` finds."""
        folder = self.work / "smollm2-135m"
        if folder.is_dir():
            self.model = folder
        elif self.model is not None and self.model.is_file():
            command = f"python tools/smollm2.py --gguf {shlex.quote(str(self.model))} --out {shlex.quote(str(folder))}"
            self.model = folder if self.run(Job("model", command, 60)).state == "done" else None

    def run(self, job: Job) -> Outcome:
        """Run a job, unless it is done or no longer fits."""
        earlier = self.earlier.get(job.name)
        named = job.name in self.options.jobs
        expected = min(job.seconds, TINY_SECONDS) if self.options.tiny else job.seconds
        left = self.end - time.monotonic()
        if earlier in ("done", "failed") and not named:
            return self._note(Outcome(job.name, "earlier", f"{earlier} in an earlier session with this --out"))
        if job.done and not named and not self.options.tiny:
            return self._note(Outcome(job.name, "earlier", job.done))
        if "{model}" in job.command and self.model is None and not self.options.tiny:
            return self._note(Outcome(job.name, "skipped", "needs --model"))
        if expected > left:
            return self._note(Outcome(job.name, "skipped", f"{expected:.0f} s no longer fit into {left:.0f} s"))
        # A tiny job on a busy machine may take any time; a real one that takes twice its time has something wrong.
        limit = left if self.options.tiny else min(2 * expected, left)
        words = self.words(job, earlier == "stopped")
        print(f"\n== {job.name} (limit {limit:.0f} s): {shlex.join(words)}", flush=True)
        began = time.monotonic()
        code, stopped = self._execute(words, self.out / "logs" / f"{job.name}.log", limit)
        outcome = Outcome(job.name, "done", seconds=round(time.monotonic() - began, 1), card=self.card)
        if stopped:
            outcome.state = "stopped"
            outcome.note = "took too long"
        elif code:
            outcome.state = "failed"
            outcome.note = f"exit code {code}"
        return self._note(outcome)

    def words(self, job: Job, resume: bool) -> list[str]:
        """Return the command of a job as words."""
        options = ["--device", self.options.device, "--out", str(self.out / "results"), "--name", job.name]
        if self.options.tiny:
            options.append("--tiny")
        model = [] if self.model is None else ["--model", str(self.model)]
        fillings = {
            "options": options,
            "model": model,
            "runs": [str(self.work / "runs")],
            # Checks are skipped without a GPU, which needs no workers.
            "workers": ["0" if self.options.device == "cpu" else str(_cores())],
        }
        template = f"{job.command} {job.resume}" if resume else job.command
        filled = template.format(**{name: shlex.join(filling) for name, filling in fillings.items()})
        return [sys.executable if word == "python" else word for word in shlex.split(filled)]

    def _execute(self, words: list[str], log: Path, limit: float) -> tuple[int, bool]:
        """Run a command in a process group of its own, and show and keep its output.

        Returns:
            Its exit code, and whether it was stopped at its limit.
        """
        with log.open("a", encoding="utf-8") as file:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            assert process.stdout is not None
            deadline = time.monotonic() + limit
            stop = Timer(limit, _signal_group, (process.pid, signal.SIGTERM))
            kill = Timer(limit + GRACE, _signal_group, (process.pid, signal.SIGKILL))
            stop.start()
            kill.start()
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                    file.write(line)
                    file.flush()
                code = process.wait()
            finally:
                stop.cancel()
                kill.cancel()
                _signal_group(process.pid, signal.SIGKILL)  # what a job has left running
        return code, time.monotonic() >= deadline

    def _note(self, outcome: Outcome) -> Outcome:
        """Complete an outcome and write it to the log at once."""
        for path in sorted((self.out / "results").glob("*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["name"] == outcome.job:
                outcome.results.append(path.name)
                outcome.rows += len(record["rows"])
        outcome.date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        self.outcomes.append(outcome)
        if outcome.state != "earlier":
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(vars(outcome)) + "\n")
        return outcome

    def _read_log(self) -> dict[str, str]:
        """Return the last state of each job in earlier sessions with the same folder."""
        if not self.log.is_file():
            return {}
        lines: list[dict[str, Any]] = [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]
        return {line["job"]: line["state"] for line in lines if line["state"] != "skipped"}

    def print_summary(self) -> None:
        """Print a table of the jobs."""
        print(f"\n{self.card}\n{'job':26} {'state':8} {'seconds':>8} {'rows':>5}")
        for outcome in self.outcomes:
            figures = f"{outcome.seconds:8.1f} {outcome.rows:5}"
            print(f"{outcome.job:26} {outcome.state:8} {figures}  {outcome.note}".rstrip())
        print(flush=True)


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    sys.exit(main())
