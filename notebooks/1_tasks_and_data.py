# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 1. Every task and its data
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/1_tasks_and_data.ipynb)
#
# What the ten tasks look like, what their scripted players record, and how good those are.

# %%
# In Colab, take the first # of these lines away and run them: they install lmrl and go where t_maze.py lies.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
import os

import matplotlib.pyplot as plt

import lmrl
from lmrl.data import generate
from lmrl.data.inspection import dataset_stats
from lmrl.data.storage import read_episodes
from lmrl.envs.registry import make_policy, policy_names
from lmrl.evaluation import evaluate
from lmrl.evaluation.run_folder import transcript

TINY = "LMRL_TINY" in os.environ  # a few episodes, to see that everything works
EPISODES = 4 if TINY else 60
TASKS = list(lmrl.tasks())

# %% [markdown]
# ## What is played
#
# An environment takes text and returns only what is new; the history belongs to whoever plays.

# %%
for name, task in lmrl.tasks().items():
    text, info = lmrl.make(name).reset(seed=0)
    reads = {None: "everything", 1: "the last text"}.get(task.last_texts, f"the last {task.last_texts} texts")
    print(f"{name}: {task.description}; the player reads {reads}\n    {text.strip()[:120]!r}\n")

# %% [markdown]
# ## What was recorded
#
# `generate` records the dataset of a task with its scripted player; the same seed gives the same file. Success is rare
# or frequent, never certain: there is something to imitate and something to do better.

# %%
paths = {name: generate(name, EPISODES, 0, progress=False) for name in TASKS}
for name, path in paths.items():
    stats = dataset_stats(path)
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
# ## Who else plays
#
# Every task has a random player and the one that recorded its data, some have an optimal one. In the maze the player of
# the data looks worse here than in the table above: recorded episodes are cut early and stay in one part of the maze,
# here it has to walk the whole way. How many points lie between the player of the data and the optimal one is what
# learning can win.

# %%
for name in ("maze_fo", "text_nav_fo", "wordle", "twenty_questions"):
    means = {}
    for player in policy_names(name):
        scores = evaluate(make_policy(name, player), name, EPISODES).scores()
        means[player] = scores["return_mean"]
        low, high = scores["return_ci"]
        print(f"{name:18s} {player:12s} return {means[player]:7.2f} [{low:7.2f}, {high:7.2f}]")
    assert TINY or means["optimal"] == max(means.values())

# %% [markdown]
# ## Change something
#
# How many episodes of one task return how much, by player. In Wordle the returns of the optimal player lie close
# together and those of the player of the data everywhere. With `TASK = "maze_fo"` those of the random player are nearly
# all about -100, as the maze ends after 100 moves; with `"text_nav_fo"` there are only 0 and 1.

# %%
TASK = "wordle"
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
players = ("random", "behaviour", "optimal")
played = [
    [episode.total_reward for episode in evaluate(make_policy(TASK, player), TASK, EPISODES).episodes]
    for player in players
]
axis.hist(played, bins=8, label=players, color=["#999999", "#0072B2", "#009E73"])
axis.set(xlabel="return", ylabel="episodes", title=TASK)
axis.legend(frameon=False)
plt.show()
