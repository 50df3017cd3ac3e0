"""Lines about long work, where no bar can move."""

import pytest
from rich.console import Console

from lmrl.utils.log_lines import LogLines


@pytest.mark.parametrize(
    ("is_terminal", "seconds", "quiet", "written"),
    [(False, 0.0, False, "half\n"), (True, 0.0, False, ""), (False, 60.0, False, ""), (False, 0.0, True, "")],
)
def test_a_line_is_written_when_it_is_due(
    is_terminal: bool, seconds: float, quiet: bool, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = LogLines(Console(stderr=True, force_terminal=is_terminal), seconds, quiet=quiet)
    lines.say("half")
    assert capsys.readouterr().err == written


def test_without_a_bar_a_line_is_written_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    LogLines(seconds=0.0).say("half")
    assert capsys.readouterr().err == "half\n"
