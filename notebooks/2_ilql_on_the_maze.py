# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 2. ILQL on the maze: scores and values
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/2_ilql_on_the_maze.ipynb)
#
# ILQL combines parts of episodes into a better policy. This notebook trains BC and ILQL on a small maze, scores them,
# and shows what ILQL has learned: V of each cell and Q of each word. The maze of the benchmark is three times as large.
# `configs/maze_fo` trains BC for 1,000 steps and ILQL for 4,000 there.

# %%
# In Colab, remove the first # of each line and run this cell. It installs lmrl and enters the folder of t_maze.py.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image, display
from t_maze import DATA, LAYOUT, PARTS, RUNS, TASK, TINY, record, train

from lmrl import load_policy
from lmrl.cli import main as lmrl
from lmrl.data.inspection import dataset_stats
from lmrl.data.storage import read_episodes
from lmrl.envs.maze.probe import probe_maze
from lmrl.envs.maze.probe_plot import PROBE_PLOT
from lmrl.envs.registry import make
from lmrl.evaluation import evaluate
from lmrl.evaluation.curves import find_metrics, read_curves
from lmrl.evaluation.token_values import token_values
from lmrl.modules import load_module
from lmrl.report.pictures import plot_probes
from lmrl.rollout import in_order, rollout
from lmrl.types import Start

EPISODES = 2 if TINY else 90
STEM = PARTS[0]

# %% [markdown]
# ## The data
#
# `t_maze.py` in this folder makes the maze and records its data. Most moves are random, and no episode leaves the part
# in which it began: the left arm, the right arm or the stem. The parts meet at the junction. So no episode that began
# in an arm reaches the goal.

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
# One YAML file describes a run, and dotted options change it. The second run starts from the weights of the first.

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
# Each move costs 1, except the one that reaches the goal. The optimal return is -3, the mean over the nine cells.

# %%
scores = {folder.name: evaluate(load_policy(folder, TASK), "t_maze", EPISODES).scores() for folder in (bc, ilql)}
for name, found in scores.items():
    low, high = found["return_ci"]
    print(f"{name}: return {found['return_mean']:.2f} [{low:.2f}, {high:.2f}], success {found['success_rate']:.0%}")
assert TINY or scores["ilql"]["return_ci"][0] > scores["bc"]["return_ci"][1], (
    "the intervals of ILQL and BC do not overlap"
)

# %% [markdown]
# ## V of each cell
#
# Colour and number show V, the arrow shows the greedy move. Wrong moves are dashed and framed. BC has no values.

# %%
probes = {folder.name: probe_maze(load_policy(folder, TASK, temperature=0.0), "t_maze") for folder in (bc, ilql)}
plot_probes(PROBE_PLOT, probes, RUNS / "values.png", "t_maze")
display(Image(RUNS / "values.png", width=900))

# %% [markdown]
# No recorded episode crosses the junction, yet ILQL has carried values from the goal into the arms, one action token
# per backup. The line is the discounted return of the shortest way: a move costs 1 at the last of its three tokens, the
# last move is free, and gamma is 0.99 per token. V lies below the line, because V is an expectile of the values of the
# recorded moves rather than the value of the best one.

# %%
distances = LAYOUT.distances()
moves = np.array([distances[cell] for cell in probes["ilql"].positions])
values = np.array(probes["ilql"].values)
straight = [-sum(0.99 ** (3 * move + 2) for move in range(count - 1)) for count in range(1, max(moves) + 1)]
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(range(1, max(moves) + 1), straight, color="#888888", label="shortest way")
axis.plot(moves, values, "o", color="#0072B2", label="V of a cell, ILQL")
axis.set(xlabel="moves to the goal", ylabel="discounted return")
axis.legend(frameon=False)
plt.show()
correlation = np.corrcoef(moves, values)[0, 1]
print(f"correlation of V with the distance: {correlation:.2f}")
assert TINY or correlation < -0.8, "V falls with the distance"
assert TINY or (values < np.array(straight)[moves - 1] + 0.5).all(), "V lies below the line, up to errors of learning"

# %% [markdown]
# ## Q of each word
#
# The table shows one episode, token by token: the probability under the trained policy, V before the token, and Q of
# the token. The page that `lmrl view` makes shows the same numbers above the words.

# %%
module = load_module(ilql)
episode = evaluate(load_policy(ilql, TASK), "t_maze", 1).episodes[0]
(turns,) = token_values(module, [episode])
for observation, tokens in list(zip(episode.observations, turns, strict=False))[:4]:
    print(observation.strip())
    for token in tokens:
        print(f"    {token.text!r:10s} p {token.probability:.2f}   V {token.v:7.2f}   Q {token.q:7.2f}")

# %% [markdown]
# `lmrl evaluate` and `lmrl view` do the same on the command line and write the page:

# %%
out = ["--out", str(ilql / "evaluation")]
assert lmrl(["evaluate", "t_maze", "--policy", str(ilql), "--episodes", str(min(9, EPISODES)), *out]) == 0
assert lmrl(["view", str(ilql)]) == 0

# %% [markdown]
# ## Change something
#
# The curve shows V before each move of one walk. From the far end of the left arm, with beta 8, V rises with every
# move. Try `BETA = 0.0`, which plays BC, and `START = (2, 4)`, a cell near the goal.

# %%
BETA, START = 8.0, (1, 1)
start = [Start(0, {"init_position": START})]
(walk,) = in_order(rollout(load_policy(ilql, TASK, beta=BETA), lambda: make("t_maze"), start, task="t_maze"))
(turns,) = token_values(module, [walk])
before_moves = [tokens[0].v for tokens in turns]
assert TINY or (BETA, START) != (8.0, (1, 1)) or before_moves == sorted(before_moves)
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.plot(range(1, len(turns) + 1), before_moves, marker="o", color="#0072B2")
axis.set(xlabel="move", ylabel="V before the move", title=f"beta {BETA:g}, from {START}: {len(walk)} moves")
plt.show()
