"""Second speakers with a model behind them. An environment takes one as an argument and never imports any."""

from lmrl.partners.environment import environment, make_partner
from lmrl.partners.episodes import partner_episodes, spoken

__all__ = ["environment", "make_partner", "partner_episodes", "spoken"]
