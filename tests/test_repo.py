"""Tests of the README and the docs: commands parse, Python runs, links lead somewhere, settings are named."""

import inspect
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from torch.distributed import run as torchrun

from benchmarks import gpu_session, memory
from lmrl import callbacks, losses, modules
from lmrl.cli import main, verbs
from lmrl.commands.arguments import parser_of
from tests.helpers.cases import cases

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
INTEGRATIONS = ROOT / "docs" / "guide" / "integrations.md"
#: Pages whose Python needs an extra.
NEEDS = {"docs/guide/integrations.md": ("trl", "minari", "h5py", "openenv")}
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in _BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _shown(page: Path) -> str:
    """Return the page without its comments."""
    return re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


#: Lines of shell, and of scripts (``sh``), whose comments are for SLURM.
COMMANDS = sorted(
    {
        line.strip()
        for page in PAGES
        for language in ("bash", "sh")
        for block in blocks(page, language)
        for line in block.splitlines()
        if line.strip() and not line.startswith("#")
    }
)


#: An overlay that a sweep has written.
BEST = "sweeps/ilql/best.yaml"


def test_there_is_something_to_check() -> None:
    shown = {" ".join(line.split()[1:3]) for line in COMMANDS if line.startswith("lmrl ")}
    assert all(any(words.startswith(verb) for words in shown) for verb in verbs()), "the docs show every command"
    assert "make quickstart" in COMMANDS


def _commands_of(page: Path) -> list[str]:
    lines = {line.strip() for line in page.read_text(encoding="utf-8").splitlines()}
    return [line for line in COMMANDS if line in lines]


