# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 5. A new task
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/5_a_new_task.ipynb)
#
# Higher or lower: find a number from 1 to 12 in five guesses. This notebook adds an environment, a scripted player, a
# dataset and a datamodule, which is all that a new task needs. Then BC and filtered BC learn the task.

# %%
# In Colab, remove the first # of each line and run this cell. It installs lmrl.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
import os
from pathlib import Path

import lightning as L
import matplotlib.pyplot as plt

import lmrl
from lmrl.data.storage import write_episodes
from lmrl.datamodules import OfflineDataModule
from lmrl.envs import Opening, TextEnv, Turn, check_env
from lmrl.envs.registry import register
from lmrl.envs.scores import Scores
from lmrl.envs.task import Task, turn_chance
from lmrl.evaluation import evaluate
from lmrl.modules import BC, FilteredBC
from lmrl.rollout import in_order, rollout
from lmrl.types import Reply, Start

TINY = "LMRL_TINY" in os.environ
STEPS, EPISODES, SIZE = (3, 2, 40) if TINY else (600, 300, 4000)


# %%
class HigherLower(TextEnv):
    """Guess a number: -1 for each wrong guess, five guesses."""

    return_range = (-5.0, 0.0)
    reset_options = ("number",)

    def begin(self, options):
        self._number = int(options.get("number", self.np_random.integers(1, 13)))
        self._tries = 0
        return Opening("Guess a number from 1 to 12.\n", task_id=str(self._number), start={"number": self._number})

    def turn(self, action):
        self._tries += 1
        guess = int(action) if action.strip().isdecimal() and len(action) < 9 else None
        won = guess == self._number
        answer = "What?" if guess is None else "Yes." if won else "Higher." if guess < self._number else "Lower."
        over = won or self._tries == 5
        info = {"illegal": guess is None, "success": won}
        return Turn(f"{answer}\n", 0.0 if won else -1.0, terminated=over, truncated=False, info=info)

    def legal_actions(self):
        return [f"{number}\n" for number in range(1, 13)]


# %% [markdown]
# `check_env` tests the rules that every environment follows. For example, equal seeds give equal episodes, and every
# text gets an answer.

# %%
print(*check_env(HigherLower), sep="\n")


# %% [markdown]
# The scripted player knows which numbers are left. Half of its guesses take the middle one, the others a random one.


# %%
class Guesser:
    """Guesses a number that agrees with all answers: the middle one with probability `skill`, else a random one."""

    def __init__(self, skill: float = 0.5) -> None:
        self.skill = skill

    def act(self, requests):
        return [self._reply(request) for request in requests]

    def _reply(self, request):
        low, high = 1, 12
        for action, answer in zip(request.actions, request.observations[1:], strict=True):
            low = max(low, int(action) + 1) if answer == "Higher.\n" else low
            high = min(high, int(action) - 1) if answer == "Lower.\n" else high
        chance = turn_chance(request)
        halving = chance.random() < self.skill
        return Reply(f"{(low + high) // 2 if halving else chance.randint(low, high)}\n")


# %% [markdown]
# `Task` describes the task: what a policy reads (everything), the longest action, and the scale of the scores. Once it
# is registered, `lmrl.make`, `evaluate`, the datamodules and the callbacks know its name.

# %%
register(
    Task(
        name="higher_lower",
        description="find a number from 1 to 12",
        env_id="lmrl/HigherLower-v0",
        entry_point="__main__:HigherLower",
        max_action_tokens=4,
        dataset_size=SIZE,
        scores=Scores(-5.0, -2.4, -2.1, {}, {}),
    )
)
path = Path("data/higher_lower.parquet")
starts = (Start(seed) for seed in range(SIZE))
episodes = in_order(rollout(Guesser(), lambda: lmrl.make("higher_lower"), starts, task="higher_lower"))
write_episodes(path, episodes, {"task": "higher_lower", "behaviour": "Guesser"})
print(f"{len(episodes)} episodes, mean return {sum(e.total_reward for e in episodes) / len(episodes):.2f}")

# %% [markdown]
# Now small models learn from scratch, in a few passes over the data. They are not told the rules, so they have to learn
# from the games that the answers limit the numbers. A player that guesses any of the twelve numbers returns about -3.9.
# Filtered BC keeps the best games. Most of those were lucky rather than better played, so filtered BC imitates fewer
# games and does not beat BC here.

