"""The plan of a table of results: cells in order of their starting points, and the progress of each."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lmrl.data.recording import dataset_path
from lmrl.envs import registry
from lmrl.envs.registry import policy_names
from lmrl.errors import UserError, unknown
from lmrl.evaluation.evaluate import default_episodes
from lmrl.evaluation.records import DATA, seed_folder
from lmrl.evaluation.result_json import read_json
from lmrl.evaluation.tuning import BETAS, TEMPERATURES
from lmrl.models.checkpoints import read_checkpoint, weights_of
from lmrl.utils.configuration import base_of, configs_folder, configuration, max_steps_of, value_at

__all__ = [
    "PLAYERS",
    "PRESETS",
    "SCRATCH",
    "Cell",
    "Order",
    "Preset",
    "Reached",
    "Standing",
    "Step",
    "check_weights",
    "dataset_of",
    "digest",
    "env_words",
    "is_done",
    "is_finished",
    "plan",
    "preset_of",
    "reached",
    "standing",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One command and a digest of all that its outcome depends on."""

    name: str
    """``generate``, ``fit``, ``evaluate``, ``evaluate_last``, ``tune`` or ``evaluate_tuned``; names its record in
    ``timing.json``."""
    words: tuple[str, ...]
    """After ``lmrl``."""
    recipe: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One folder of the table: a dataset, a scripted player, or a training and what it plays."""

    task: str
    algorithm: str
    seed: int
    folder: Path
    after: str | None
    """Name of the cell that has to be there before: the dataset, or whose weights it starts from."""
    steps: tuple[Step, ...]
    max_steps: int | None = None
    """Length of the training."""

    @property
    def name(self) -> str:
        """``maze_fo/ilql``, with other seeds than 0 ``maze_fo/ilql seed 1``."""
        return f"{self.task}/{self.algorithm}" + (f" seed {self.seed}" if self.seed else "")

    @property
    def fit(self) -> Step | None:
        """The training, if there is one."""
        return next((step for step in self.steps if step.name == "fit"), None)

    @property
    def recipe(self) -> str:
        """A digest of all steps."""
        return digest(*(step.recipe for step in self.steps))


def digest(*parts: Any) -> str:
    """Sixteen letters that change with any part."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def is_done(cell: Cell, step: Step) -> bool:
    """Whether a step was finished before, from the very same recipe."""
    if step.name.startswith("evaluate") and not _is_played(cell, step):
        return False
    record = read_json(cell.folder / "timing.json").get(step.name, {})
    return isinstance(record, dict) and record.get("recipe") == step.recipe and "seconds" in record


def is_finished(cell: Cell) -> bool:
    """Whether the whole cell was."""
    return read_json(cell.folder / "cell.json").get("recipe") == cell.recipe and all(
        _is_played(cell, step) for step in cell.steps if step.name == "evaluate"
    )


def _is_played(cell: Cell, step: Step) -> bool:
    """Whether the scores of an evaluation are there, and of the weights that the run has now."""
    scores = read_json(Path(_after(step, "--out")) / "scores.json")
    if cell.fit is None or not scores:
        return bool(scores)
    try:
        weights = weights_of(_after(step, "--policy"))
    except UserError:  # the checkpoints of a finished cell may be gone
        return True
    return weights is None or scores.get("provenance", {}).get("weights") == weights


def _after(step: Step, option: str) -> str:
    return step.words[step.words.index(option) + 1]


class Standing(Enum):
    """What is to be done about a training."""

    DONE = "nothing: it is finished"
    RESUME = "go on from last.ckpt"
    FRESH = "train from the beginning"


@dataclass(frozen=True, slots=True)
class Reached:
    """The facts that a checkpoint records about itself."""

    step: int
    """Optimizer steps."""
    tokens: int | None
    """Action tokens learned from, each time anew; None if it was not counted."""
    weights: str | None
    """Hash of the weights; None if it does not say."""


def reached(checkpoint: Path) -> Reached | None:
    """How far a checkpoint is; None if there is none that can be read."""
    try:
        content = read_checkpoint(checkpoint) if checkpoint.is_file() else None
    except UserError:
        return None
    if content is None:
        return None
    entry = content["lmrl"]
    weights = entry.get("made_with", {}).get("weights")
    return Reached(int(content["global_step"]), entry.get("action_tokens"), weights)


def standing(cell: Cell, fit: Step) -> Standing:
    """What is to be done: a run of the same recipe goes on, any other that is in the folder does not count.

    One that was killed after its last step goes on too: `lmrl fit` then only writes what is missing next to it.
    """
    if is_done(cell, fit):
        return Standing.DONE
    ours = read_json(cell.folder / "timing.json").get("fit", {}).get("recipe") == fit.recipe
    return Standing.RESUME if ours and reached(cell.folder / "last.ckpt") is not None else Standing.FRESH