@cases("page", [page for page in PAGES if _commands_of(page)])
def test_commands_of_a_page_are_understood(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in _commands_of(page):
        if " fit " not in line:
            _check_command(line, tmp_path, capsys)


# Reading a configuration with all its classes takes a second.
@pytest.mark.slow
@cases("line", [line for line in COMMANDS if " fit " in line])
def test_trainings_of_the_docs_are_understood(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _check_command(line, tmp_path, capsys)


def _check_command(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(line, comments=True)
    if BEST in words:
        (tmp_path / "best.yaml").write_text("model:\n  init_args:\n    lr: 0.001\n", encoding="utf-8")
        words[words.index(BEST)] = str(tmp_path / "best.yaml")
    if program == "torchrun":
        started = torchrun.parse_args(words)
        assert started.module
        program, *words = started.training_script, *started.training_script_args
    elif program == "srun":
        program, *words = words
    if program == "ray":
        pytest.importorskip("ray", reason="lines for clusters are read by Ray: pip install 'lmrl[ray]'")
        commands = import_module("ray.scripts.scripts").cli.commands
        started = words[words.index("--") + 1 :] if words[0] == "symmetric-run" else []
        commands["start"].make_context("start", _start_words(words))
        if not started:
            return
        program, *words = started
    if program == "make":
        subprocess.run(["make", "--dry-run", *words], cwd=ROOT, check=True, capture_output=True)
    elif program == "benchmarks/gpu_session.sh":
        jobs = {job.name for job in gpu_session.read_queue()}
        assert set(gpu_session.parser().parse_args(words).jobs) <= jobs
    elif words[:1] == ["fit"]:
        assert program == "lmrl"
        assert main([*words, "--print_config"]) == 0, capsys.readouterr().err
    elif words in (["--help"], ["--version"]):
        assert main(words) == 0
    else:
        assert program == "lmrl", f"no rule says how to check {line!r}"
        name = next(name for name in verbs() if words[: len(name.split())] == name.split())
        module, function = verbs()[name].target.split(":")
        parser = parser_of(getattr(import_module(module), function), f"lmrl {name}")
        parser.parse_args(words[len(name.split()) :])


def _start_words(words: list[str]) -> list[str]:
    """Return the words of ``ray start``, or those that ``ray symmetric-run`` passes on to it."""
    if words[0] == "start":
        return words[1:]
    assert words[0] == "symmetric-run"
    given = words[1 : words.index("--")]
    for own in ("--address", "--min-nodes"):
        place = given.index(own)
        del given[place : place + 2]
    return given


@cases("page", [page for page in PAGES if blocks(page, "yaml")])
def test_the_yaml_of_a_page_is_one(page: Path) -> None:
    for block in blocks(page, "yaml"):
        assert yaml.safe_load(block)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
@pytest.mark.slow
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDS.get(name_of(page), ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.delenv("LMRL_DATA", raising=False)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # what a page defines can be pickled
    for block in blocks(page, "python"):
        if not _is_for_agilerl(block):
            exec(compile(block, name_of(page), "exec"), module.__dict__)


def _is_for_agilerl(block: str) -> bool:
    """Return whether the block needs AgileRL, which has an environment of its own (`make agilerl`)."""
    return "from agilerl" in block


@pytest.mark.slow
def test_the_python_for_agilerl_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("agilerl")
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks(INTEGRATIONS, "python") if _is_for_agilerl(block)]
    exec(compile(block, name_of(INTEGRATIONS), "exec"), {"__name__": "page"})


def test_links_lead_somewhere() -> None:
    drawn = ROOT / "docs" / "pictures"  # made with the site, whose build refuses links to missing pictures
    broken = []
    for page in PAGES:
        for target in _LINK.findall(_shown(page)):
            path = (page.parent / target).resolve()
            if "://" not in target and not path.exists() and path.parent != drawn:
                broken.append(f"{name_of(page)}: {target}")
    assert not broken


@cases(
    "name",
    [
        *("BC", "FilteredBC", "MC", "ILQL", "QSFT", "AWR", "ArCHer", "ReturnConditionedBC"),
        *("PPO", "GRPO", "GiGPO", "HGPO", "GAGPO", "OnlineFilteredBC"),
    ],
)
def test_an_algorithms_page_names_all_its_settings(name: str) -> None:
    module = getattr(modules, name)
    page = (ROOT / "docs" / "reference" / "algorithms" / f"{module.name}.md").read_text(encoding="utf-8")
    own = inspect.signature((modules.LanguageModule if name == "BC" else module).__init__).parameters.values()
    settings = [p.name for p in own if p.name != "self" and p.kind is p.POSITIONAL_OR_KEYWORD]
    assert settings
    assert not [setting for setting in settings if f"`{setting}`" not in page]


def test_the_api_page_has_all_algorithms_and_callbacks() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: lmrl\.(\w+\.\w+)$", page, re.MULTILINE))
    own = {name for name in modules.__all__ if inspect.isclass(getattr(modules, name))} - {"ValueModule"}
    assert {f"modules.{name}" for name in own} | {f"callbacks.{name}" for name in callbacks.__all__} <= listed


@cases(
    ("name", "terms", "unused"),
    [
        ("mc", losses.MCLoss, ()),
        ("ilql", losses.ILQLLoss, ()),
        ("qsft", losses.QSFTLoss, ()),
        ("awr", losses.AWRLoss, ()),
        ("archer", losses.ArCHerLoss, ()),
        ("ppo", losses.PolicyLoss, ("kl_loss",)),
        ("grpo", losses.PolicyLoss, ("value_loss",)),
    ],
)
def test_every_term_of_a_loss_is_a_documented_key(name: str, terms: type, unused: tuple[str, ...]) -> None:
    page = (ROOT / "docs" / "reference" / "logged_keys.md").read_text(encoding="utf-8")
    fields = [field for field in inspect.get_annotations(terms) if field not in ("loss", *unused)]
    assert fields
    missing = [f"{name}/{field}" for field in fields if f"`{name}/{field}`" not in page]
    assert not missing, "docs/reference/logged_keys.md needs a row for each"


def test_what_ci_installs_agrees_with_the_project_and_the_constraints() -> None:
    """If this is red, run `make pins`."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    folder = ROOT / "requirements"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [Requirement(text) for text in [*project["dependencies"], *extras["dev"], *extras["textnav"]]]
    listed = (folder / "ci.txt").read_text(encoding="utf-8").replace(" \\\n", "")
    tested = dict(re.findall(r"^([a-z0-9-]+)==(\S+)(?: +--hash=sha256:[0-9a-f]{64})+$", listed, re.MULTILINE))
    assert len(tested) == len(listed.splitlines()) - 1, "each line but the first has a version and hashes"
    lowest = dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", (folder / "lowest.txt").read_text(), re.MULTILINE))
    for requirement in needed:
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(tested[name]), f"ci.txt: {name}"
        assert requirement.specifier.contains(lowest[name]), f"lowest.txt: {name}"
    for name in ("lightning", "peft", "torch", "transformers"):  # nothing else requires newer versions of them
        bounds = [str(requirement.specifier) for requirement in needed if requirement.name == name]
        assert f">={'.'.join(lowest[name].split('.')[:2])}" in bounds, name
    constraints = (folder / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition(" ;")[0] for line in constraints}
    for name, version in tested.items():
        assert f"{name}=={version}" in pinned or name == "setuptools"


def test_large_files_are_refused_outside_the_zoo(tmp_path: Path) -> None:
    sizes = {"fits.bin": 500_000, "large.bin": 500_001, "zoo/large.bin": 500_001}
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    command = [sys.executable, str(ROOT / "tools" / "check_file_size.py"), *sizes, "deleted.bin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["large.bin"]
    done = subprocess.run([*command[:2], "fits.bin"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_memory_in_the_docs_is_what_the_formula_gives() -> None:
    assert memory.table() in (ROOT / "docs" / "guide" / "scale.md").read_text(encoding="utf-8")
    published = {"GPT-2": 124_439_808, "Llama 3.1 8B": 8_030_261_248, "Llama 3.1 70B": 70_553_706_496}
    assert {model.name: model.total() for model in memory.MODELS if model.name in published} == published
