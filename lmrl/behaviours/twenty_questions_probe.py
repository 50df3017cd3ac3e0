"""Questions to an oracle of Twenty Questions, half of them in words that the dataset does not hold."""

from collections.abc import Iterator
from random import Random

from lmrl.behaviours.twenty_questions import common_properties
from lmrl.envs.objects import things
from lmrl.protocols import PartnerRequest

__all__ = ["GROUPS", "probe"]

GROUPS = ("phrasings of the data", "held-out phrasings")
"""Players use all phrasings of a property but the last one."""


def probe(seed: int) -> Iterator[tuple[str, PartnerRequest]]:
    """Endlessly many questions, in turn from each of `GROUPS`: any object, any property that players ask for."""
    chance = Random(f"probe {seed}")
    while True:
        for group in GROUPS:
            thing, item = chance.choice(things()), chance.choice(common_properties())
            question = item.phrasings[-1] if group == GROUPS[1] else chance.choice(item.phrasings[:-1])
            facts = {"word": thing.name, "variants": thing.variants}
            yield group, PartnerRequest("twenty_questions", facts, (f"{question}\n",), (), chance.getrandbits(31))
