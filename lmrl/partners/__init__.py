"""Partners with a model behind them. An environment takes one as an argument and never imports any."""

from lmrl.partners.environment import environment, make_partner, partner_dialogue, partner_episodes

__all__ = ["environment", "make_partner", "partner_dialogue", "partner_episodes"]
