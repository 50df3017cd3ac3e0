"""The plan of a results table: its cells, each after the one it starts from, and what of them is done."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lmrl.checkpoints.reading import read_checkpoint, weights_of
from lmrl.data.recording import dataset_path
from lmrl.envs import registry
from lmrl.envs.registry import policy_names
from lmrl.errors import UserError, unknown
from lmrl.evaluation.evaluate import default_episodes
from lmrl.evaluation.records import DATA, seed_folder
from lmrl.evaluation.result_json import read_json
from lmrl.evaluation.tuning import BETAS, TEMPERATURES, TUNED, has_weights
from lmrl.reproduce import protocol
from lmrl.utils.configuration import base_of, configs_folder, configuration, max_steps_of, value_at


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and a digest of all that its outcome depends on."""

    name: str
    """``generate``, ``fit``, ``evaluate``, ``evaluate_last``, ``tune``, ``evaluate_tuned`` or ``select_at_25``; names
    its record in ``timing.json``."""
    words: tuple[str, ...]
    """The arguments of ``lmrl``."""
    recipe: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One folder of the table: a dataset, a scripted policy, or a training and its evaluations."""

    task: str
    algorithm: str
    seed: int
    folder: Path
    after: str | None
    """Name of the cell that has to be finished before: the dataset, or the run whose weights it starts from."""
    steps: tuple[Step, ...]
    max_steps: int | None = None
    """Length of the training."""

    @property
    def name(self) -> str:
        """Return ``maze_fo/ilql``, or ``maze_fo/ilql seed 1`` for other seeds than 0."""
        return cell_name(self.task, self.algorithm, self.seed)

    @property
    def fit(self) -> Step | None:
        """Return the training, if there is one."""
        for step in self.steps:
            if step.name == "fit":
                return step
        return None

    @property
    def recipe(self) -> str:
        """Return a digest of all steps."""
        return digest(*[step.recipe for step in self.steps])


def cell_name(task: str, algorithm: str, seed: int) -> str:
    """Return the name of a cell; see `Cell.name`."""
    name = f"{task}/{algorithm}"
    return f"{name} seed {seed}" if seed else name


def digest(*parts: Any) -> str:
    """Return sixteen hexadecimal digits that change with any part."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def is_done(cell: Cell, step: Step) -> bool:
    """Whether a step was finished before, with the same recipe, and its outcome is there."""
    if step.name.startswith(("evaluate", "select")) and not _has_scores(cell, step):
        return False
    if step.name == "tune" and not _has_settings(cell):
        return False
    record = read_json(cell.folder / "timing.json").get(step.name, {})
    return isinstance(record, dict) and record.get("recipe") == step.recipe and "seconds" in record


def is_finished(cell: Cell) -> bool:
    """Whether a cell was finished before, with the same recipes, and its evaluation is of its present weights."""
    if read_json(cell.folder / "cell.json").get("recipe") != cell.recipe:
        return False
    for step in cell.steps:
        if step.name == "evaluate" and not _has_scores(cell, step):
            return False
    return True


def _has_scores(cell: Cell, step: Step) -> bool:
    """Whether an evaluation has scores, and they are of the weights that the run has now."""
    scores = read_json(Path(_after(step, "--out")) / "scores.json")
    if cell.fit is None or not scores:
        return bool(scores)
    try:
        weights = weights_of(_after(step, "--policy"))
    except UserError:  # the checkpoints of a finished cell may be gone
        return True
    return weights is None or scores.get("provenance", {}).get("weights") == weights


def _has_settings(cell: Cell) -> bool:
    """Whether settings were chosen, and for the weights that the run has now."""
    chosen = read_json(cell.folder / TUNED)
    return bool(chosen) and has_weights(cell.folder, chosen.get("weights"))


def _after(step: Step, option: str) -> str:
    return step.words[step.words.index(option) + 1]


