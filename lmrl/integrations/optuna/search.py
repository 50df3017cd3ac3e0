"""Run a sweep: Optuna proposes settings, trials run side by side, and a study on disk remembers the results."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from lmrl.errors import UserError, check_range, unknown
from lmrl.integrations.optuna.space import Choices, Value, as_words, first_values, grid
from lmrl.integrations.optuna.trials import GRID, SAMPLERS, Sweep, Trial, best_of, cell_of, run_trial
from lmrl.reproduce.plan import Step
from lmrl.reproduce.processes import LMRL, CommandFailed, Processes
from lmrl.rollout import episode_seed
from lmrl.utils.files import check_may_replace, locked

__all__ = ["run_sweep"]

if TYPE_CHECKING:
    import optuna

_FILE = "study.db"
_NAME = "lmrl"
_WRITTEN = (_FILE, "check", "trials", "table.csv", "table.json", "best.yaml", "sweep.png")
_RECIPE = "recipe"
_GIVE_UP = 3
"""Failed trials without any success after which the sweep ends: something else than the settings is wrong."""
_SEED_KEY_END = (0, 1)
"""The last numbers of the seed keys of samplers, which a study on disk depends on."""


def run_sweep(
    sweep: Sweep,
    *,
    trials: int,
    jobs: int = 1,
    launcher: Sequence[str] = LMRL,
    console: Console | None = None,
) -> list[Trial]:
    """Try settings until there is the given number of trials, and return all of them, also those of earlier commands.

    The study lies in ``study.db`` of the sweep's folder, and each trial is made in a folder of its own. What was done
    is not done again; a trial that was killed resumes with the settings it had. What trial ``n`` tries follows from the
    seed, ``n`` and the trials that were done when it began (with ``random`` from the seed and ``n`` alone), so a sweep
    that was interrupted tries what an uninterrupted one does, if one trial runs at a time. With ``grid`` trial ``n`` is
    the n-th combination of the choices.

    Args:
        sweep: what is searched.
        trials: how many there are to be in all, failed ones too.
        jobs: how many side by side, each with its share of the cores.
        launcher: the command in front of ``fit`` and ``evaluate``.
        console: where progress is shown; standard output if left out.

    Raises:
        UserError: a number out of its range, or more trials than a grid has combinations; another command works in the
            folder, or it holds a sweep of other settings; an unknown option; the first trials all failed.
    """
    package = import_module("optuna")
    check_range("[1, inf)", trials=trials, jobs=jobs, episodes=sweep.episodes)
    check_range("[0, 4294967295]", seed=sweep.seed)
    if sweep.sampler not in SAMPLERS:
        raise unknown("sampler", sweep.sampler, SAMPLERS)
    if sweep.sampler == GRID and len(grid(sweep.space)) < trials:
        raise UserError(f"the space has {len(grid(sweep.space))} combinations of choices: ask for no more --trials")
    own = _WRITTEN if (sweep.out / _FILE).is_file() else ()
    check_may_replace(sweep.out, own, "sweep", written=_WRITTEN)
    package.logging.set_verbosity(package.logging.WARNING)
    with locked(sweep.out, "sweep folder", "sweep"), Processes(jobs, launcher) as processes:
        study = _study(package, sweep, processes)
        _Search(package, sweep, study, processes, trials, jobs, console or Console()).run()
        return _trials(study)


def _study(package: ModuleType, sweep: Sweep, processes: Processes) -> "optuna.Study":
    """The study in the sweep's folder, or a new one if the run that it would begin with is understood."""
    path = sweep.out / _FILE
    recipe = sweep.recipe
    if not path.is_file():
        # Find mistakes in the configuration before a study remembers it: `lmrl fit` reads it with the first values.
        words = (*sweep.words, *as_words(first_values(sweep.space)), "--print_config")
        try:
            processes.run(Step("check", words, ""), sweep.out / "check")
        except CommandFailed as error:
            raise UserError(str(error).splitlines()[-1].removeprefix("error: ")) from error
    storage = package.storages.RDBStorage(f"sqlite:///{path}")
    study: optuna.Study = package.create_study(
        storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True
    )
    if study.user_attrs.get(_RECIPE) is None:
        study.set_user_attr(_RECIPE, recipe)
    elif study.user_attrs[_RECIPE] != recipe:
        raise UserError(
            f"{sweep.out} holds a sweep of another configuration, space, sampler, seed or number of episodes; "
            "use those, or choose another folder with --out"
        )
    return study


