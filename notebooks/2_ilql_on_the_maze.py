# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 2. ILQL on the maze, and what it has learned
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/2_ilql_on_the_maze.ipynb)
#
# ILQL stitches parts of episodes together. Here are BC and ILQL on a small maze, how well they play, and what ILQL
# knows: V of each cell, Q of each word. The maze of the benchmark is three times as large and takes `configs/maze_fo`
# 1,000 and 4,000 steps; everything else is the same there.

# %%
# In Colab, take the first # of these lines away and run them: they install lmrl and go where t_maze.py lies.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image, display
from t_maze import DATA, LAYOUT, PARTS, RUNS, TASK, TINY, record, train

from lmrl.cli import main as lmrl
from lmrl.data.inspection import dataset_stats
from lmrl.data.storage import read_episodes
from lmrl.envs.maze.probe import probe_maze
from lmrl.envs.maze.probe_plot import PROBE_PLOT
from lmrl.envs.registry import make
from lmrl.evaluation import evaluate
from lmrl.evaluation.curves import find_metrics, read_curves
from lmrl.evaluation.token_values import token_values
from lmrl.modules import load_module, load_policy
from lmrl.report.pictures import plot_probes
from lmrl.rollout import in_order, rollout
from lmrl.types import Start

EPISODES = 2 if TINY else 90
STEM = PARTS[0]

# %% [markdown]
# ## The data
#
# `t_maze.py`, beside this notebook, makes the maze and records its data: mostly random moves, and no episode leaves the
# part in which it began. The parts are the left arm, the right arm and the stem; they meet at the junction. So whoever
# began in an arm has never reached the goal.

# %%
record()
print("\n".join(LAYOUT.rows))
stats = dataset_stats(DATA)
print(f"success {stats.success:.0%}, length {stats.length_mean:.1f}, return {stats.return_mean:.1f}")
arms = [episode for episode in read_episodes(DATA) if tuple(episode.info["start"]["init_position"]) not in STEM]
print(f"episodes from the arms: {len(arms)}, of which {sum(episode.success for episode in arms)} reach the goal")
assert not any(episode.success for episode in arms)

# %% [markdown]
# ## Training
#
# A run is one YAML file; dotted options change it. The second run starts from the weights of the first.

# %%
bc = train("bc")
ilql = train("ilql", f"--model.init_args.pretrained={bc}")

# %%
for folder in (bc, ilql):
    returns = read_curves(find_metrics(folder))["eval/t_maze/return_mean"]
    print(folder.name, "return in play:", [f"step {s}: {v:.1f}" for s, v in zip(*returns, strict=True)])

# %% [markdown]
# ## Scores
#
# The optimum is -3, the mean over the nine cells (the move that reaches the goal is free).

# %%
scores = {folder.name: evaluate(load_policy(folder, TASK), "t_maze", EPISODES).scores() for folder in (bc, ilql)}
for name, found in scores.items():
    low, high = found["return_ci"]
    print(f"{name}: return {found['return_mean']:.2f} [{low:.2f}, {high:.2f}], success {found['success_rate']:.0%}")
assert TINY or scores["ilql"]["return_ci"][0] > scores["bc"]["return_ci"][1], "ILQL plays better, and not by chance"

# %% [markdown]
# ## What it knows of each cell
#
# V as colour and number, the greedy move as an arrow; wrong moves are dashed and framed. BC has no values.

# %%
probes = {folder.name: probe_maze(load_policy(folder, TASK, temperature=0.0), "t_maze") for folder in (bc, ilql)}
plot_probes(PROBE_PLOT, probes, RUNS / "values.png", "t_maze")
display(Image(RUNS / "values.png", width=900))

# %% [markdown]
# Values were carried from the goal into the arms, one action token per backup, over the junction that no recorded
# episode crosses. The line is the discounted return of walking straight to the goal: -1 a move, on the last of its
# three tokens, gamma 0.99 per token, the last move free. V lies below the line: it is an expectile of what the recorded
# moves are worth, not the worth of the best one, and at the junction only few of them go on.

# %%
distances = LAYOUT.distances()
moves = np.array([distances[cell] for cell in probes["ilql"].positions])
values = np.array(probes["ilql"].values)
straight = [-sum(0.99 ** (3 * move + 2) for move in range(count - 1)) for count in range(1, max(moves) + 1)]
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(range(1, max(moves) + 1), straight, color="#888888", label="walking straight")
axis.plot(moves, values, "o", color="#0072B2", label="V of a cell, ILQL")
axis.set(xlabel="moves to the goal", ylabel="discounted return")
axis.legend(frameon=False)
plt.show()
correlation = np.corrcoef(moves, values)[0, 1]
print(f"correlation of V with the distance: {correlation:.2f}")
assert TINY or correlation < -0.8, "the farther, the worse"
assert TINY or (values < np.array(straight)[moves - 1] + 0.5).all(), "below the line, up to errors of learning"

# %% [markdown]
# ## What it thinks of each word
#
# One episode, token by token: the probability under the policy that plays, V before the token, Q of the token. The same
# numbers are over the words on the page that `lmrl view` makes.

# %%
module = load_module(ilql)
episode = evaluate(load_policy(ilql, TASK), "t_maze", 1).episodes[0]
(turns,) = token_values(module, [episode])
for observation, tokens in list(zip(episode.observations, turns, strict=False))[:4]:
    print(observation.strip())
    for token in tokens:
        print(f"    {token.text!r:10s} p {token.probability:.2f}   V {token.v:7.2f}   Q {token.q:7.2f}")

# %% [markdown]
# On the command line the same is done by `lmrl evaluate` and `lmrl view`, which writes the page:

# %%
out = ["--out", str(ilql / "evaluation")]
assert lmrl(["evaluate", "t_maze", "--policy", str(ilql), "--episodes", str(min(9, EPISODES)), *out]) == 0
assert lmrl(["view", str(ilql)]) == 0

# %% [markdown]
# ## Change something
#
# One walk from a cell of your choice, with as much of the values as you like: V before each move. From the far end of
# the left arm with beta 8, V rises with every step. With `BETA = 0.0` BC plays: the walk is many times as long, and V
# goes up and down with the distance. With `START = (2, 4)` it begins where V is high already.

# %%
BETA, START = 8.0, (1, 1)
start = [Start(0, {"init_position": START})]
(walk,) = in_order(rollout(load_policy(ilql, TASK, beta=BETA), lambda: make("t_maze"), start, task="t_maze"))
(turns,) = token_values(module, [walk])
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(range(1, len(turns) + 1), [tokens[0].v for tokens in turns], marker="o", color="#0072B2")
axis.set(xlabel="move", ylabel="V before it", title=f"beta {BETA:g}, from {START}: {len(walk)} moves")
plt.show()
