"""Players: language models, language models weighed by values, rerankers, people."""

from lmrl.policies.lm import LMPolicy
from lmrl.policies.rerank import RerankPolicy
from lmrl.policies.value_guided import ValueGuidedPolicy

__all__ = ["LMPolicy", "RerankPolicy", "ValueGuidedPolicy"]
