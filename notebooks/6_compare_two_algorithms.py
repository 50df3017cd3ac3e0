# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 6. Compare two algorithms
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/6_compare_two_algorithms.ipynb)
#
# Which of two algorithms is better, and how sure can one be? This notebook reads the records in `results/cpu` and
# trains nothing: up to three training seeds of twelve algorithms on `maze_fo`, with 275 episodes each. Scores vary for
# two reasons, the episodes and the training seed. Each has its own interval, and the two must not be mixed.

# %%
# In Colab, remove the first # of each line and run this cell. It installs lmrl and enters the folder of the records.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import lmrl
from lmrl.evaluation.intervals import (
    Sample,
    bootstrap_mean,
    improvement,
    improvement_interval,
    interquartile_mean,
    pooled_interquartile_mean,
    stratified_interval,
    student_mean,
)
from lmrl.evaluation.records import read_records
from lmrl.evaluation.scores import score

COLOURS = {True: "#0072B2", False: "#D55E00"}
places = [Path.cwd(), *Path.cwd().parents, Path(lmrl.__file__).parents[1]]
records = next(place / "results/cpu" for place in places if (place / "results/cpu/maze_fo.jsonl").is_file())
by_seed = {name: score("maze_fo", name, results) for name, results in read_records(records, "maze_fo").items()}
several = sorted(name for name, one in by_seed.items() if len(one.seeds) == 3)
print("three seeds of:", ", ".join(several))

# %% [markdown]
# ## Change something
#
# Choose any two of these algorithms. With `("grpo", "awr")` the seeds contradict each other. Try `("awr", "bc")`, too.

# %%
OURS, BASE = "grpo", "awr"

# %% [markdown]
# ## All episodes
#
# Each line belongs to a training seed and shows the share of episodes with at least a given return. Where the lines of
# one algorithm lie far apart, one run says little about it.

# %%
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name in (OURS, BASE):
    for seed, returns in zip(by_seed[name].seeds, by_seed[name].returns, strict=True):
        ordered = np.sort(returns)
        shares = 1 - np.arange(len(ordered)) / len(ordered)
        axis.step(ordered, shares, color=COLOURS[name == OURS], alpha=0.7, label=name if seed == 0 else None)
axis.set(xlabel="return", ylabel="share of episodes with at least it")
axis.legend(frameon=False)
plt.show()

# %% [markdown]
# ## One seed
#
# The usual comparison takes one run of each algorithm and the difference of their mean returns. Both played the same
# games, so they are compared game by game, within each of the 25 starts. The interval is over episodes: it says how
# these two runs would differ in other games. GRPO is better with seeds 0 and 1, and AWR with seed 2. Each interval
# excludes 0, and yet none of them is about the two algorithms.

# %%
first, second = by_seed[OURS], by_seed[BASE]
for seed, ours, base in zip(first.seeds, first.returns, second.returns, strict=True):
    differences = np.subtract(ours, base)
    starts = (np.arange(len(differences)) % first.starts).tolist()
    sure = bootstrap_mean(differences.tolist(), strata=starts)
    gain = differences.mean()
    print(f"seed {seed}: {OURS} over {BASE} {gain:+6.2f} points of return [{sure.low:+.2f}, {sure.high:+.2f}]")
    if (OURS, BASE) == ("grpo", "awr"):
        assert sure.high < 0 if seed == 2 else sure.low > 0, "the text above no longer describes the records"

# %% [markdown]
# ## Three seeds
#
# Now the sample consists of runs. Each run has one number, its mean return, so there are three numbers and Student's
# interval is wide. The interval of GRPO even reaches beyond 0, which no return does. A bootstrap of three values would
# end at the lowest and the highest of them and be too narrow.
#
# The interquartile mean leaves out the best and the worst quarter of all episodes (Agarwal et al. 2021), and with them
# most of the effect of one bad run. Its interval is over episodes, resampled within each seed and each of the 25
# starts.

# %%
rows = []
for name in (OURS, BASE):
    one = by_seed[name]
    means = [float(np.mean(returns)) for returns in one.returns]
    middle = float(interquartile_mean(np.concatenate(one.returns)))
    pooled = stratified_interval(one.samples, pooled_interquartile_mean)
    starts = [place % one.starts for place in range(one.episodes)] if one.starts else None
    rows += [
        (f"{name}, seed {seed}", np.mean(r), bootstrap_mean(r, strata=starts)) for seed, r in enumerate(one.returns)
    ]
    rows += [(f"{name}, mean of the seeds", np.mean(means), student_mean(means))]
    rows += [(f"{name}, interquartile mean", middle, pooled)]
figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, value, interval in rows:
    colour = COLOURS[name.startswith(f"{OURS},")]
    axis.plot(interval, (name, name), color=colour, linewidth=3 if "seeds" in name else 1.5)
    axis.plot(value, name, "o", color=colour)
    print(f"{name:32s} {value:7.2f} [{interval.low:7.2f}, {interval.high:7.2f}]")
assert OURS != "grpo" or student_mean([float(np.mean(returns)) for returns in by_seed["grpo"].returns]).high > 0
axis.set(xlabel="return, 95 % intervals (thick: over training seeds)")
axis.invert_yaxis()
plt.show()

# %% [markdown]
# ## The probability of improvement
#
# A few bad episodes can cause a difference of means. The probability of improvement is the share of pairs in which an
# episode of one algorithm beats an episode of the other; ties count half. Its interval is over episodes. So it is
# narrow, and describes these six runs alone.
#
# For a statement about the algorithms there are three runs of each. Runs with the same seed start from the same BC, so
# we take the three differences. Their Student's interval contains 0: these runs do not show which algorithm is better.

# %%
seeds = list(range(len(first.returns)))
episodes = first.samples, second.samples, [(a, b) for a in seeds for b in seeds]
chance, interval = improvement(*episodes), improvement_interval(*episodes)
print(f"episodes: {OURS} beats {BASE} with probability {chance:.2f} [{interval.low:.2f}, {interval.high:.2f}]")
gains = [float(np.mean(ours) - np.mean(base)) for ours, base in zip(first.returns, second.returns, strict=True)]
over_seeds = student_mean(gains)
assert (OURS, BASE) != ("grpo", "awr") or over_seeds.low < 0 < over_seeds.high
print(
    f"runs: {OURS} over {BASE} {np.mean(gains):+.2f} points of return [{over_seeds.low:+.2f}, {over_seeds.high:+.2f}]"
)

# %% [markdown]
# ## All pairs
#
# The table shows, for every pair of algorithms with three seeds, how often a run of one beats a run of the other. Each
# cell stands for nine pairs of runs and has no interval. Of two equal algorithms, one wins all nine pairs in one case
# of ten.

# %%
table = np.full((len(several), len(several)), np.nan)
for row, a in enumerate(several):
    for column, b in enumerate(several):
        if a != b:
            pair = [Sample([float(np.mean(r)) for r in by_seed[name].returns]) for name in (a, b)]
            table[row, column] = improvement(pair[:1], pair[1:], [(0, 0)])
figure, axis = plt.subplots(figsize=(7, 5.6), layout="constrained")
image = axis.imshow(table, cmap="RdBu", vmin=0, vmax=1)
axis.set_xticks(range(len(several)), several, rotation=60, ha="right", fontsize=8)
axis.set_yticks(range(len(several)), several, fontsize=8)
axis.set(title="a run of the row beats one of the column")
figure.colorbar(image, label="probability")
plt.show()
