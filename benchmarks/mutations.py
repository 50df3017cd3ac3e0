"""Breaks of the algorithms' own code, a sign, a mask and a shift by one of each, and the tests that must notice them.

Each break is made in a copy of the package and its tests. The tests that are listed with it run in their own process,
and all of them must fail. Without a break, all tests must pass.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from benchmarks.row import Row

__all__ = ["MUTATIONS", "Mutation", "applied", "failed", "run"]

ROOT = Path(__file__).parent.parent
COPIED = ("lmrl", "tests", "configs", "pyproject.toml")
SECONDS = 600  # for the tests of one break


@dataclass(frozen=True)
class Mutation:
    """One break."""

    algorithm: str
    kind: str
    """``sign``, ``mask`` or ``shift``."""
    what: str
    """What is wrong, in print."""
    file: str
    """Below ``lmrl``."""
    old: str
    """A piece of its text that is there once."""
    new: str
    tests: tuple[str, ...]
    """``file::test``, all of which must fail; without parameters, of any."""


EXACT, ARCHER, AWR, QSFT, TABLES, RETURNS = (
    f"tests/{name}.py::test_"
    for name in (
        "modules/test_policy_gradient", "modules/test_archer", "modules/test_awr", "modules/test_qsft",
        "losses/test_qsft_tables", "modules/test_return_conditioned",
    )
)  # fmt: skip
GROUPS = f"{EXACT}groups_give_the_gradient_of_the_return[rloo-1.0-window0]"
REBN = f"{EXACT}rebn_of_a_large_round_gives_the_gradient_of_the_return[1.0-window0]"
STEPS = f"{EXACT}steps_of_gigpo_weigh_states_by_how_often_others_come_there"
SAME_STATE = f"{EXACT}gigpo_as_it_comes_also_climbs_the_chance_to_beat_another_turn_in_the_same_state[observation]"
BY_HISTORY = f"{EXACT}hgpo_compares_turns_by_ever_longer_histories[2-1.0]"
WORKED_HGPO = f"{EXACT}the_worked_example_of_hgpo"
GROUPED_GAE = f"{EXACT}gagpo_is_generalised_advantage_estimation_with_means_of_the_group[0.5]"
WORKED_GAGPO = f"{EXACT}the_worked_example_of_gagpo"
TURN_PPO = f"{EXACT}ppo_gives_the_gradient_of_the_return[turn-seq-mean-turn-sum-detached]"
CRITIC = "tests/modules/test_critic.py::test_"
SEES_MORE = "tests/modules/test_corridor.py::test_the_critic_sees_more_than_the_turn"
OVER_TURNS = f"{ARCHER}the_fixed_point_is_that_of_dynamic_programming_over_turns[0.7]"
OF_RATIOS = f"{TABLES}ratios_are_the_fixed_point[-6.0-3.0-deterministic]"
BOOTSTRAPPED = f"{AWR}bootstrapped_v_is_that_of_dynamic_programming[0.8]"

MUTATIONS = (
    Mutation(
        "GRPO", "sign", "advantages are negated",
        "modules/grpo.py", "np.full(len(reward), advantage)", "np.full(len(reward), -advantage)",
        (GROUPS, f"{EXACT}grpo_climbs_the_chance_to_beat_another_episode"),
    ),
    Mutation(
        "GRPO", "mask", "what is never said has a part in the distribution",
        "modules/grpo.py",
        "now = token_logprobs(self.logits(batch), batch.state, batch.token, self.invalid)",
        "now = token_logprobs(self.logits(batch), batch.state, batch.token, self.invalid & False)",
        ("tests/modules/test_grpo.py::test_the_first_ratios_are_one_and_a_stopped_run_goes_on",),
    ),
    Mutation(
        "GRPO", "shift", "a token has the advantage of the one before it",
        "modules/grpo.py",
        'set_column(rollout, "weight"',
        'set_column(rollout, "advantage", np.roll(joined(e.columns["advantage"] for e in rollout), 1))\n        '
        'set_column(rollout, "weight"',
        (GROUPS, REBN),
    ),
    Mutation(
        "GiGPO", "sign", "advantages of steps are taken off",
        "modules/gigpo.py", "episode_advantage + self.step_weight", "episode_advantage - self.step_weight",
        (
            STEPS,
            SAME_STATE,
        ),
    ),
    Mutation(
        "GiGPO", "mask", "turns of other groups are compared too",
        "modules/gigpo.py", "states.append((group, state))", "states.append(state)",
        (f"{EXACT}steps_of_gigpo_are_compared_within_their_group",),
    ),
    Mutation(
        "GiGPO", "shift", "a turn's state is the one after it",
        "modules/gigpo.py", "episode.observations[:-1]", "episode.observations[1:]",
        (
            STEPS,
            SAME_STATE,
        ),
    ),
    Mutation(
        "HGPO", "sign", "a level counts less the longer its history is",
        "modules/hgpo.py", "(level + 1) ** self.level_power", "(level + 1) ** -self.level_power",
        (BY_HISTORY,),
    ),
    Mutation(
        "HGPO", "mask", "levels at which a turn is alone count",
        "modules/hgpo.py", "sizes[key] > 1", "sizes[key] > 0",
        (BY_HISTORY, WORKED_HGPO),
    ),
    Mutation(
        "HGPO", "shift", "a history ends before the newest observation",
        "modules/hgpo.py", "observations[turn - level : turn + 1]", "observations[turn - level : turn]",
        (BY_HISTORY,),
    ),
    Mutation(
        "GAGPO", "sign", "V has the opposite sign",
        "modules/gagpo.py", "gae(reward, value,", "gae(reward, -value,",
        (GROUPED_GAE, WORKED_GAGPO),
    ),
    Mutation(
        "GAGPO", "mask", "an episode that has ended goes on",
        "modules/gagpo.py", "gae(reward, value, 0.0,", "gae(reward, value, value[-1],",
        (GROUPED_GAE, WORKED_GAGPO),
    ),
    Mutation(
        "GAGPO", "shift", "V of a turn is that of the turn behind it",
        "modules/gagpo.py", "gae(reward, value,", "gae(reward, [*value[1:], 0.0],",
        (GROUPED_GAE, WORKED_GAGPO),
    ),
    Mutation(
        "PPO", "sign", "it learns the negative of what the turn leaves unexplained",
        "modules/ppo.py",
        "targets = joined(returns) - joined(self._turn_means(self.critic, rollout))",
        "targets = joined(self._turn_means(self.critic, rollout)) - joined(returns)",
        (SEES_MORE,),
    ),
    Mutation(
        "PPO", "shift", "a state has the target of the one before it",
        "models/critic.py", "torch.as_tensor(targets / scale",
        "torch.as_tensor(np.roll(targets, 1) / scale",
        (f"{CRITIC}the_critic_explains_what_its_states_tell",),
    ),
    Mutation(
        "PPO", "mask", "lambda fades within a turn, and not behind it",
        "losses/policy_gradient.py", "lambdas[np.cumsum(lengths) - 1] = gae_lambda",
        "lambdas[np.cumsum(lengths) - lengths] = gae_lambda",
        ("tests/modules/test_advantages.py::test_lambda_by_turn_keeps_the_credit_within_a_turn",),
    ),
    Mutation(
        "PPO by turns", "sign", "the ratio is upside down",
        "losses/policy_gradient.py",
        "ratio = log_ratio.exp()", "ratio = (-log_ratio).exp()",
        (TURN_PPO, f"{EXACT}ratios_of_turns_give_the_gradient_of_the_return"),
    ),
    Mutation(
        "PPO by turns", "mask", "where turns end is not looked at, so that ratios are those of tokens",
        "modules/ppo.py", "turn_end = batch.turn_end if self.by_turn else None", "turn_end = None",
        (TURN_PPO,),
    ),
    Mutation(
        "PPO by turns", "shift", "V of a turn is read before its last token",
        "modules/ppo.py",
        "step_value = value[starts]", "step_value = value[np.append(starts[1:], episode.num_tokens) - 1]",
        (TURN_PPO,),
    ),
    Mutation(
        "ArCHer", "sign", "advantages are negated",
        "losses/archer.py", "(min_q - values.value).detach()", "(values.value - min_q).detach()",
        (f"{ARCHER}the_minimiser_of_the_regression_is_the_weighted_policy_of_the_data",),
    ),
    Mutation(
        "ArCHer", "mask", "episodes that the rules ended have a value beyond their end",
        "losses/archer.py", "terminated[turns.last], gamma", "terminated[turns.last] & False, gamma",
        (
            OVER_TURNS,
            f"{ARCHER}a_truncated_episode_has_a_value_beyond_its_end_and_a_terminated_one_has_none",
        ),
    ),
    Mutation(
        "ArCHer", "shift", "Q is read before the last token of an action",
        "modules/archer.py", "batch.after[turns.last]", "batch.state[turns.last]",
        (
            OVER_TURNS,
            f"{ARCHER}only_values_of_whole_actions_are_read",
        ),
    ),
    Mutation(
        "Q-SFT", "sign", "the lowest return is added where it is taken off",
        "losses/qsft.py", "terminated, gamma) - low)", "terminated, gamma) + low)",
        (f"{TABLES}weights_are_cut_to_a_share_and_the_rest_is_told", OF_RATIOS),
    ),
    Mutation(
        "Q-SFT", "mask", "what is never said has a part in the ratios",
        "modules/qsft.py",
        "base = mask_scores(base, invalid)\n        target = mask_scores(target, invalid)", "pass",
        (f"{QSFT}what_is_never_said_has_no_part_in_the_targets",),
    ),
    Mutation(
        "Q-SFT", "shift", "targets hold the best ratio of the same state and not of the next",
        "modules/qsft.py", "self.support)[batch.next]", "self.support)[batch.state]",
        (f"{QSFT}ratios_of_a_small_model_are_what_dynamic_programming_finds",),
    ),
    Mutation(
        "AWR", "sign", "advantages are negated",
        "losses/awr.py", "(target - value).detach()", "(value - target).detach()",
        (f"{AWR}on_a_bandit_the_policy_is_the_weighted_policy_of_the_data", f"{AWR}the_terms"),
    ),
    Mutation(
        "AWR", "mask", "episodes that the rules ended have a value beyond their end",
        "modules/awr.py", ".masked_fill(batch.terminated, 0.0)", "",
        (BOOTSTRAPPED,),
    ),
    Mutation(
        "AWR", "shift", "the rest of a return is V of the same state and not of the next",
        "modules/awr.py", "self.gamma * values[batch.next]", "self.gamma * values[batch.state]",
        (
            BOOTSTRAPPED,
            f"{AWR}bootstrapped_advantages_are_free_of_the_luck_of_others",
        ),
    ),
    Mutation(
        "Return conditioning", "sign", "low returns are in high bins",
        "losses/return_bins.py", "returns[:, None] >= edges", "returns[:, None] < edges",
        (
            "tests/losses/test_losses.py::test_returns_beyond_the_data_are_in_the_outer_bins",
            f"{RETURNS}where_the_line_stands",
        ),
    ),
    Mutation(
        "Return conditioning", "mask", "only the first observation has the line, which a policy may not read",
        "policies/conditioned.py", "if always or turn == 0", "if turn == 0",
        (f"{RETURNS}where_the_line_stands", f"{RETURNS}the_policy_hears_the_line_and_nothing_else_changes"),
    ),
    Mutation(
        "Return conditioning", "shift", "an episode is told the bin below its own",
        "modules/return_conditioned.py", "self.line(bin_index + 1)", "self.line(max(1, bin_index))",
        (f"{RETURNS}where_the_line_stands", f"{RETURNS}each_bin_learns_its_own_actions"),
    ),
)  # fmt: skip


def run(mutations: Sequence[Mutation] = MUTATIONS, root: Path = ROOT) -> Iterator[Row]:
    """Rows for `python -m benchmarks`: the number of tests that have noticed each break.

    Args:
        mutations: the breaks.
        root: the folder of ``lmrl`` and ``tests``.

    Raises:
        RuntimeError: tests fail without a break, or did not run.
        ValueError: the text to replace does not occur exactly once.
    """
    survived = 0
    with TemporaryDirectory() as place:
        copy = Path(place) / "copy"
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (root / name).is_file():
                shutil.copy(root / name, copy / name)
        if red := failed(copy, sorted({test for mutation in mutations for test in mutation.tests})):
            raise RuntimeError(f"without a break these fail: {', '.join(sorted(red))}")
        for mutation in mutations:
            path = copy / "lmrl" / mutation.file
            good = path.read_text(encoding="utf-8")
            path.write_text(applied(mutation, good), encoding="utf-8")
            red = failed(copy, mutation.tests)
            path.write_text(good, encoding="utf-8")
            caught = red == {*mutation.tests}
            survived += not caught
            shown = f"{'caught' if caught else 'SURVIVED'}, {len(red)} of {len(mutation.tests)} tests fail"
            yield Row(f"{mutation.algorithm}, {mutation.kind}: {mutation.what}", len(red), "tests", shown=shown)
    yield Row("breaks", len(mutations))
    yield Row("breaks that survive", survived, "", "lower", "0")


def applied(mutation: Mutation, text: str) -> str:
    """Return the text of a file with the break.

    Raises:
        ValueError: the text to replace does not occur exactly once.
    """
    if (times := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.file}: {mutation.old!r} must be there once, is {times} times")
    return text.replace(mutation.old, mutation.new)


def failed(folder: Path, tests: Sequence[str]) -> set[str]:
    """Run the tests in their own process and return those that fail.

    Args:
        folder: the folder of ``lmrl`` and ``tests``.
        tests: each as ``file::test``.

    Raises:
        RuntimeError: a test did not run.
    """
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", f"--junitxml={report}")
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    red = set[str]()
    ran = set[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        names = {name, name.partition("[")[0]}
        ran |= names
        if case.find("failure") is not None:
            red |= names
    if missing := set(tests) - ran:
        raise RuntimeError(f"did not run: {', '.join(sorted(missing))}")
    return red.intersection(tests)
