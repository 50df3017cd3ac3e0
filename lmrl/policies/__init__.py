"""Players: language models, here or at a server, language models weighed by values, rerankers, people.

A person and a chat model at an endpoint need no torch, so that each player is imported when it is first named.
"""

from typing import TYPE_CHECKING

from lmrl.utils.lazy import exports

__all__ = [
    "ActorCriticPolicy",
    "ConditionedPolicy",
    "LMPolicy",
    "RatioGuidedPolicy",
    "RerankPolicy",
    "VLLMPolicy",
    "ValueGuidedLogitsProcessor",
    "ValueGuidedPolicy",
    "load_lm_policy",
    "load_vllm_policy",
    "vllm_player",
]

if TYPE_CHECKING:
    from lmrl.policies.conditioned import ConditionedPolicy
    from lmrl.policies.lm import ActorCriticPolicy, LMPolicy, load_lm_policy
    from lmrl.policies.logits_processor import ValueGuidedLogitsProcessor
    from lmrl.policies.rerank import RerankPolicy
    from lmrl.policies.value_guided import RatioGuidedPolicy, ValueGuidedPolicy
    from lmrl.policies.vllm import VLLMPolicy, load_vllm_policy, vllm_player


__getattr__, __dir__ = exports(
    __name__,
    {
        "ActorCriticPolicy": "lmrl.policies.lm",
        "ConditionedPolicy": "lmrl.policies.conditioned",
        "LMPolicy": "lmrl.policies.lm",
        "RatioGuidedPolicy": "lmrl.policies.value_guided",
        "RerankPolicy": "lmrl.policies.rerank",
        "VLLMPolicy": "lmrl.policies.vllm",
        "ValueGuidedLogitsProcessor": "lmrl.policies.logits_processor",
        "ValueGuidedPolicy": "lmrl.policies.value_guided",
        "load_lm_policy": "lmrl.policies.lm",
        "load_vllm_policy": "lmrl.policies.vllm",
        "vllm_player": "lmrl.policies.vllm",
    },
)
