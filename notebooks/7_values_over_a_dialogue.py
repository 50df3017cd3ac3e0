# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 7. Values over a dialogue
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/7_values_over_a_dialogue.ipynb)
#
# Twenty Questions costs a point for each question that does not name the hidden object. Monte Carlo returns (MC) learn
# from recorded dialogues what is still to be paid, after every word. Here is a small MC model after a short training:
# its values over the words of dialogues that it has not seen, how right they are, and which answers change them.

# %%
# In Colab, take the first # of these lines away and run them: they install lmrl.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

from lmrl.cli import main as lmrl
from lmrl.data import generate
from lmrl.data.storage import read_episodes
from lmrl.evaluation.token_values import token_values
from lmrl.modules import load_module

TINY = "LMRL_TINY" in os.environ
SIZE, UNSEEN, STEPS = (60, 6, {"bc": 2, "mc": 2}) if TINY else (2000, 100, {"bc": 120, "mc": 300})
RUNS = "runs/notebook_7"

# %% [markdown]
# ## Training
#
# Both as in `configs/twenty_questions`, with two layers of width 64, fewer dialogues and fewer steps: too few to play
# well, and enough for values. MC learns values on a copy of the BC model. Gamma is 1, so that a value is a number of
# questions: -7 says that seven more will be asked in vain.

# %%
path = generate("twenty_questions", SIZE, 0, progress=False)
SHARED = [f"--data.init_args.path={path}", "--data.init_args.batch_size=16", "--evaluation.episodes=2"]
SMALL = "{model_type: llama, num_hidden_layers: 2, num_attention_heads: 4, hidden_size: 64, intermediate_size: 256,"
SMALL += " max_position_embeddings: 1024, initializer_range: 0.05}"
OWN = {
    "bc": [f"--model.init_args.architecture={SMALL}", "--trainer.limit_val_batches=0"],
    "mc": [
        f"--model.init_args.pretrained={RUNS}/bc",
        "--model.init_args.gamma=1.0",
        "--model.init_args.cql_weight=0.01",
        "--model.init_args.optimizer=muon",
        "--model.init_args.lr=0.003",
        "--model.init_args.muon_lr=0.01",
    ],
}
for name, steps in STEPS.items():
    words = [f"--trainer.default_root_dir={RUNS}/{name}", f"--trainer.max_steps={steps}"]
    words += [f"--evaluation.every_n_steps={steps}", *SHARED, *OWN[name]]
    assert lmrl(["fit", "--config", f"configs/twenty_questions/{name}.yaml", "--overwrite", *words]) == 0

# %%
unseen = list(read_episodes(generate("twenty_questions", UNSEEN, 1, progress=False)))
values = list(token_values(load_module(f"{RUNS}/mc"), unseen))

# %% [markdown]
# ## How right are they?
#
# V before each question of the unseen dialogues, beside what the rest of the dialogue then cost. V is an average over
# all that may follow, the rest is what did follow, so points are spread around the line. MC has no V of its own: it is
# the mean of Q under the policy that plays, which prefers words of high Q, so in the beginning it expects too much.
#
# That fewer questions are left the more were asked is no art. So the last line below is what one would know from the
# number of the question alone; what V explains beyond it comes from what was said.

# %%
before, after, number = [], [], []
for episode, turns in zip(unseen, values, strict=True):
    for turn, tokens in enumerate(turns):
        before.append(tokens[0].v)
        after.append(sum(episode.rewards[turn:]))
        number.append(turn)
before, after, number = np.array(before), np.array(after), np.array(number)
figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
points = axis.scatter(before, after, c=number, s=12, alpha=0.6, cmap="viridis")
axis.axline((-10, -10), slope=1, color="#888888", linewidth=1)
axis.set(xlabel="V before the question", ylabel="what the rest returned")
figure.colorbar(points, label="questions asked before")
plt.show()
spread, mistake = np.var(after), np.mean((after - before) ** 2)
turn_means = np.array([after[number == turn].mean() for turn in number])
print(f"correlation {np.corrcoef(before, after)[0, 1]:.2f}")
print(f"of the variance of the returns V explains {1 - mistake / spread:.0%}")
print(f"the mean at the same question number would explain {1 - np.mean((after - turn_means) ** 2) / spread:.0%}")

assert TINY or mistake < np.mean((after - turn_means) ** 2), "V knows more than the number of the question"

# %% [markdown]
# ## Which answers matter?
#
# Every question costs a point, and one is fewer to come: an answer that says nothing raises V by one. Beyond that, V
# rises by what was good news and falls by what was bad. The best and the worst of all unseen dialogues:

# %%
news = []
for episode, turns in zip(unseen, values, strict=True):
    for turn in range(len(turns) - 1):
        said = f"{episode.actions[turn].strip()} {episode.observations[turn + 1].strip()}"
        news.append((turns[turn + 1][0].v - turns[turn][0].v - 1, turn + 1, said))
for gain, turn, said in [*sorted(news, reverse=True)[:6], *sorted(news)[:4]]:
    print(f"{gain:+5.1f} at question {turn:2d}: {said}")

# %% [markdown]
# ## Change something
#
# One dialogue, V before each of its words; dotted lines stand where an answer was heard, green for yes. `DIALOGUE` is a
# place in the list of the unseen ones. In 0 the object is found; in 1 it is not, and V creeps up to 0 only because the
# questions run out.

# %%
DIALOGUE = 0
episode, turns = unseen[DIALOGUE], values[DIALOGUE]
words = [token for tokens in turns for token in tokens]
figure, axis = plt.subplots(figsize=(12, 3.6), layout="constrained")
axis.plot([token.v for token in words], marker=".", color="#0072B2")
heard = 0
for tokens, answer in zip(turns, episode.observations[1:], strict=True):
    heard += len(tokens)
    yes = "Yes" in answer
    axis.axvline(heard - 0.5, color="#009E73" if yes else "#999999", linestyle=":", linewidth=2.5 if yes else 1)
axis.set_xticks(range(len(words)), [token.text.strip() for token in words], rotation=90, fontsize=7)
axis.set(
    ylabel="V before the word",
    title=f"return {episode.total_reward:.0f}, {'found' if episode.success else 'not found'}",
)
plt.show()
