# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 3. Exploring a trained policy
#
# How much the values weigh (beta), how greedily words are chosen (temperature), and where BC and ILQL disagree. Uses
# the runs of notebook 2, or trains them.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt

from lmrl.cli import main as lmrl
from lmrl.envs.registration import task
from lmrl.evaluation import evaluate, probe_maze
from lmrl.modules import load_policy

TINY = "LMRL_TINY" in os.environ
STEPS = {"bc": 4, "ilql": 4} if TINY else {"bc": 400, "ilql": 1200}
EPISODES = 2 if TINY else 50
SMALL = ["--data.init_args.size=40"] if TINY else []
RUNS, MAZE = Path("runs/notebooks"), task("maze_fo")

for name, start in (("bc", []), ("ilql", [f"--model.init_args.pretrained={RUNS / 'bc'}"])):
    if not (RUNS / name / "last.ckpt").is_file():
        words = [f"--trainer.default_root_dir={RUNS / name}", f"--trainer.max_steps={STEPS[name]}", *SMALL, *start]
        keep = "--trainer.callbacks=[{class_path: lmrl.callbacks.KeepLast}]"
        assert lmrl(["fit", "--config", f"configs/maze_fo/{name}.yaml", keep, *words]) == 0

# %% [markdown]
# ## Beta
#
# The policy samples from `log pi_beta + beta * min Q`. At 0 it is BC; far up the values decide alone, also where the
# language model would say nothing of the kind.


# %%
def scored(**settings: float) -> tuple[float, float, float]:
    """Mean return with its 95 % interval."""
    scores = evaluate(load_policy(RUNS / "ilql", MAZE, **settings), "maze_fo", EPISODES).scores()
    return scores["return_mean"], *scores["return_ci"]


def plotted(axis: plt.Axes, name: str, values: list[float], returns: list[tuple[float, float, float]]) -> None:
    """Returns with intervals, evenly spaced."""
    mean = [r[0] for r in returns]
    spread = [
        [m - r[1] for m, r in zip(mean, returns, strict=True)],
        [r[2] - m for m, r in zip(mean, returns, strict=True)],
    ]
    axis.errorbar([str(value) for value in values], mean, yerr=spread, marker="o", capsize=3)
    axis.set(xlabel=name, ylabel="mean return")


betas, temperatures = ([0.0, 8.0], [0.0, 1.0]) if TINY else ([0.0, 1.0, 4.0, 16.0, 64.0], [0.0, 0.5, 1.0, 2.0])
by_beta = [scored(beta=beta) for beta in betas]
by_temperature = [scored(temperature=temperature) for temperature in temperatures]
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
plotted(axes[0], "beta", betas, by_beta)
plotted(axes[1], "temperature", temperatures, by_temperature)
plt.show()

# %% [markdown]
# ## Where they disagree
#
# Both are set down in every cell and asked for their greedy move.

# %%
bc, ilql = (probe_maze(load_policy(RUNS / name, MAZE, temperature=0.0), "maze_fo") for name in ("bc", "ilql"))
print(f"right moves: BC {bc.right} of {len(bc.positions)}, ILQL {ilql.right} of {len(ilql.positions)}")
for place, cell in enumerate(bc.positions):
    if bc.moves[place] != ilql.moves[place]:
        right = " or ".join(move.strip() for move in bc.optimal[place])
        said = f"BC {bc.moves[place].strip()!r}, ILQL {ilql.moves[place].strip()!r}"
        print(f"{cell}: {said}; right is {right}; V {ilql.values[place]:.1f}")
