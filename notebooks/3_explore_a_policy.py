# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 3. Exploring a trained policy
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/3_explore_a_policy.ipynb)
#
# How much the values weigh (beta), how greedily words are chosen (temperature), and where BC and ILQL disagree. Uses
# the runs of notebook 2, or trains them.

# %%
# In Colab, take the first # of these lines away and run them: they install lmrl and go where t_maze.py lies.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
from math import prod

import matplotlib.pyplot as plt
from IPython.display import Image, display
from t_maze import LAYOUT, RUNS, TASK, TINY, train

from lmrl.envs.maze.players import MazePlayer
from lmrl.envs.maze.probe import probe_maze
from lmrl.envs.maze.probe_plot import PROBE_PLOT
from lmrl.evaluation import evaluate
from lmrl.evaluation.token_values import token_values
from lmrl.modules import load_module, load_policy
from lmrl.report.pictures import plot_probes

EPISODES = 2 if TINY else 45
runs = {"bc": train("bc")}
runs["ilql"] = train("ilql", f"--model.init_args.pretrained={runs['bc']}")

# %% [markdown]
# ## Beta and temperature
#
# The policy samples from `log pi_beta + beta * min Q`. At beta 0 it is BC: values are learned, and nobody listens. A
# little of them makes most of the difference. Much of them is for values that are right: half-trained ones have errors
# that then outweigh the language model, also where it would say nothing of the kind.
#
# Temperature divides the sum. At 0 the policy always says the best word: a single cell whose best word is wrong would
# hold it up for ever, where a sample gets away. Far above 1 it forgets what it knows, and in the end how to write a
# move: what the rules do not know costs four points.


# %%
def scored(**settings: float) -> tuple[float, float, float]:
    """Mean return with its 95 % interval."""
    scores = evaluate(load_policy(runs["ilql"], TASK, **settings), "t_maze", EPISODES).scores()
    return scores["return_mean"], *scores["return_ci"]


def plotted(axis: plt.Axes, name: str, returns: dict[float, tuple[float, float, float]]) -> None:
    """Returns with intervals, evenly spaced."""
    mean, low, high = zip(*returns.values(), strict=True)
    # Where all episodes return the same, rounding may put the mean outside of its interval.
    spread = [[max(0.0, m - end) for m, end in zip(mean, low, strict=True)]]
    spread += [[max(0.0, end - m) for m, end in zip(mean, high, strict=True)]]
    axis.errorbar([f"{value:g}" for value in returns], mean, yerr=spread, marker="o", capsize=3)
    axis.axhline(-3, color="#888888", linestyle=":", label="optimum")
    axis.set(xlabel=name, ylabel="mean return")


betas, temperatures = ([0.0, 8.0], [0.0, 1.0]) if TINY else ([0.0, 0.5, 2.0, 8.0, 32.0], [0.0, 1.0, 4.0, 8.0, 16.0])
by_beta = {beta: scored(beta=beta) for beta in betas}
by_temperature = {temperature: scored(temperature=temperature) for temperature in temperatures}
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
plotted(axes[0], "beta (temperature 1)", by_beta)
plotted(axes[1], "temperature (beta 8)", by_temperature)
axes[0].legend(frameon=False)
plt.show()
print("by beta:", {beta: round(found[0], 1) for beta, found in by_beta.items()})
print("by temperature:", {value: round(found[0], 1) for value, found in by_temperature.items()})
assert TINY or by_beta[8.0][1] > by_beta[0.0][2], "the values are what makes the difference"
assert TINY or by_temperature[1.0][1] > by_temperature[16.0][2], "too hot"

# %% [markdown]
# ## Where they disagree
#
# Both are set down in every cell and asked for their greedy move. In an arm the favourite of BC is right: moves were
# random, but now and then the solver broke the tie. At the junction, where the parts meet, it is wrong: episodes from
# the arms bumped into the wall there or turned back, and only those of the stem went down.

# %%
probes = {name: probe_maze(load_policy(run, TASK, temperature=0.0), "t_maze") for name, run in runs.items()}
plot_probes(PROBE_PLOT, probes, RUNS / "disagreement.png", "t_maze, greedy")
display(Image(RUNS / "disagreement.png", width=900))
bc, ilql = probes["bc"], probes["ilql"]
for place, cell in enumerate(bc.positions):
    if bc.moves[place] != ilql.moves[place]:
        right = " or ".join(move.strip() for move in bc.optimal[place])
        print(f"{cell}: BC {bc.moves[place].strip()!r}, ILQL {ilql.moves[place].strip()!r}; right is {right!r}")
junction = bc.positions.index((1, 4))
assert TINY or (ilql.is_right(junction) and not bc.is_right(junction))

# %% [markdown]
# Favourites are half of the story. A policy is sampled, and BC says its favourite hardly more often than the rest, as
# the player of the data did. So the other half: how probable is the right move? The solver plays once from each cell,
# and each model reads what it said first.

# %%
solved = evaluate(MazePlayer(1.0, LAYOUT), "t_maze", len(TASK.starts)).episodes
probable = {}
for name, run in runs.items():
    read = token_values(load_module(run), solved)
    probable[name] = [prod(token.probability for token in turns[0]) for turns in read]
cells = [str(episode.info["start"]["init_position"]) for episode in solved]
figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
for shift, (name, found) in zip((-0.2, 0.2), probable.items(), strict=True):
    axis.bar([place + shift for place in range(len(cells))], found, 0.4, label=name)
axis.set_xticks(range(len(cells)), cells)
axis.set(xlabel="cell", ylabel="probability of the right move", ylim=(0, 1))
figure.legend(frameon=False, loc="outside right upper")
plt.show()
mean = {name: sum(found) / len(found) for name, found in probable.items()}
print({name: f"{value:.2f}" for name, value in mean.items()})
assert TINY or mean["ilql"] > mean["bc"] + 0.2

# %% [markdown]
# ## Change something
#
# One cell, and how probable the right move is there as beta grows. At the junction, `(1, 4)`, BC hardly ever goes down,
# and the values turn that round. In the stem, at `CELL = (3, 4)`, the move that reaches the goal is several times as
# probable for BC, and the bars begin higher.

# %%
CELL = (1, 4)
(start,) = [episode for episode in solved if tuple(episode.info["start"]["init_position"]) == CELL]
module = load_module(runs["ilql"])
chances = []
for beta in betas:
    module.beta = beta
    (turns,) = token_values(module, [start])
    chances.append(prod(token.probability for token in turns[0]))
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.bar([f"{beta:g}" for beta in betas], chances, color="#0072B2")
axis.set(xlabel="beta", ylabel="probability of the right move", ylim=(0, 1), title=f"at {CELL}")
plt.show()
