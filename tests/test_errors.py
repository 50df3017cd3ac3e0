"""Errors for people: found wherever they were raised, and ranges said as in mathematics."""

import errno
import math
import os
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lmrl.cli import main
from lmrl.commands.libraries import explain_library
from lmrl.errors import UserError, check_choice, check_range, system_error, terminated_by_exception, user_error_in
from tests.helpers.cases import cases


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        raise UserError("episode 3 is empty")


def in_a_worker() -> None:
    next(iter(DataLoader(Broken(), num_workers=1)))


def as_a_cause() -> None:
    try:
        raise UserError("episode 3 is empty")
    except UserError as error:
        raise ValueError("does not validate") from error


def while_tidying_up() -> None:
    try:
        raise UserError("episode 3 is empty")
    finally:
        raise OSError("teardown")


def as_an_argument() -> None:
    raise RuntimeError("in a thread", UserError("episode 3 is empty"))


def as_text_of_another_process() -> None:
    raise RuntimeError(
        "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "x.py", line 1, in f\nlmrl.errors.UserError: episode 3 is empty\n'
    )


def while_compiling() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise UserError("episode 3 is empty")

    torch.compile(refuse, backend="eager")(torch.ones(1))


@pytest.mark.parametrize(
    "fails",
    [
        in_a_worker,
        as_a_cause,
        while_tidying_up,
        as_an_argument,
        as_text_of_another_process,
        pytest.param(while_compiling, marks=pytest.mark.slow),
    ],
)
def test_a_user_error_is_found_wherever_it_was_raised(fails: Callable[[], None]) -> None:
    with pytest.raises(Exception) as caught:
        fails()
    assert str(user_error_in(caught.value)) == "episode 3 is empty"


def test_a_signal_to_end_is_an_exception_inside_the_block() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended, terminated_by_exception():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever has a handler keeps it
        with terminated_by_exception():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_errors_hold_none() -> None:
    try:
        raise KeyError("x")
    except KeyError as error:
        assert user_error_in(error) is None


def test_a_user_error_that_was_dealt_with_is_not_shown() -> None:
    try:
        try:
            raise UserError("tried first")
        except UserError:
            raise KeyError("x") from None
    except KeyError as error:
        assert user_error_in(error) is None


@cases(
    ("interval", "value", "message"),
    [
        ("[0.5, 1)", 1, "x must be in [0.5, 1), got 1"),
        ("(0, 1]", 0.0, r"x must be in (0, 1], got 0.0"),
        ("[1, inf)", 0, "x must be at least 1, got 0"),
        ("(0, inf)", 0, "x must be above 0, got 0"),
        ("[0, inf)", math.nan, "x must be a finite number, at least 0, got nan"),
        ("[0, inf)", math.inf, "x must be a finite number, at least 0, got inf"),
        ("[0, 1]", "much", "x must be a finite number, in [0, 1], got 'much'"),
        ("(-inf, inf)", -math.inf, "x must be a finite number, got -inf"),
    ],
)
def test_a_number_outside_of_its_range_is_refused(interval: str, value: float, message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_range(interval, y=None, x=value)
    assert str(caught.value) == message


@cases(("interval", "value"), [("[0, 1]", 0), ("[0, 1]", 1.0), ("(0, 1)", 0.5), ("[2, inf)", 2)])
def test_the_ends_belong_to_a_range_or_not(interval: str, value: float) -> None:
    check_range(interval, x=value)


def test_a_name_that_is_not_known_is_refused() -> None:
    check_choice(("token", "turn"), level="turn", known="token")
    with pytest.raises(UserError, match=r"^unknown level 'word'; known: token, turn$"):
        check_choice(("turn", "token"), lambda_level="turn", level="word")


@cases(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "a.ckpt"),
            r"a\.ckpt: No space left on device; free some space",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "/x: Permission denied; change its permissions, or"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            r"Too many open files; raise the limit \(ulimit -n\), or use fewer",
        ),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "data"), "data: Is a directory; name a file, not a folder"),
        (
            OSError(errno.ENOENT, "No such file", "a\n\x1b]2;b", None, "c"),
            r"a \?\]2;b to c: No such file; check the path",
        ),
        (OSError("odd\n\nlines \x1b[31m"), r"odd lines \?\[31m"),
        (MemoryError(), r"memory ran out \(MemoryError\): smaller batches"),
        (pa.ArrowMemoryError("malloc of size 99"), r"memory ran out \(malloc of size 99\)"),
        (
            RuntimeError("PytorchStreamWriter failed writing file data/0"),
            "a file could not be written .* free some space",
        ),
        (RuntimeError("shapes differ"), None),
        (KeyError("x"), None),
    ],
)
def test_what_the_machine_refuses_is_said_in_one_line(error: Exception, said: str | None) -> None:
    found = system_error(error)
    assert (found is None) == (said is None)
    if found is not None and said is not None:
        assert re.match(said, found) and "\n" not in found


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device", "x"), MemoryError("of 9 GB")])
def test_the_command_line_shows_no_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr("lmrl.commands.data.dataset_stats", refused)
    assert main(["data", "stats", "x.parquet"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and len(said.err.splitlines()) == 1
    monkeypatch.setenv("LMRL_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["data", "stats", "x.parquet"])


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The real thing, by a limit on the size of files."""
    path = tmp_path / "e.parquet"
    path.write_text("before")
    words = ["data", "generate", "maze_fo", "--size", "300", "--out", str(path), "--overwrite"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        code = main(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert re.fullmatch(r"error: .*File too large; free some space, or choose another folder.*\n", said.err)
    assert (os.listdir(tmp_path), path.read_text()) == (["e.parquet"], "before")


def test_only_packages_of_this_project_are_recommended() -> None:
    """A file can word the name of a module, and so what is installed."""
    assert explain_library(ModuleNotFoundError(name="peft.tuners")) == (
        "the package peft is not installed: pip install 'lmrl[lora]'"
    )
    assert explain_library(ModuleNotFoundError(name="rich")) == "the package rich is not installed: pip install rich"
    for name in ("evil_mod", "ric", "rich2", "x; rm"):
        told = explain_library(ModuleNotFoundError(name=name))
        assert told is not None and repr(name) in told and "pip" not in told
