"""Values of each token of a policy's actions. Scripted policies never import this module, so they need no torch."""

from typing import Any, TypeAlias

from lmrl.errors import UserError
from lmrl.evaluation.token_values import token_values
from lmrl.modules import LanguageModule
from lmrl.report.pages import rounded, shown_text
from lmrl.types import Episode, LoadedPolicy

__all__ = ["WordValues", "words_from"]

WordValues: TypeAlias = list[list[Any]]
"""A token each: its text, its probability (at temperature 1 and the beta of the module), V before it, and its Q."""


def words_from(policy: LoadedPolicy, episode: Episode, first: int) -> list[WordValues | None]:
    """Return the tokens of the actions of an episode from turn ``first`` on, with their values.

    Args:
        policy: the policy that chose them.
        episode: the episode so far.
        first: number of the first turn that is asked for, from 0.

    Returns:
        One entry per turn; None for a policy without values over its tokens, and for texts that it cannot read.
    """
    values: list[WordValues | None] = [None] * (len(episode) - first)
    module = policy.module
    if not isinstance(module, LanguageModule) or not values:
        return values
    try:
        (turns,) = token_values(module, [episode])
    except UserError:  # a person may have typed a character that the tokenizer does not have
        return values
    for index, turn in enumerate(turns[first:]):
        # Some modules have V of the state but no Q of each token.
        if all(token.q is not None for token in turn):
            values[index] = [
                [shown_text(t.text), rounded(t.probability, 4), rounded(t.v, 3), rounded(t.q, 3)] for t in turn
            ]
    return values
