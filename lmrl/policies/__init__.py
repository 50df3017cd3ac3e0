"""Players: language models, language models weighed by values, rerankers, people.

A person and a chat model at an endpoint need no torch, so that each player is imported when it is first named.
"""

from typing import TYPE_CHECKING

from lmrl.lazy import exports

__all__ = [
    "ConditionedPolicy",
    "LMPolicy",
    "RatioGuidedPolicy",
    "RerankPolicy",
    "ValueGuidedLogitsProcessor",
    "ValueGuidedPolicy",
    "load_lm_policy",
]

if TYPE_CHECKING:
    from lmrl.policies.conditioned import ConditionedPolicy
    from lmrl.policies.lm import LMPolicy, load_lm_policy
    from lmrl.policies.logits_processor import ValueGuidedLogitsProcessor
    from lmrl.policies.rerank import RerankPolicy
    from lmrl.policies.value_guided import RatioGuidedPolicy, ValueGuidedPolicy


__getattr__, __dir__ = exports(
    __name__,
    {
        "ConditionedPolicy": "lmrl.policies.conditioned",
        "LMPolicy": "lmrl.policies.lm",
        "RatioGuidedPolicy": "lmrl.policies.value_guided",
        "RerankPolicy": "lmrl.policies.rerank",
        "ValueGuidedLogitsProcessor": "lmrl.policies.logits_processor",
        "ValueGuidedPolicy": "lmrl.policies.value_guided",
        "load_lm_policy": "lmrl.policies.lm",
    },
)