SCRATCH = "scratch"
"""In place of weights: random ones of the same size."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A size of models and the place where its runs are kept."""

    runs: Path
    """Default folder of runs."""
    scale: str | None = None
    """An overlay for every cell; the paper's settings of its task and algorithm come with it."""
    weights: str | None = None
    """What a cell begins with that starts from no other; None: what its configuration says."""
    device: str | None = None
    """Where trained policies are evaluated; None: on the CPU."""

    def overlays(self, task: str, algorithm: str) -> list[str]:
        """Configuration files over ``configs/<task>/<algorithm>.yaml``, in their order."""
        if self.scale is None:
            return []
        paper = Path("paper", task, f"{algorithm}.yaml")
        return [self.scale, *([f"configs/{paper.as_posix()}"] if (configs_folder() / paper).is_file() else [])]


PRESETS = {
    "cpu": Preset(Path("runs")),
    "gpu": Preset(Path("runs/gpu"), "configs/scale/gpt2.yaml", "gpt2", "cuda"),
}


def preset_of(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UserError: there is none.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def check_weights(preset: Preset, weights: str | None) -> None:
    """Weights are for presets whose models have published ones.

    Raises:
        UserError: they were given for another.
    """
    if weights is not None and preset.weights is None:
        raise UserError(f"weights go with the preset gpu, got {weights!r}; the others train small models from scratch")


PLAYERS = ("random", "behaviour", "optimal")
"""Scripted players of the table, where a task has them."""
_FEW_STEPS = 60
_SLOTS_ON_DEVICE = 256
"""Games side by side where a trained policy does not play on the CPU: a GPU reads many tokens as fast as few."""
_ROUNDS = "lmrl.callbacks.RolloutCollection"


@dataclass(frozen=True, slots=True)
class Order:
    """The specification of a table: its cells, and the way in which they are made."""

    tasks: Sequence[str]
    algorithms: Sequence[str]
    """Names of configuration files in ``configs/<task>/``."""
    runs: Path
    seeds: Sequence[int] = (0,)
    """Of training (weights, order of batches, rounds) and evaluation; dataset and split are always the default ones."""
    episodes: int | None = None
    """Of each evaluation; None: `lmrl.evaluation.default_episodes`."""
    overrides: Sequence[str] = ()
    """Further words for every ``fit``."""
    env: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environments, in the data, in training and in evaluation."""
    preset: Preset = PRESETS["cpu"]
    weights: str | None = None
    """What cells begin with that start from no other, in place of the preset's; ``scratch``: from nothing."""
    few_games: int | None = None
    """Trainings take a few steps, and play so many games per round and none beside; None leaves them as they are."""
    data_size: int | None = None
    """Episodes in the datasets; None: as many as the task has."""


def plan(order: Order) -> list[Cell]:
    """All cells, the first seed's first; an algorithm that another starts from is added if it is missing.

    Raises:
        UserError: an unknown task, an algorithm without a configuration file, weights for a preset without.
    """
    check_weights(order.preset, order.weights)
    cells: dict[str, Cell] = {}
    tasks = [registry.task(task).name for task in order.tasks]
    for seed in order.seeds:
        for task in tasks:
            if seed == order.seeds[0]:
                for cell in (_data(order, task), *_players(order, task, seed)):
                    cells[cell.name] = cell
            for algorithm in order.algorithms:
                _Training(order, task, seed, cells).add(algorithm)
    return list(cells.values())


def dataset_of(order: Order, task: str) -> Path:
    """The dataset that the configuration files train on."""
    return dataset_path(task, order.data_size or registry.task(task).dataset_size, 0, order.env)


def _data(order: Order, task: str) -> Cell:
    size = order.data_size or registry.task(task).dataset_size
    words = ["data", "generate", task, "--size", str(size), *env_words(order.env)]
    recipe = digest(words, dataset_of(order, task).name)
    return Cell(task, DATA, 0, order.runs / task / DATA, None, (Step("generate", tuple(words), recipe),))


def _players(order: Order, task: str, seed: int) -> list[Cell]:
    known = policy_names(task)
    return [_player(order, task, seed, name) for name in PLAYERS if name in known]


def _player(order: Order, task: str, seed: int, name: str) -> Cell:
    folder = seed_folder(order.runs, seed) / task / name
    return Cell(task, name, seed, folder, None, (_evaluation(order, task, seed, name, folder / "evaluation"),))


def _evaluation(order: Order, task: str, seed: int, policy: str, out: Path, base: str = "", *more: str) -> Step:
    episodes = default_episodes(task) if order.episodes is None else order.episodes
    words = ["evaluate", task, "--policy", policy, "--episodes", str(episodes), "--seed", str(seed)]
    words += [*env_words(order.env), *more]
    return Step(out.name.replace("evaluation", "evaluate"), (*words, "--out", out.as_posix()), digest(base, words))


def env_words(env: Mapping[str, Any]) -> list[str]:
    """Arguments of an environment as words of a command."""
    return ["--env", *(f"{name}={value}" for name, value in env.items())] if env else []


@dataclass(frozen=True, slots=True)
class _Training:
    """Makes the cells of one task and seed that are trained."""

    order: Order
    task: str
    seed: int
    cells: dict[str, Cell]

    def add(self, algorithm: str) -> Cell:
        """The cell of an algorithm, after that of what it starts from."""
        folder = seed_folder(self.order.runs, self.seed) / self.task / algorithm
        name = Cell(self.task, algorithm, self.seed, folder, None, ()).name
        if name in self.cells:
            return self.cells[name]
        files = [f"configs/{self.task}/{algorithm}.yaml", *self.order.preset.overlays(self.task, algorithm)]
        words = ["fit", *(word for file in files for word in ("--config", file))]
        given = configuration([*words, *self.order.overrides])
        start = base_of(given, self.task)
        base = None if start is None else self.add(start)
        words += ["--seed_everything", str(self.seed), *self._elsewhere(folder, base), *self._data_words(given)]
        words += [*self._weights(given, base), *_shortened(given, self.order.few_games), *self.order.overrides]
        merged = OmegaConf.to_container(configuration(words), resolve=False)
        fit = Step("fit", tuple(words), digest(merged, words, None if base is None else base.steps[0].recipe))
        after = f"{self.task}/{DATA}" if base is None else base.name
        steps = (fit, *self._evaluations(folder, fit.recipe))
        cell = Cell(self.task, algorithm, self.seed, folder, after, steps, max_steps_of(configuration(words)))
        self.cells[name] = cell
        return cell

    def _elsewhere(self, folder: Path, base: Cell | None) -> list[str]:
        """Overrides for runs that are not kept where the configuration files put them."""
        if folder.parent.parent == Path("runs"):
            return []
        words = [f"--trainer.default_root_dir={folder.as_posix()}"]
        return words if base is None else [*words, f"--model.init_args.pretrained={base.folder.as_posix()}"]

    def _data_words(self, config: Any) -> list[str]:
        words = [f"--data.init_args.env={json.dumps(dict(self.order.env))}"] if self.order.env else []
        return words if self.order.data_size is None else [*words, f"--data.init_args.size={self.order.data_size}"]

    def _weights(self, config: Any, base: Cell | None) -> list[str]:
        weights = self.order.weights or self.order.preset.weights
        begun = base is not None or value_at(config, "model.init_args.pretrained") is not None
        return [] if begun or weights in (None, SCRATCH) else [f"--model.init_args.pretrained={weights}"]

    def _evaluations(self, folder: Path, recipe: str) -> tuple[Step, ...]:
        device = []
        if self.order.preset.device is not None:
            device = ["--device", self.order.preset.device, "--slots", str(_SLOTS_ON_DEVICE)]

        def step(policy: Path, out: str, *more: str, of: str = recipe) -> Step:
            given = (*device, *more)
            return _evaluation(self.order, self.task, self.seed, policy.as_posix(), folder / out, of, *given)

        tried = registry.task(self.task).tuning
        games = min(tried.episodes, self.order.episodes or tried.episodes)
        words = ["tune", folder.as_posix(), "--episodes", str(games), *env_words(self.order.env), *device]
        if tried.top_ps:
            words += ["--top_ps", *map(str, tried.top_ps)]
        tuning = Step("tune", tuple(words), digest(recipe, words, TEMPERATURES, BETAS))
        tuned = step(folder, "evaluation_tuned", "--tuned", of=tuning.recipe)
        return step(folder, "evaluation"), step(folder / "last.ckpt", "evaluation_last"), tuning, tuned


def _shortened(config: Any, few_games: int | None) -> list[str]:
    """Overrides for a training of a few steps and games: it saves itself, plays rounds, and learns from all of them."""
    if few_games is None:
        return []
    kept: list[dict[str, Any]] = [{"class_path": "lmrl.callbacks.KeepLast"}]
    words = []
    steps = _FEW_STEPS
    rounds = [entry for entry in value_at(config, "trainer.callbacks") or () if entry.class_path == _ROUNDS]
    if rounds:
        group = int(value_at(rounds[0], "init_args.group_size") or 1)  # a round is made up of whole groups
        grouped = {"episodes": few_games} if group == 1 else {"episodes": 2 * group, "group_size": group}
        kept.append({"class_path": _ROUNDS, "init_args": grouped})
        steps = _FEW_STEPS // 10
        # A handful of games of a policy that has hardly learned is won by nobody.
        if value_at(config, "model.init_args.success"):
            words.append("--model.init_args.success=false")
    return [f"--trainer.max_steps={steps}", f"--trainer.callbacks={json.dumps(kept)}", *words]