class Standing(Enum):
    """The state of a training, by what has to be done about it."""

    DONE = "nothing: it is finished"
    RESUME = "resume from last.ckpt"
    FRESH = "train from the beginning"


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a training was when a checkpoint was saved."""

    step: int
    """Optimizer steps."""
    tokens: int | None
    """Action tokens that were learned from, counted with repetitions; None if they were not counted."""
    weights: str | None
    """Hash of the weights; None if the checkpoint holds none."""
    tflop: float | None
    """Compute so far, by `lmrl.callbacks.ComputeBudget`; None without one."""


def reached(checkpoint: Path) -> Reached | None:
    """Read how far a training was at a checkpoint; None if the checkpoint is missing or cannot be read."""
    try:
        content = read_checkpoint(checkpoint) if checkpoint.is_file() else None
    except UserError:
        return None
    if content is None:
        return None
    entry = content["lmrl"]
    weights = entry.get("made_with", {}).get("weights")
    spent = content.get("callbacks", {}).get("ComputeBudget", {}).get("spent")
    tflop = None if spent is None else float(spent) / 1e12
    return Reached(int(content["global_step"]), entry.get("action_tokens"), weights, tflop)


def standing(cell: Cell, fit: Step) -> Standing:
    """Return what has to be done about a training. A run of the same recipe is resumed, any other run is ignored.

    A training that was killed after its last step is resumed, too: `lmrl fit` then only writes the missing files.
    """
    if is_done(cell, fit):
        return Standing.DONE
    same_recipe = read_json(cell.folder / "timing.json").get("fit", {}).get("recipe") == fit.recipe
    return Standing.RESUME if same_recipe and reached(cell.folder / "last.ckpt") is not None else Standing.FRESH


SCRATCH = "scratch"
"""The name for random weights instead of published ones."""


@dataclass(frozen=True, slots=True)
class Preset:
    """How the cells of a table are made, and the folder for its runs."""

    runs: Path
    """Default folder of runs."""
    scale: str | None = None
    """A configuration file over that of each cell."""
    settings: str | None = None
    """A folder of configuration files; those of a cell's task and algorithm follow."""
    weights: str | None = None
    """Weights for cells that start from no other cell; None: those of their configuration."""
    device: str | None = None
    """Where trained policies are evaluated; None: on the CPU."""
    is_protocol: bool = False
    """Whether all methods spend and choose equally much (`docs/reference/protocol.md`)."""

    @property
    def on_gpu(self) -> bool:
        """Whether trained policies are evaluated on a GPU."""
        return (self.device or "").startswith("cuda")

    def overlays(self, task: str, algorithm: str) -> list[str]:
        """Return the configuration files over ``configs/<task>/<algorithm>.yaml``, in their order.

        Raises:
            UserError: the protocol has no such row.
        """
        if self.is_protocol and task not in protocol.rows():
            raise unknown("row of the protocol", task, protocol.rows())
        files = [] if self.scale is None else [self.scale]
        names = [f"{self.settings}/{task}/{algorithm}.yaml"]
        if self.is_protocol and algorithm != protocol.START:
            method = protocol.method_of(algorithm)
            names = [f"{self.settings}/{task}.yaml", f"{self.settings}/{task}/{method}.yaml", *names]
        for name in dict.fromkeys(names):
            # The paper has only some of the algorithms, and not every method needs settings of its own.
            if self.settings is not None and (configs_folder() / name).is_file():
                files.append(f"configs/{name}")
        return files


PRESETS = {
    "cpu": Preset(Path("runs")),
    "gpu": Preset(Path("runs/gpu"), "configs/scale/gpt2.yaml", "paper", "gpt2", "cuda"),
    "protocol": Preset(Path("runs/protocol"), settings=protocol.FOLDER, is_protocol=True),
}


