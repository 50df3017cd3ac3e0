"""Values of each token that a policy with values says. Players without a model never import this."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from lmrl.errors import UserError
from lmrl.evaluation.token_values import TokenValue, token_values
from lmrl.modules import LanguageModule
from lmrl.report.pages import rounded, shown_text
from lmrl.types import Episode, LoadedPolicy

__all__ = ["WordValues", "words_from"]

WordValues: TypeAlias = list[list[Any]]
"""A token each: its text, its probability (at temperature 1 and the beta of the module), V before it, and its Q."""


def words_from(policy: LoadedPolicy, episode: Episode, first: int) -> list[WordValues | None]:
    """The tokens of the actions of an episode from turn ``first`` on, with their values.

    Args:
        policy: the one that said them.
        episode: so far.
        first: of the turns that are asked for, from 0.

    Returns:
        One entry per turn; None for a policy without values over its tokens, and for texts that it cannot read.
    """
    nothing: list[WordValues | None] = [None] * (len(episode) - first)
    module = policy.module
    if not isinstance(module, LanguageModule) or not nothing:
        return nothing
    try:
        (turns,) = token_values(module, [episode])
    except UserError:  # a person may have typed what has no tokens
        return nothing
    return [_shown(turn) if all(token.q is not None for token in turn) else None for turn in turns[first:]]


def _shown(turn: Sequence[TokenValue]) -> WordValues:
    return [[shown_text(t.text), rounded(t.probability, 4), rounded(t.v, 3), rounded(t.q, 3)] for t in turn]