# %%
returns = {}
for name, player in (("every guess halves", Guesser(1.0)), ("the player of the data", Guesser())):
    returns[name] = evaluate(player, "higher_lower", EPISODES).scores()["return_mean"]
    print(f"{name}: return {returns[name]:.2f}")

quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
small = {"architecture": {"n_layer": 2, "n_head": 2, "n_embd": 64, "initializer_range": 0.1}, "lr": 3e-3}


def played(kind: type[BC], path: Path, **settings: float):
    """What a small model plays after a few passes over the data."""
    L.seed_everything(0, verbose=False)
    module = kind(**small, **settings)
    trainer = L.Trainer(max_steps=STEPS, accelerator="cpu", limit_val_batches=0, gradient_clip_val=1.0, **quiet)
    trainer.fit(module, OfflineDataModule("higher_lower", path=str(path), batch_size=64))
    return evaluate(module.eval().policy(max_new_tokens=4), "higher_lower", EPISODES)


games = {}
for kind, settings in ((BC, {}), (FilteredBC, {"top_fraction": 0.4})):
    games[kind.name] = played(kind, path, **settings)
    scores = games[kind.name].scores()
    returns[kind.name], (low, high) = scores["return_mean"], scores["return_ci"]
    illegal = f"illegal {scores['illegal_rate']:.1%}"
    print(f"{kind.name}: return {returns[kind.name]:.2f} [{low:.2f}, {high:.2f}], {illegal}")
assert TINY or returns["bc"] > -3.2, "better than guessing at random, which has about -3.9"
assert TINY or games["filtered_bc"].scores()["return_ci"][0] < returns["bc"], "filtered BC is not better"

# %% [markdown]
# The picture shows the first and second guesses of BC. After "Lower." nearly all second guesses lie below the line, and
# after "Higher." above it. Points on the wrong side contradict the answer.

# %%
figure, axis = plt.subplots(figsize=(4.5, 3.6), layout="constrained")
seconds = {"Higher.\n": [], "Lower.\n": []}
for episode in games["bc"].episodes:
    if len(episode) > 1 and episode.observations[1] in seconds:
        seconds[episode.observations[1]].append([int(action) for action in episode.actions[:2]])
for (answer, pairs), marker, colour in zip(seconds.items(), "^v", ("#D55E00", "#0072B2"), strict=True):
    if pairs:
        axis.scatter(*zip(*pairs, strict=True), marker=marker, color=colour, alpha=0.4, label=f"after {answer.strip()}")
axis.plot((1, 12), (1, 12), color="#888888", linewidth=1)
axis.set(xlabel="first guess", ylabel="second guess")
figure.legend(frameon=False, loc="outside upper center", ncols=2)
plt.show()
pairs = [(first, second, answer) for answer, found in seconds.items() for first, second in found]
agree = sum((second > first) == (answer == "Higher.\n") and second != first for first, second, answer in pairs)
print(f"{agree} of {len(pairs)} second guesses agree with the answer to the first")
assert TINY or agree > 0.9 * len(pairs)

# %% [markdown]
# ## Change something
#
# BC plays about as well as the player that it imitates. A player that always takes the middle (`SKILL = 1.0`) needs at
# most four guesses. Try `SKILL = 0.0`, which guesses at random among the numbers that are left.

# %%
SKILL = 1.0
other = Path("data/higher_lower_other.parquet")
starts = (Start(seed) for seed in range(SIZE))
recorded = in_order(rollout(Guesser(SKILL), lambda: lmrl.make("higher_lower"), starts, task="higher_lower"))
write_episodes(other, recorded, {"task": "higher_lower", "behaviour": "Guesser"})
guesses = {f"its player, skill {SKILL:g}": [len(episode) for episode in recorded]}
assert TINY or SKILL != 1.0 or max(map(len, recorded)) == 4
guesses[f"BC of skill {SKILL:g}"] = [len(episode) for episode in played(BC, other).episodes]
guesses["BC of skill 0.5"] = [len(episode) for episode in games["bc"].episodes]
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.hist(list(guesses.values()), bins=[0.5, 1.5, 2.5, 3.5, 4.5, 5.5], density=True, label=list(guesses))
axis.set(xlabel="guesses", ylabel="share of the games")
axis.legend(frameon=False)
plt.show()
