"""The official Car Dealer files: conversations with the buyer's profile and the outcome.

A record is ``{"buyer_info", "lines": [{"role", "text"}], "output"}``. The reward follows from ``output`` and the
budget, in the unit that the environment's arguments choose. A record without ``output`` is a truncated episode; a last
line of the seller that the buyer does not answer is dropped. Older files, with a list of conversations per personality
on one line, work too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lmrl.envs.base import TextEnv
from lmrl.envs.car_dealer.env import HEADER, CarDealer, Sale, find_sale
from lmrl.envs.official import FileFormat, Game
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.types import Episode

__all__ = ["FORMAT", "car_dealer_episode", "game_of_conversation"]

_ROLES = ("Seller", "Buyer")


@dataclass(frozen=True, slots=True)
class _Conversation(Game):
    """Rewards are not in the file: they follow from the sale and the budget."""

    buyer: dict[str, Any]
    sale: Sale | None


def game_of_conversation(record: Any) -> _Conversation:
    """Parse a record ``{"buyer_info": {"budget", ...}, "lines": [{"role", "text"}, ...], "output": {...}}``.

    ``output`` is ``{"car_bought": bool, "msrp": int, "buy_price": int or null}``; without it nothing was decided.
    Consecutive lines of the seller become one action, joined by spaces; those of the buyer become one observation.

    Raises:
        UserError: if the record is malformed.
    """
    if not isinstance(record, Mapping):
        raise UserError(f"a record must be an object with buyer_info, lines and output, got {record!r:.60}")
    buyer = record.get("buyer_info")
    lines = record.get("lines")
    if not isinstance(buyer, Mapping):
        raise UserError(f"buyer_info must be an object, got {buyer!r:.60}")
    if _dollars(buyer.get("budget"), "budget of buyer_info") < 1:
        raise UserError(f"budget of buyer_info must be at least 1, got {buyer['budget']!r}")
    if not isinstance(lines, list) or not lines:
        raise UserError(f"lines must be a list with at least one line, got {lines!r:.60}")
    observations = [HEADER]
    actions: list[str] = []
    speaker = ""
    for index, line in enumerate(lines):
        if not isinstance(line, Mapping) or line.get("role") not in _ROLES or not isinstance(line.get("text"), str):
            raise UserError(f"lines[{index}] must be an object with role (Seller or Buyer) and text, got {line!r:.80}")
        text = " ".join(line["text"].split())
        if line["role"] == "Buyer":
            observations[-1] += f"{find_sale(text)[0]}\n"
        elif speaker == "Seller":
            actions[-1] = f"{actions[-1][:-1]} {text}\n"
        else:
            actions.append(f"{text}\n")
            observations.append("")
        speaker = line["role"]
    sale = _sale(record["output"]) if record.get("output") is not None else None
    return _Conversation(
        tuple(observations), tuple(actions), (0.0,) * len(actions), sale is not None, dict(buyer), sale
    )


def car_dealer_episode(game: Game, task: Task, env: TextEnv) -> Episode | None:
    """Return the episode of a record, rewarded as in the environment; None if no line of the seller can be kept."""
    assert isinstance(game, _Conversation) and isinstance(env, CarDealer)
    # A last line without an answer cannot be kept, unless the buyer decided after it.
    known = len(game.actions)
    if not game.done and not game.observations[-1]:
        known -= 1
    if known == 0:
        return None
    budget = _dollars(game.buyer["budget"], "budget")
    # Only the end is rewarded; ``info`` has the reward in both units.
    units = {kind: game.sale.reward(kind, budget) if game.sale else 0.0 for kind in ("revenue", "fancy")}
    return Episode(
        task=task.name,
        observations=game.observations[: known + 1],
        actions=game.actions[:known],
        rewards=(*game.rewards[: known - 1], units[env.reward]),
        terminated=game.done,
        truncated=not game.done,
        info={
            "source": "official",
            "success": bool(game.sale and game.sale.bought),
            "illegal": 0,
            "buyer": game.buyer,
            "output": game.sale.output() if game.sale else None,
            **units,
        },
    )


def _sale(output: Any) -> Sale:
    if not isinstance(output, Mapping) or not isinstance(output.get("car_bought"), bool):
        raise UserError(f"output must be an object with car_bought (true or false), got {output!r:.80}")
    price = output.get("buy_price")
    paid = _dollars(price, "buy_price of output") if output["car_bought"] and price is not None else None
    return Sale(output["car_bought"], _dollars(output.get("msrp") or 0, "msrp of output"), paid)


def _dollars(value: Any, name: str) -> int:
    # Some records hold numbers, others texts such as "$31,000".
    if isinstance(value, str):
        number = value.lstrip("$").replace(",", "")
        value = int(number) if number.isdecimal() else value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise UserError(f"{name} must be a number of dollars, got {value!r:.60}")
    return int(value)


def _by_personality(records: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the conversations of a file; an older file is one object with a list of them per personality."""
    for where, record in records:
        if isinstance(record, Mapping) and record and "lines" not in record:
            for personality, talks in record.items():
                for number, talk in enumerate(talks if isinstance(talks, list) else [talks], start=1):
                    yield f"{where}, {personality} {number}", talk
        else:
            yield where, record


FORMAT = FileFormat(game_of_conversation, car_dealer_episode, "[", _by_personality)
