"""The site is built without a warning, its links lead somewhere, and the reference is that of the parsers."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lmrl.cli import main, verbs
from lmrl.commands.arguments import command_reference
from tools import build_docs

ROOT = Path(__file__).parent.parent
MISSING = [name for name in ("mkdocs", "material", "mkdocstrings", "latex2mathml") if find_spec(name) is None]


def test_the_reference_has_the_arguments_that_the_parser_has(capsys: pytest.CaptureFixture[str]) -> None:
    reference = command_reference(verbs())
    for name, verb in verbs().items():
        if verb.raw:
            continue
        section = reference.split(f"## lmrl {name}\n")[1].split("\n## ")[0]
        assert main([*name.split(), "--help"]) == 0
        options = set(re.findall(r"^ +(--\w+)", capsys.readouterr().out, re.MULTILINE)) - {"--help", "--print_shtab"}
        assert options == set(re.findall(r"^\| `(--\w+)`", section, re.MULTILINE)), name
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        assert rows and not [line for line in rows if line.endswith("|  |")], f"{name}: an argument is not explained"


@pytest.mark.slow
def test_generated_parts_of_the_docs_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert build_docs.main(["--check"]) == 0, capsys.readouterr().out


def test_of_several_machines_the_newest_record_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_docs, "BENCHMARKS", tmp_path)
    for cpu, date, seconds in (("old", "2026-01-09 09:00 UTC", 9.0), ("new", "2026-01-10 08:00 UTC", 4.0)):
        rows = [{"name": "the first game, drawn", "value": seconds}]
        record = {"machine": {"cpu": cpu, "cores": 2}, "date": date, "rows": rows}
        (tmp_path / f"first_game-{cpu}-2-cores.json").write_text(json.dumps(record), encoding="utf-8")
    assert build_docs.of_first_game().endswith("after 4 s (new, 2 cores).")
    with pytest.raises(FileNotFoundError, match=r"lacks anchors-\*\.json"):
        build_docs.of_anchors()


def test_every_task_with_records_has_a_table_in_the_docs() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in build_docs.PAGES)
    recorded = [path.stem for path in build_docs.RECORDS.glob("*.jsonl")]
    assert recorded and not [task for task in recorded if f"<!-- results of {task} -->" not in pages]


@pytest.mark.nightly
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    if MISSING:
        pytest.skip(f"the site needs {', '.join(MISSING)}: pip install 'lmrl[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "site" / "reference" / "cli" / "index.html").read_text(encoding="utf-8")
    assert all(f"lmrl {name}" in page for name in verbs())
    assert "expectile" in (tmp_path / "site" / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    ilql = (tmp_path / "site" / "reference" / "algorithms" / "ilql" / "index.html").read_text(encoding="utf-8")
    assert ilql.count('display="block"') == 4 and "<mfrac>" in ilql and "arithmatex" not in ilql
    assert "https://cdn" not in ilql
    gallery = (tmp_path / "site" / "reference" / "gallery" / "index.html").read_text(encoding="utf-8")
    assert 'src="../../pictures/losses_maze_fo.png"' in gallery
    assert (tmp_path / "site" / "pictures" / "losses_maze_fo.png").is_file()
    assert {"guide", "reference", "log"} <= {path.name for path in (tmp_path / "site").iterdir()}
    notebook = (tmp_path / "site" / "notebooks" / "1_tasks_and_data" / "index.html").read_text(encoding="utf-8")
    assert "Every task and its data" in notebook and "1_tasks_and_data_0.png" in notebook
    assert "colab-badge" not in notebook, "nothing is loaded from elsewhere"
    assert (tmp_path / "site" / "notebooks" / "1_tasks_and_data_0.png").read_bytes().startswith(b"\x89PNG")
    listed = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "notebooks/1_tasks_and_data/" in listed and "../notebooks/1_tasks" not in listed
