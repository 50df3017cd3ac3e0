"""Signs that a policy has collapsed, in words."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from lmrl.episode import Episode

__all__ = ["signs_of_collapse"]

_ENTROPY = 0.01  # nats per token
_SHARE = 0.9  # of all actions
_REPEATED = 0.5  # of the three-token pieces within actions
_FEW = 16  # fewer actions or pieces than this say nothing


def signs_of_collapse(episodes: Sequence[Episode]) -> list[str]:
    """What looks wrong about a round; empty if nothing does.

    Looks at the mean negative log-probability of what was sampled (an estimate of the entropy), at the spread of the
    returns, and at text that repeats itself, from action to action and within one.
    """
    logprobs = [p for e in episodes for turn in e.action_logprobs for p in turn]
    actions = Counter(action for e in episodes for action in e.actions)
    pieces = [tuple(ids[i : i + 3]) for e in episodes for ids in e.action_ids for i in range(len(ids) - 2)]
    fresh = sum(len({ids[i : i + 3] for i in range(len(ids) - 2)}) for e in episodes for ids in e.action_ids)
    returns = [e.total_reward for e in episodes]
    found = []
    if len(logprobs) >= _FEW and -float(np.mean(logprobs)) < _ENTROPY:
        found.append(f"entropy is near zero: {-float(np.mean(logprobs)):.4f} nats per token")
    if len(returns) > 1 and float(np.std(returns)) < 1e-6:
        found.append(f"returns do not differ: all {len(returns)} are {returns[0]:g}")
    if actions.total() >= _FEW and (most := actions.most_common(1)[0])[1] > _SHARE * actions.total():
        found.append(f"{most[1]} of {actions.total()} actions are {most[0]!r}")
    if len(pieces) >= _FEW and 1.0 - fresh / len(pieces) > _REPEATED:
        found.append(f"{1.0 - fresh / len(pieces):.0%} of the three-token pieces within actions are repeated")
    return found
