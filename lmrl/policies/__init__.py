"""Players: language models, language models weighed by values, rerankers, people."""

from lmrl.policies.lm import LMPolicy, load_lm_policy
from lmrl.policies.logits_processor import ValueGuidedLogitsProcessor
from lmrl.policies.rerank import RerankPolicy
from lmrl.policies.value_guided import ValueGuidedPolicy

__all__ = ["LMPolicy", "RerankPolicy", "ValueGuidedLogitsProcessor", "ValueGuidedPolicy", "load_lm_policy"]
