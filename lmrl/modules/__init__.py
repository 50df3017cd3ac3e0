"""The algorithms, each a LightningModule: model, loss, optimizer, and `policy()`.

Each is imported when it is first named, so that players without a model need no torch.
"""

from typing import TYPE_CHECKING

from lmrl.utils.lazy import exports

__all__ = [
    "AWR",
    "BC",
    "GAGPO",
    "GRPO",
    "HGPO",
    "ILQL",
    "MC",
    "PPO",
    "QSFT",
    "ArCHer",
    "FilteredBC",
    "GiGPO",
    "GuidedPPO",
    "LanguageModule",
    "OnlineFilteredBC",
    "ReturnConditionedBC",
    "ValueModule",
    "find_trained",
    "load_module",
    "load_trained",
    "longest_action",
]

if TYPE_CHECKING:
    from lmrl.modules.archer import ArCHer
    from lmrl.modules.awr import AWR
    from lmrl.modules.base import LanguageModule
    from lmrl.modules.bc import BC
    from lmrl.modules.filtered_bc import FilteredBC, OnlineFilteredBC
    from lmrl.modules.gagpo import GAGPO
    from lmrl.modules.gigpo import GiGPO
    from lmrl.modules.grpo import GRPO
    from lmrl.modules.guided_ppo import GuidedPPO
    from lmrl.modules.hgpo import HGPO
    from lmrl.modules.ilql import ILQL
    from lmrl.modules.load import find_trained, load_module, load_trained, longest_action
    from lmrl.modules.mc import MC
    from lmrl.modules.ppo import PPO
    from lmrl.modules.qsft import QSFT
    from lmrl.modules.return_conditioned import ReturnConditionedBC
    from lmrl.modules.values import ValueModule


__getattr__, __dir__ = exports(
    __name__,
    {
        "AWR": "lmrl.modules.awr",
        "ArCHer": "lmrl.modules.archer",
        "BC": "lmrl.modules.bc",
        "FilteredBC": "lmrl.modules.filtered_bc",
        "GAGPO": "lmrl.modules.gagpo",
        "GRPO": "lmrl.modules.grpo",
        "HGPO": "lmrl.modules.hgpo",
        "GiGPO": "lmrl.modules.gigpo",
        "GuidedPPO": "lmrl.modules.guided_ppo",
        "ILQL": "lmrl.modules.ilql",
        "LanguageModule": "lmrl.modules.base",
        "MC": "lmrl.modules.mc",
        "OnlineFilteredBC": "lmrl.modules.filtered_bc",
        "PPO": "lmrl.modules.ppo",
        "QSFT": "lmrl.modules.qsft",
        "ReturnConditionedBC": "lmrl.modules.return_conditioned",
        "ValueModule": "lmrl.modules.values",
        "find_trained": "lmrl.modules.load",
        "load_module": "lmrl.modules.load",
        "load_trained": "lmrl.modules.load",
        "longest_action": "lmrl.modules.load",
    },
    search=True,
)
