"""The algorithms, each a LightningModule: model, loss, optimizer, and `policy()`."""

from lmrl.modules.base import LanguageModule
from lmrl.modules.bc import BC
from lmrl.modules.filtered_bc import FilteredBC
from lmrl.modules.guided_ppo import GuidedPPO
from lmrl.modules.ilql import ILQL
from lmrl.modules.load import load_module, load_policy, trained_task
from lmrl.modules.mc import MC
from lmrl.modules.online_filtered_bc import OnlineFilteredBC
from lmrl.modules.ppo import PPO
from lmrl.modules.values import ValueModule

__all__ = [
    "BC",
    "ILQL",
    "MC",
    "PPO",
    "FilteredBC",
    "GuidedPPO",
    "LanguageModule",
    "OnlineFilteredBC",
    "ValueModule",
    "load_module",
    "load_policy",
    "trained_task",
]
