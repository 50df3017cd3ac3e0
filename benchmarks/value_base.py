"""Measure what the values of MC and ILQL add to filtered BC, by using its language model in their runs, not BC's.

If offline RL is below filtered BC because it plays a worse policy, some beta above 0 is better than 0 here. If none is,
its values are the reason. The best of many settings looks better than it is on the games that chose it, so settings are
chosen on the games for selection and compared on those for evaluation. Needs finished runs: ``lmrl reproduce TASK
--algorithms filtered_bc mc ilql``.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from benchmarks.row import Row
from lmrl.envs import registry
from lmrl.errors import UserError
from lmrl.evaluation.evaluate import evaluate
from lmrl.evaluation.intervals import bootstrap_mean
from lmrl.modules import LanguageModule
from lmrl.modules.load import load_module
from lmrl.modules.values import ValueModule

__all__ = ["Played", "played", "run"]

RUNS = Path("runs")
GAMES = 256
TEMPERATURES = (1.0, 0.5, 0.25)
BETAS = (0.5, 1.0, 2.0, 4.0, 8.0)


class Played(NamedTuple):
    """A decoding setting and the return of each game."""

    temperature: float
    beta: float
    returns: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean return over the games."""
        return sum(self.returns) / len(self.returns)


def played(task: str, values: ValueModule, policy: LanguageModule, games: int = GAMES) -> tuple[Played, Played]:
    """Return the best setting without values and the best with them, with returns of games that did not choose them.

    Args:
        task: the task to play.
        values: the module of MC or ILQL; its language model is replaced in place.
        policy: the module whose language model plays.
        games: the number of games for each setting.
    """
    values.model.load_state_dict(policy.model.state_dict())

    def play(temperature: float, beta: float, selection: bool) -> Played:
        player = values.policy(beta=beta, temperature=temperature, max_new_tokens=registry.task(task).max_action_tokens)
        episodes = evaluate(player, task, games, slots=64, selection=selection).episodes
        return Played(temperature, beta, tuple(episode.total_reward for episode in episodes))

    def best(betas: Sequence[float]) -> Played:
        tried = [play(temperature, beta, selection=True) for beta, temperature in product(betas, TEMPERATURES)]
        chosen = max(tried, key=lambda one: one.mean)
        return play(chosen.temperature, chosen.beta, selection=False)

    return best([0.0]), best(BETAS)


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks value_base`."""
    there = [
        (task, name)
        for task in registry.tasks()
        for name in ("mc", "ilql")
        if all((RUNS / task / run / "best").is_dir() for run in ("filtered_bc", name))
    ]
    if not there:
        raise UserError("value_base needs runs: lmrl reproduce TASK --algorithms filtered_bc mc ilql")
    for task, name in there:
        values = load_module(RUNS / task / name)
        policy = load_module(RUNS / task / "filtered_bc")
        assert isinstance(values, ValueModule)
        without, with_values = played(task, values, policy)
        pairs = zip(with_values.returns, without.returns, strict=True)
        low, high = bootstrap_mean([one - other for one, other in pairs])
        added = with_values.mean - without.mean
        yield Row(
            f"{task}: return that values of {name} add to filtered BC, the best beta above 0",
            added,
            digits=2,
            shown=f"{added:+.2f} [{low:+.2f}, {high:+.2f}] with beta {with_values.beta:g} and temperature "
            f"{with_values.temperature:g}; {without.mean:.2f} without, temperature {without.temperature:g}",
        )
