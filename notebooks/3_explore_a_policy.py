# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 3. Explore a trained policy
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/3_explore_a_policy.ipynb)
#
# This notebook shows what the weight of the values (beta) and the temperature do to a policy, and where BC and ILQL
# disagree. It uses the runs of notebook 2, or trains them.

# %%
# In Colab, remove the first # of each line and run this cell. It installs lmrl and enters the folder of t_maze.py.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
from math import prod

import matplotlib.pyplot as plt
from IPython.display import Image, display
from t_maze import LAYOUT, RUNS, TASK, TINY, train

from lmrl import load_policy
from lmrl.envs.maze.players import MazePlayer
from lmrl.envs.maze.probe import probe_maze
from lmrl.envs.maze.probe_plot import PROBE_PLOT
from lmrl.evaluation import evaluate
from lmrl.evaluation.token_values import token_values
from lmrl.modules import load_module
from lmrl.report.pictures import plot_probes

EPISODES = 2 if TINY else 45
runs = {"bc": train("bc")}
runs["ilql"] = train("ilql", f"--model.init_args.pretrained={runs['bc']}")

# %% [markdown]
# ## Beta and temperature
#
# The policy samples from `log pi_beta + beta * min Q`. At beta 0 it is BC. A beta of 0.5 already makes most of the
# difference. The larger beta is, the more the errors of Q count, too.
#
# The temperature divides the sum. At 0 the policy always says its most probable word. Far above 1 it samples wrong
# moves, and in the end texts that are no moves, which cost four points each.


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
if not TINY:
    means = {beta: found[0] for beta, found in by_beta.items()}
    assert by_beta[8.0][1] > by_beta[0.0][2], "the values make the difference"
    assert means[0.5] - means[0.0] > 0.5 * (max(means.values()) - means[0.0]), "a beta of 0.5 makes most of it"
    assert by_temperature[1.0][1] > by_temperature[16.0][2], "too high a temperature"

# %% [markdown]
# ## Where BC and ILQL disagree
#
# Both policies name their greedy move in every cell. In the arms the greedy move of BC is right: most recorded moves
# were random, and the solver made the others. At the junction BC is wrong: recorded episodes from the arms turned back
# there or walked into the wall, and only episodes of the stem went down.

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
if not TINY:
    assert ilql.is_right(junction) and not bc.is_right(junction)
    assert [cell for place, cell in enumerate(bc.positions) if not bc.is_right(place)] == [(1, 4)]

# %% [markdown]
# The greedy move does not say how often a policy makes it. BC, like the data, makes its greedy move hardly more often
# than the others. So the chart shows the probability of the right move: the solver plays once from each cell, and each
# model reads the first move of the solver.

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
# The bars show the probability of the right move in one cell, for each beta. At the junction, `(1, 4)`, the values make
# the right move several times as probable as it is for BC (beta 0). Try `CELL = (3, 4)`, where the next move reaches
# the goal.

# %%
CELL = (1, 4)
(start,) = [episode for episode in solved if tuple(episode.info["start"]["init_position"]) == CELL]
module = load_module(runs["ilql"])
chances = []
for beta in betas:
    module.beta = beta
    (turns,) = token_values(module, [start])
    chances.append(prod(token.probability for token in turns[0]))
assert TINY or CELL != (1, 4) or max(chances) > 3 * chances[0]
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.bar([f"{beta:g}" for beta in betas], chances, color="#0072B2")
axis.set(xlabel="beta", ylabel="probability of the right move", ylim=(0, 1), title=f"at {CELL}")
plt.show()
