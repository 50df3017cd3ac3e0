"""How players are called, ordered and coloured in every table and picture, so that a colour always means the same."""

from collections.abc import Iterable

__all__ = ["colour", "label", "ordered"]

# Okabe and Ito's palette: distinct for all common kinds of colour vision.
_PLAYERS: dict[str, tuple[str, str]] = {
    "wrong": ("wrong", "#ECECEC"),
    "repeated": ("repeated", "#DDDDDD"),
    "random": ("random", "#CFCFCF"),
    "concise": ("concise", "#DCCBB0"),
    "features": ("features", "#C9B38F"),
    "discounts": ("discounts", "#B59B70"),
    "behaviour": ("behaviour", "#ABABAB"),
    "data": ("data", "#C4C4C4"),
    "bc": ("BC", "#56B4E9"),
    "filtered_bc": ("filtered BC", "#0072B2"),
    "mc": ("MC", "#009E73"),
    "ilql": ("ILQL", "#D55E00"),
    "ppo": ("PPO", "#CC79A7"),
    "online_filtered_bc": ("online filtered BC", "#E69F00"),
    "online_ilql": ("online ILQL", "#A63603"),
    "ilql_to_online": ("ILQL, then online ILQL", "#7F2704"),
    "ilql_to_ppo": ("ILQL, then PPO", "#984EA3"),
    "symbolic_q": ("Q-learning on the grid", "#B8B0D9"),
    "symbolic_q_offline": ("offline Q-learning on the grid", "#9A8FC7"),
    "symbolic_dqn": ("DQN on the grid", "#7C6FB5"),
    "symbolic_cql": ("CQL on the grid", "#5F52A0"),
    "gpt4": ("GPT-4", "#F0E442"),
    "matched": ("matched", "#9C8055"),
    "consistent": ("consistent", "#9A9A9A"),
    "opener": ("opener", "#8A8A8A"),
    "optimal": ("optimal", "#7A7A7A"),
}
_UNKNOWN = "#8A5A44"


def label(name: str) -> str:
    """The name as people write it: ``filtered_bc`` is ``filtered BC``; an unknown one stays as it is."""
    return _PLAYERS.get(name, (name, _UNKNOWN))[0]


def colour(name: str) -> str:
    """The colour of a player, as ``#RRGGBB``."""
    return _PLAYERS.get(name, (name, _UNKNOWN))[1]


def ordered(names: Iterable[str]) -> list[str]:
    """From the plainest to the best informed player; unknown ones by name before ``optimal``."""
    rank = {name: place for place, name in enumerate(_PLAYERS)}
    return sorted(set(names), key=lambda name: (rank.get(name, rank["optimal"] - 0.5), name))