def preset_of(name: str) -> Preset:
    """Return a preset by its name.

    Raises:
        UserError: there is no such preset.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def check_weights(preset: Preset, weights: str | None) -> None:
    """Make sure that weights are only given with a preset whose models have published weights.

    Raises:
        UserError: they were given with another preset.
    """
    if weights is not None and preset.weights is None:
        raise UserError(f"weights go with the preset gpu, got {weights!r}; the others train small models from scratch")


PLAYERS = ("random", "behaviour", "optimal")
"""Scripted policies of the table, where a task has them."""
_TRIAL_STEPS = 60
"""Optimizer steps of a trial run."""
_SLOTS_ON_GPU = 256
"""Games in parallel if a trained policy runs on a GPU, which reads many tokens as fast as few."""
_TRIAL_COMPUTE = 1e-9
"""TFLOP that any first step uses up."""
_ROUNDS = "lmrl.callbacks.RolloutCollection"
_TRIAL_SETTINGS = ("--temperatures", "1", "0.5", "--betas", "1", "8")
"""Decoding settings of a trial run; a policy without values ignores the betas."""


@dataclass(frozen=True, slots=True)
class Order:
    """The specification of a table: which cells it has, and how they are made."""

    tasks: Sequence[str]
    algorithms: Sequence[str]
    """Names of configuration files in ``configs/<task>/``; none: all methods of the protocol."""
    runs: Path
    seeds: Sequence[int] = (0,)
    """Seeds of training (weights, order of batches, rounds) and evaluation; those of dataset and split are fixed."""
    episodes: int | None = None
    """Episodes of each evaluation; None: `lmrl.evaluation.default_episodes`."""
    overrides: Sequence[str] = ()
    """Further arguments of every ``fit``."""
    env: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environments, for data, training and evaluation."""
    preset: Preset = PRESETS["cpu"]
    weights: str | None = None
    """Weights for cells that start from no other cell; None: those of the preset; ``scratch``: random ones."""
    few_games: int | None = None
    """Number of games per round for a trial run, in which trainings take few steps and play no other games."""
    data_size: int | None = None
    """Episodes in the datasets; None: as many as the task has."""


def plan(order: Order) -> list[Cell]:
    """Return all cells, those of the first seed first. An algorithm that another one starts from is added if missing.

    Raises:
        UserError: an unknown task, an algorithm without a configuration file, weights for a preset without.
    """
    check_weights(order.preset, order.weights)
    cells: dict[str, Cell] = {}
    tasks = [registry.task(task).name for task in order.tasks]
    for seed in order.seeds:
        for task in tasks:
            # The dataset and the scripted policies do not depend on the training seed.
            if seed == order.seeds[0]:
                data = _data(order, task)
                cells[data.name] = data
                for name in PLAYERS:
                    if name in policy_names(task):
                        player = _player(order, task, seed, name)
                        cells[player.name] = player
            for algorithm in order.algorithms or protocol.methods(task):
                _Training(order, task, seed, cells).add(algorithm)
    return list(cells.values())


def dataset_of(order: Order, task: str) -> Path:
    """Return the dataset that the configuration files train on."""
    return dataset_path(task, order.data_size or registry.task(task).dataset_size, 0, order.env)


def _data(order: Order, task: str) -> Cell:
    size = order.data_size or registry.task(task).dataset_size
    words = ["data", "generate", task, "--size", str(size), *env_words(order.env)]
    recipe = digest(words, dataset_of(order, task).name)
    return Cell(task, DATA, 0, order.runs / task / DATA, None, (Step("generate", tuple(words), recipe),))


def _player(order: Order, task: str, seed: int, name: str) -> Cell:
    folder = seed_folder(order.runs, seed) / task / name
    return Cell(task, name, seed, folder, None, (_evaluation(order, task, seed, name, folder / "evaluation"),))


def _evaluation(order: Order, task: str, seed: int, policy: str, out: Path, base: str = "", *more: str) -> Step:
    episodes = default_episodes(task, order.env) if order.episodes is None else order.episodes
    words = ["evaluate", task, "--policy", policy, "--episodes", str(episodes), "--seed", str(seed)]
    words += [*env_words(order.env), *more]
    return Step(out.name.replace("evaluation", "evaluate"), (*words, "--out", out.as_posix()), digest(base, words))


