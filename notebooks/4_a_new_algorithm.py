# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 4. A new algorithm
#
# [![Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/lmrl/lmrl/blob/main/notebooks/4_a_new_algorithm.ipynb)
#
# This notebook writes advantage-weighted behavioural cloning (in the spirit of Peng et al. 2019). It imitates each word
# of the data with a weight: the more the return after the word exceeds the expected one, the larger the weight. A V
# head learns the expected return.
#
# An algorithm is a subclass of `LanguageModule` that defines its losses and its policy. The base class provides the
# optimizer, gradients in which all action tokens count alike, checkpoints and export. `BC` already has the policy.

# %%
# In Colab, remove the first # of each line and run this cell. It installs lmrl.
# # !git clone --quiet --depth 1 https://github.com/lmrl/lmrl
# # %cd lmrl/notebooks
# # %pip install --quiet ..

# %%
import os
from dataclasses import replace
from typing import NamedTuple

import lightning as L
import matplotlib.pyplot as plt
from torch import Tensor

from lmrl.datamodules import BatchSpec, MazeDataModule
from lmrl.evaluation import evaluate
from lmrl.evaluation.intervals import bootstrap_mean
from lmrl.losses import gather_token_scores
from lmrl.models.heads import ValueHead
from lmrl.models.lm import head_of, hidden_states, trunk_of
from lmrl.modules import BC
from lmrl.tokens.collate import TokenBatch

TINY = "LMRL_TINY" in os.environ
STEPS, EPISODES = (3, 2) if TINY else (400, 200)


# %%
class AWLoss(NamedTuple):
    """Terms of the loss; all are logged, `loss` is minimised."""

    loss: Tensor
    nll: Tensor
    v_loss: Tensor
    weight_mean: Tensor


class AdvantageWeightedBC(BC):
    """BC in which a token counts ``exp((return to go - V) / temperature)``, at most `limit`."""

    name = "advantage_weighted_bc"

    def __init__(self, temperature: float = 1.0, limit: float = 20.0, gamma: float = 0.99, **shared) -> None:
        super().__init__(**shared)
        self.temperature, self.limit, self.gamma = temperature, limit, gamma
        self.v_head = ValueHead(int(self.model.config.hidden_size), 1, 0.0)

    def batch_spec(self) -> BatchSpec:
        return replace(super().batch_spec(), returns_gamma=self.gamma)  # batch.return_to_go

    def losses(self, batch: TokenBatch) -> AWLoss:
        hidden = hidden_states(trunk_of(self.model), batch)  # (S, width), at the distinct states
        logits = head_of(self.model)(hidden)
        nll = gather_token_scores(logits, batch.state, batch.token).nll  # (N,), of the action tokens
        value = self.v_head(hidden).squeeze(-1)[batch.state]
        advantage = batch.return_to_go - value.detach()
        weight = (advantage / self.temperature).exp().clamp(max=self.limit)
        count = max(1, batch.n_tokens)
        weighted = (weight * nll).sum() / count
        v_loss = (value - batch.return_to_go).square().sum() / count
        return AWLoss(weighted + 0.1 * v_loss, nll.sum() / count, v_loss, weight.sum() / count)


# %% [markdown]
# Its arguments are plain values, so its checkpoints load like all others. Compare it with BC on the same data:


# %%
def trained(kind: type[BC], **settings: float) -> BC:
    """A small model after a few hundred steps."""
    L.seed_everything(0, verbose=False)
    small = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 1024, "initializer_range": 0.1}
    module = kind(architecture=small, lr=2e-3, **settings)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = L.Trainer(max_steps=STEPS, accelerator="cpu", limit_val_batches=0, gradient_clip_val=1.0, **quiet)
    trainer.fit(module, MazeDataModule("maze_fo", size=40 if TINY else None, batch_size=512, max_tokens=256))
    losses = {name: value for name, value in trainer.callback_metrics.items() if name.startswith(kind.name)}
    print({name: round(float(value), 3) for name, value in losses.items()})
    return module.eval()


returns = {}
for kind in (BC, AdvantageWeightedBC):
    played = evaluate(trained(kind).policy(max_new_tokens=8), "maze_fo", EPISODES)
    scores, returns[kind.name] = played.scores(), [episode.total_reward for episode in played.episodes]
    low, high = scores["return_ci"]
    print(
        f"{kind.name}: return {scores['return_mean']:.1f} [{low:.1f}, {high:.1f}], success {scores['success_rate']:.0%}"
    )

# %% [markdown]
# Data, network and number of steps are the same, so the weights (and V on the shared layers) make the difference. The
# interval is over episodes of these two runs. It does not say how other training seeds would differ.

# %%
# Both played the same games, so they are compared game by game, within each start.
gains = [weighted - plain for weighted, plain in zip(returns["advantage_weighted_bc"], returns["bc"], strict=True)]
gain = bootstrap_mean(gains, strata=[place % played.starts for place in range(EPISODES)])
print(f"advantage_weighted_bc over bc, in points of return: 95 % [{gain.low:.1f}, {gain.high:.1f}]")
assert TINY or gain.low > 0

# %% [markdown]
# The histogram shows the returns. Episodes at its left end did not reach the goal within 100 moves.

# %%
figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
axis.hist(list(returns.values()), bins=12, label=list(returns), color=["#999999", "#0072B2"])
axis.set(xlabel="return", ylabel="episodes")
axis.legend(frameon=False)
plt.show()

# %% [markdown]
# The command line takes any class that can be imported (`docs/guide/add_algorithm.md`). If you keep a loss, put its
# mathematics into a function of tensors, and test that function with numbers worked out by hand.

# %% [markdown]
# ## Change something
#
# The temperature says how fast the weight grows with the advantage. With `TEMPERATURE = 100.0` all weights are about 1,
# and the new algorithm is BC, apart from the effect of V on the shared layers. With a small temperature only few
# tokens count, each at most `limit`. Try `TEMPERATURE = 0.1`.

# %%
TEMPERATURE = 100.0
module = trained(AdvantageWeightedBC, temperature=TEMPERATURE)
weight = float(module.trainer.callback_metrics["advantage_weighted_bc/weight_mean"])
assert TINY or TEMPERATURE != 100.0 or abs(weight - 1) < 0.1
changed = evaluate(module.policy(max_new_tokens=8), "maze_fo", EPISODES)
strata = [place % changed.starts for place in range(EPISODES)]  # starts are taken in turn
by_name = {"bc": returns["bc"], "temperature 1": returns["advantage_weighted_bc"]}
by_name[f"temperature {TEMPERATURE:g}"] = [episode.total_reward for episode in changed.episodes]
figure, axis = plt.subplots(figsize=(6, 2.4), layout="constrained")
for name, found in by_name.items():
    axis.plot(bootstrap_mean(found, strata=strata), (name, name), color="#0072B2")
    axis.plot(sum(found) / len(found), name, "o", color="#0072B2")
axis.set(xlabel="mean return, with the 95 % interval over episodes")
axis.invert_yaxis()
plt.show()
