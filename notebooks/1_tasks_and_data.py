# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 1. Every task and its data
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/1_tasks_and_data.ipynb)
#
# This notebook shows the ten tasks, the data that scripted players record, and how well these players do.

# %%
# In Colab, remove the first # of each line and run this cell. It installs lmrl.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

import lmrl
from lmrl.data import generate
from lmrl.data.inspection import dataset_stats
from lmrl.data.storage import read_episodes
from lmrl.envs.registry import make_policy, policy_names
from lmrl.evaluation import evaluate
from lmrl.evaluation.run_folder import transcript

TINY = "LMRL_TINY" in os.environ  # a few episodes: a test that the notebook runs
EPISODES = 4 if TINY else 60
TASKS = list(lmrl.tasks())

# %% [markdown]
# ## The games
#
# An environment takes a text and returns the new text only. The player keeps the history.

# %%
for name, task in lmrl.tasks().items():
    text, info = lmrl.make(name).reset(seed=0)
    reads = {None: "everything", 1: "the last text"}.get(task.last_texts, f"the last {task.last_texts} texts")
    print(f"{name}: {task.description}; the player reads {reads}\n    {text.strip()[:120]!r}\n")

# %% [markdown]
# ## The data
#
# `generate` records the dataset of a task with its scripted player. The same seed gives the same file. In every task
# some episodes succeed and some fail, so there is something to imitate and something to improve.

# %%
paths = {name: generate(name, EPISODES, 0, progress=False) for name in TASKS}
for name, path in paths.items():
    stats = dataset_stats(path)
    assert TINY or 0 < stats.success < 1
    print(
        f"{name:18s} length {stats.length_mean:5.1f}   success {stats.success:4.0%}   return {stats.return_mean:7.2f}"
    )

# %% [markdown]
# One episode of each kind of game:

# %%
for name in ("wordle", "twenty_questions", "car_dealer", "endgames"):
    best = max(read_episodes(paths[name]), key=lambda episode: episode.total_reward)
    print(f"-- {name}\n{transcript(best, turns=6)}\n")

# %%
figure, axes = plt.subplots(2, 5, figsize=(13, 4.2), layout="constrained")
for axis, (name, path) in zip(axes.flat, paths.items(), strict=True):
    axis.hist([episode.total_reward for episode in read_episodes(path)], bins=12, color="#0072B2")
    axis.set_title(name, fontsize=9)
figure.supxlabel("return", fontsize=9)
figure.supylabel("episodes", fontsize=9)
figure.suptitle("returns of the recorded episodes")
plt.show()

# %% [markdown]
# ## The players
#
# Every task has a random player and the behaviour policy that recorded its data. Some have an optimal player. Learning
# can win the difference between the behaviour policy and the optimal player. In the maze the behaviour policy scores
# lower here than in the table above: recorded episodes end early and stay in one part of the maze, and here it has to
# walk the whole way.

# %%
for name in ("maze_fo", "text_nav_fo", "wordle", "twenty_questions"):
    means = {}
    for player in policy_names(name):
        scores = evaluate(make_policy(name, player), name, EPISODES).scores()
        means[player] = scores["return_mean"]
        low, high = scores["return_ci"]
        print(f"{name:18s} {player:12s} return {means[player]:7.2f} [{low:7.2f}, {high:7.2f}]")
    assert TINY or means["optimal"] == max(means.values())
    if name == "maze_fo":
        assert TINY or means["behaviour"] < dataset_stats(paths[name]).return_mean

# %% [markdown]
# ## Change something
#
# The histogram shows the returns of three players in one task. In Wordle the returns of the optimal player vary less
# than those of the behaviour policy. Try `TASK = "maze_fo"`, where an episode ends after 100 moves, or `"text_nav_fo"`,
# whose only returns are 0 and 1.

# %%
TASK = "wordle"
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
players = ("random", "behaviour", "optimal")
played = [
    [episode.total_reward for episode in evaluate(make_policy(TASK, player), TASK, EPISODES).episodes]
    for player in players
]
assert TINY or TASK != "wordle" or np.std(played[2]) < np.std(played[1])
axis.hist(played, bins=8, label=players, color=["#999999", "#0072B2", "#009E73"])
axis.set(xlabel="return", ylabel="episodes", title=TASK)
axis.legend(frameon=False)
plt.show()