def env_words(env: Mapping[str, Any]) -> list[str]:
    """Return arguments of an environment as words of a command."""
    return ["--env", *[f"{name}={value}" for name, value in env.items()]] if env else []


@dataclass(frozen=True, slots=True)
class _Training:
    """Makes the trained cells of a task and seed."""

    order: Order
    task: str
    seed: int
    cells: dict[str, Cell]
    started: list[str] = field(default_factory=list)
    """The cells that are being added, each of which starts from the next."""

    def add(self, algorithm: str) -> Cell:
        """Return the cell of an algorithm. The cell that it starts from is added before it."""
        folder = seed_folder(self.order.runs, self.seed) / self.task / algorithm
        name = cell_name(self.task, algorithm, self.seed)
        if name in self.cells:
            return self.cells[name]
        if name in self.started:
            raise UserError(
                f"overrides hold for every training, so {name} would start from itself: give model.pretrained as a "
                "folder that is not in runs"
            )
        self.started.append(name)
        preset = self.order.preset
        method = protocol.method_of(algorithm) if preset.is_protocol else algorithm
        words = ["fit"]
        for file in (f"configs/{self.task}/{method}.yaml", *preset.overlays(self.task, algorithm)):
            words += ["--config", file]
        config = configuration([*words, *self.order.overrides])
        start = base_of(config, self.task)
        base = None if start is None else self.add(start)
        # The user's overrides come last, so that they win.
        words += ["--seed_everything", str(self.seed), *self._elsewhere(folder, base), *self._data_words()]
        words += [*self._weights(config, base), *_shortened(config, self.order.few_games), *self.order.overrides]
        # The recipe changes with the content of the files, with the command, and with that of the run it starts from.
        whole_config = configuration(words)
        merged = OmegaConf.to_container(whole_config, resolve=False)
        base_recipe = None if base is None else base.steps[0].recipe
        fit = Step("fit", tuple(words), digest(merged, words, base_recipe))
        after = f"{self.task}/{DATA}" if base is None else base.name
        steps = (fit, *self._evaluations(folder, fit.recipe))
        cell = Cell(self.task, algorithm, self.seed, folder, after, steps, max_steps_of(whole_config))
        self.started.remove(name)
        self.cells[name] = cell
        return cell

    def _elsewhere(self, folder: Path, base: Cell | None) -> list[str]:
        """Return overrides for runs with another folder, or another start, than the configuration files say."""
        if folder.parent.parent == Path("runs") and not self.order.preset.is_protocol:
            return []
        words = [f"--trainer.default_root_dir={folder.as_posix()}"]
        return words if base is None else [*words, f"--model.init_args.pretrained={base.folder.as_posix()}"]

    def _data_words(self) -> list[str]:
        words = [f"--data.init_args.env={json.dumps(dict(self.order.env))}"] if self.order.env else []
        return words if self.order.data_size is None else [*words, f"--data.init_args.size={self.order.data_size}"]

    def _weights(self, config: Any, base: Cell | None) -> list[str]:
        weights = self.order.weights or self.order.preset.weights
        begun = base is not None or value_at(config, "model.init_args.pretrained") is not None
        return [] if begun or weights in (None, SCRATCH) else [f"--model.init_args.pretrained={weights}"]

    @property
    def _device(self) -> list[str]:
        """Words that say where trained policies play."""
        preset = self.order.preset
        if preset.device is None:
            return []
        slots = ["--slots", str(_SLOTS_ON_GPU)] if preset.on_gpu else []
        return ["--device", preset.device, *slots]

    def _evaluations(self, folder: Path, recipe: str) -> tuple[Step, ...]:
        device = self._device

        def step(policy: Path, out: str, *more: str, of: str = recipe) -> Step:
            options = (*device, *more)
            return _evaluation(self.order, self.task, self.seed, policy.as_posix(), folder / out, of, *options)

        if self.order.preset.is_protocol:
            return self._equal_evaluations(folder, recipe, step)
        tried = registry.task(self.task).tuning
        # The tuned evaluation depends on the choice of settings, and that on the training.
        games = min(tried.episodes, self.order.episodes or tried.episodes)
        words = ["tune", folder.as_posix(), "--episodes", str(games), *env_words(self.order.env), *device]
        if tried.top_ps:
            words += ["--top_ps", *map(str, tried.top_ps)]
        if self.order.few_games is not None:
            words += _TRIAL_SETTINGS
        tuning = Step("tune", tuple(words), digest(recipe, words, TEMPERATURES, BETAS))
        tuned = step(folder, "evaluation_tuned", "--tuned", of=tuning.recipe)
        return step(folder, "evaluation"), step(folder / "last.ckpt", "evaluation_last"), tuning, tuned

    def _equal_evaluations(self, folder: Path, recipe: str, step: Callable[..., Step]) -> tuple[Step, ...]:
        """Return the evaluations of the protocol: as many settings and games for each method."""
        games = min(protocol.GAMES, self.order.episodes or protocol.GAMES)
        words = ["tune", folder.as_posix(), "--episodes", str(games), *env_words(self.order.env), *self._device]
        for option, values in protocol.settings_tried(folder.name).items():
            words += [f"--{option}", *map(str, values)]
        tuning = Step("tune", tuple(words), digest(recipe, words))
        steps = [step(folder, "evaluation"), tuning, step(folder, "evaluation_tuned", "--tuned", of=tuning.recipe)]
        if folder.name != protocol.START:
            for name in protocol.EARLIER:
                steps.append(step(folder / name, f"evaluation_{name}", "--tuned", of=tuning.recipe))
                steps.append(self._selection(folder, folder / name, name, games, tuning.recipe))
            steps.append(self._selection(folder, folder, protocol.END, games, tuning.recipe))
        return tuple(steps)

    def _selection(self, folder: Path, policy: Path, name: str, games: int, recipe: str) -> Step:
        """Return the evaluation by which one of the policies of a run is chosen.

        Its games are not those of `lmrl tune`: that the best of the settings won there is partly luck, from which the
        last policy alone would profit.
        """
        words = ["evaluate", self.task, "--policy", policy.as_posix(), "--episodes", str(games), "--seed", "1"]
        words += [*env_words(self.order.env), "--tuned", "--selection", *self._device]
        out = folder / f"selection_{name}"
        return Step(f"select_{name}", (*words, "--out", out.as_posix()), digest(recipe, words))


def _shortened(config: Any, few_games: int | None) -> list[str]:
    """Return overrides for a training of few steps and games that saves itself, plays rounds and learns from them."""
    if few_games is None:
        return []
    kept: list[dict[str, Any]] = [{"class_path": "lmrl.callbacks.KeepLast"}]
    words = []
    if value_at(config, "compute.tflop") is not None:
        words.append(f"--compute.tflop={_TRIAL_COMPUTE}")
    steps = _TRIAL_STEPS
    for callback in value_at(config, "trainer.callbacks") or ():
        if callback.class_path != _ROUNDS:
            continue
        group = int(value_at(callback, "init_args.group_size") or 1)  # a round consists of whole groups
        grouped = {"episodes": few_games} if group == 1 else {"episodes": 2 * group, "group_size": group}
        kept.append({"class_path": _ROUNDS, "init_args": grouped})
        steps = _TRIAL_STEPS // 10
        # A policy that has hardly learned wins none of a few games, so all games have to count.
        if value_at(config, "model.init_args.success"):
            words.append("--model.init_args.success=false")
        break
    return [f"--trainer.max_steps={steps}", f"--trainer.callbacks={json.dumps(kept)}", *words]
