# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 2. ILQL on the maze, and what it has learned
#
# In the maze's dataset no episode walks the whole way; ILQL learns to stitch parts of episodes together. Here are BC
# and ILQL after a short training, and their values. So short a training shows how values spread from the goal, not yet
# a good player: the scores in the README take the 1,000 and 4,000 steps of `configs/maze_fo`.

# %%
import os
from pathlib import Path

from IPython.display import Image, display

from lmrl.cli import main as lmrl
from lmrl.envs.registration import task
from lmrl.evaluation import evaluate, probe_maze
from lmrl.evaluation.curves import find_metrics, read_curves
from lmrl.evaluation.maze_picture import draw_mazes
from lmrl.evaluation.token_values import token_values
from lmrl.modules import load_module, load_policy

TINY = "LMRL_TINY" in os.environ
STEPS = {"bc": 4, "ilql": 4} if TINY else {"bc": 400, "ilql": 1200}
EPISODES = 2 if TINY else 100
SMALL = ["--data.init_args.size=40"] if TINY else []
RUNS = Path("runs/notebooks")


# %% [markdown]
# A run is one YAML file; dotted options change it. The second run starts from the weights of the first.


# %%
def train(name: str, *options: str) -> Path:
    """Train unless the run is there."""
    folder = RUNS / name
    if not (folder / "best.ckpt").is_file():
        games = f"{{task: maze_fo, every_n_steps: 400, episodes: {EPISODES}}}"
        playing = f"{{class_path: lmrl.callbacks.InteractiveEvaluation, init_args: {games}}}"
        words = [f"--trainer.default_root_dir={folder}", f"--trainer.max_steps={STEPS[name]}", *SMALL, *options]
        words.append(f"--trainer.callbacks=[{playing}, {{class_path: lmrl.callbacks.KeepLast}}]")
        assert lmrl(["fit", "--config", f"configs/maze_fo/{name}.yaml", *words]) == 0
    return folder


bc = train("bc")
ilql = train("ilql", f"--model.init_args.pretrained={bc}")

# %%
for folder in (bc, ilql):
    curves = read_curves(find_metrics(folder))
    returns = curves["eval/maze_fo/return_mean"]
    print(folder.name, "return in play:", [f"step {s}: {v:.1f}" for s, v in zip(*returns, strict=True)])

# %% [markdown]
# ## Scores, and the published ones
#
# Published (GPT-2 small, long training): BC -72.1, ILQL -6.97; the optimum is -6.84.

# %%
for folder in (bc, ilql):
    scores = evaluate(load_policy(folder, task("maze_fo")), "maze_fo", EPISODES).scores()
    low, high = scores["return_ci"]
    success = f"success {scores['success_rate']:.0%}"
    print(f"{folder.name}: return {scores['return_mean']:.2f} [{low:.2f}, {high:.2f}], {success}")

# %% [markdown]
# ## What it knows of each cell
#
# V as colour and number, the greedy move as an arrow; wrong moves are dashed and framed.

# %%
probes = {
    folder.name: probe_maze(load_policy(folder, task("maze_fo"), temperature=0.0), "maze_fo") for folder in (bc, ilql)
}
draw_mazes(probes, RUNS / "values.png", "maze_fo")
display(Image(RUNS / "values.png", width=900))

# %% [markdown]
# ## What it thinks of each word
#
# One episode, token by token: the probability under the policy that plays, V before the token, Q of the token. The same
# numbers are over the words on the page that `lmrl view` makes.

# %%
module = load_module(ilql)
episode = evaluate(load_policy(ilql, task("maze_fo")), "maze_fo", 1).episodes[0]
(turns,) = token_values(module, [episode])
for observation, tokens in list(zip(episode.observations, turns, strict=False))[:6]:
    print(observation.strip())
    for token in tokens:
        print(f"    {token.text!r:10s} p {token.probability:.2f}   V {token.v:7.2f}   Q {token.q:7.2f}")

# %%
assert (
    lmrl(["evaluate", "maze_fo", "--policy", str(ilql), "--episodes", str(EPISODES), "--out", str(ilql / "evaluation")])
    == 0
)
assert lmrl(["view", str(ilql)]) == 0
