# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 7. Values over a dialogue
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/7_values_over_a_dialogue.ipynb)
#
# In Twenty Questions each question costs a point, except the one that names the hidden object. Monte Carlo returns (MC)
# learn from recorded dialogues how many points the rest of a dialogue costs. This notebook trains a small MC model and
# shows its values over the words of unseen dialogues, how accurate they are, and which answers change them.

# %%
# In Colab, remove the first # of each line and run this cell. It installs lmrl.
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
# Both trainings follow `configs/twenty_questions`, with two layers of width 64, fewer dialogues and fewer steps. That
# is too little to play well, but enough for values. MC learns values on a copy of the BC model. Gamma is 1, so a value
# counts questions: -7 means seven more wrong ones.

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
# ## How accurate are the values?
#
# Each point shows V before a question of an unseen dialogue, and the return of the rest of the dialogue. V is a mean
# over all that may follow, and the return is what did follow, so the points scatter around the line. MC computes V as
# the mean of Q under the trained policy. This policy prefers words of high Q, so before the first question V is too
# high.
#
# The number of the question alone predicts part of the return. The last line below says how much. V explains more,
# because it also reads the dialogue.

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
assert TINY or before[number == 0].mean() > after[number == 0].mean(), "V is too high before the first question"

# %% [markdown]
# ## Which answers matter?
#
# After an answer that says nothing, V rises by one, because one wrong question fewer is left. A larger rise is good
# news, and a smaller one is bad news. These are the best and the worst news in all unseen dialogues:

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
# The curve shows V before each word of one dialogue. Dotted lines mark the answers; green means yes. `DIALOGUE` is the
# number of an unseen dialogue. In dialogue 0 the player finds the object, in dialogue 1 it does not.

# %%
DIALOGUE = 0
episode, turns = unseen[DIALOGUE], values[DIALOGUE]
words = [token for tokens in turns for token in tokens]
figure, axis = plt.subplots(figsize=(12, 3.6), layout="constrained")
assert TINY or (unseen[0].success and not unseen[1].success)
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