def _sampler(package: ModuleType, sweep: Sweep, number: int) -> "optuna.samplers.BaseSampler":
    """Make the sampler of one trial."""
    # Each trial has its own seed, so that a resumed sweep draws what an uninterrupted one would have drawn.
    seed = episode_seed(sweep.seed, number, *_SEED_KEY_END)
    samplers = package.samplers
    made: optuna.samplers.BaseSampler = (
        samplers.RandomSampler(seed) if sweep.sampler == "random" else samplers.TPESampler(seed=seed)
    )
    return made


def _suggested(trial: "optuna.Trial", sweep: Sweep) -> dict[str, Value]:
    """Return the settings of a trial. A trial that was started before keeps its settings."""
    settings: dict[str, Value] = {}
    for key, part in sweep.space.items():
        if isinstance(part, Choices):
            settings[key] = trial.suggest_categorical(key, part.values)
        elif part.whole:
            settings[key] = trial.suggest_int(
                key, int(part.low), int(part.high), step=int(part.step or 1), log=part.log
            )
        else:
            settings[key] = trial.suggest_float(key, part.low, part.high, step=part.step, log=part.log)
    return settings


def _trials(study: "optuna.Study") -> list[Trial]:
    trials = []
    for trial in study.get_trials(deepcopy=False):
        notes = trial.user_attrs
        trials.append(Trial(trial.number, dict(trial.params), notes.get("scores", {}), notes.get("error", "")))
    return trials


@dataclass(slots=True)
class _Search:
    package: ModuleType
    sweep: Sweep
    study: "optuna.Study"
    processes: Processes
    trials: int
    jobs: int
    console: Console
    running: "dict[Future[dict[str, Any]], optuna.Trial]" = field(default_factory=dict)

    def run(self) -> None:
        # The threads wait for processes, which the `with` block of `Processes` ends, so nothing waits for the threads.
        executor = ThreadPoolExecutor(max_workers=self.jobs)
        killed = [trial for trial in self.study.get_trials() if not trial.state.is_finished()]
        try:
            while True:
                # First the trials that a killed command left unfinished or waiting, then new ones.
                while len(self.running) < self.jobs and (killed or len(self.study.get_trials()) < self.trials):
                    trial = self._begin(killed.pop(0) if killed else None)
                    cell = cell_of(self.sweep, trial.number, _suggested(trial, self.sweep))
                    self._say(trial.number, " ".join(cell.fit.words[-len(self.sweep.space) :] if cell.fit else ()))
                    self.running[executor.submit(run_trial, cell, self.processes)] = trial
                if not self.running:
                    return
                for future in wait(self.running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                    self._end(self.running.pop(future), future)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self, killed: "optuna.trial.FrozenTrial | None") -> "optuna.Trial":
        number = len(self.study.get_trials()) if killed is None else killed.number
        self.study.sampler = _sampler(self.package, self.sweep, number)
        if killed is None and self.sweep.sampler == GRID:
            self.study.enqueue_trial(grid(self.sweep.space)[number])
        if killed is None or killed.state == self.package.trial.TrialState.WAITING:
            return self.study.ask()  # takes what is waiting first
        # Optuna gives a trial made from the id of a running one the values that were suggested to it before.
        again: optuna.Trial = self.package.trial.Trial(self.study, killed._trial_id)
        return again

    def _end(self, trial: "optuna.Trial", future: "Future[dict[str, Any]]") -> None:
        error = future.exception()
        if error is None:
            scores = future.result()
            trial.set_user_attr("scores", scores)
            self.study.tell(trial, scores["return_mean"])
            low, high = scores["return_ci"]
            best = best_of(_trials(self.study))
            assert best is not None
            result = f"return {scores['return_mean']:.3f} [{low:.3f}, {high:.3f}]"
            self._say(trial.number, f"{result}; best: {best.scores['return_mean']:.3f} of trial {best.number}")
        elif isinstance(error, (CommandFailed, OSError, UserError)):
            self._fail(trial, str(error))
        else:
            raise error

    def _fail(self, trial: "optuna.Trial", why: str) -> None:
        trial.set_user_attr("error", why)
        self.study.tell(trial, state=self.package.trial.TrialState.FAIL)
        last = why.splitlines()[-1].removeprefix("error: ")  # the lines before it are the end of the log
        self._say(trial.number, f"FAILED: {last}")
        ended = _trials(self.study)
        if best_of(ended) is None and sum(trial.state == "failed" for trial in ended) >= _GIVE_UP:
            raise UserError(
                f"the first {_GIVE_UP} trials failed, the last one with: {last}; put that right, remove "
                f"{self.sweep.out} and start again (the whole logs: trials/*/log.txt in it)"
            )

    def _say(self, number: int, line: str) -> None:
        shown = f"[{number + 1} of {self.trials}] {line}"
        self.console.print(shown, markup=False, highlight=False, soft_wrap=True)
