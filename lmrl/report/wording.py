"""Labels, order and colours of policies, and formats of numbers, the same in every table and picture."""

from collections.abc import Iterable, Sequence
from zlib import crc32

# Name to label and colour, from the weakest to the best informed policy. Methods of the benchmark have the palette of
# Okabe and Ito, which is distinct for all common kinds of colour vision; the others have colours between.
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
    "return_conditioned": ("return-conditioned BC", "#004C8C"),
    "mc": ("MC", "#009E73"),
    "ilql": ("ILQL", "#D55E00"),
    "awr": ("AWR", "#66A61E"),
    "archer": ("ArCHer", "#A6761D"),
    "qsft": ("Q-SFT", "#F4A582"),
    "ppo": ("PPO", "#CC79A7"),
    "online_filtered_bc": ("online filtered BC", "#E69F00"),
    "online_ilql": ("online ILQL", "#A63603"),
    "online_archer": ("online ArCHer", "#7B4F12"),
    "ilql_to_online": ("ILQL, then online ILQL", "#7F2704"),
    "turn_ppo": ("PPO by turn", "#E7298A"),
    "grpo": ("GRPO", "#3D3DD6"),
    "gigpo": ("GiGPO", "#9C9CFF"),
    "hgpo": ("HGPO", "#1F1F8F"),
    "gagpo": ("GAGPO", "#7A6AE0"),
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
# Colours of policies without a row above. The name picks one, so a policy keeps it in all pictures.
_SPARE = ("#8A5A44", "#1B7F79", "#6B4C9A", "#AA3377", "#5A6E1F", "#2F5D8A", "#B5483A", "#3F7F3F")


def label(name: str) -> str:
    """Return the label of a policy: ``filtered BC`` for ``filtered_bc``; an unknown name stays as it is."""
    return _PLAYERS[name][0] if name in _PLAYERS else name


def is_known(name: str) -> bool:
    """Whether this package has a label for a policy; policies of users have none."""
    return name in _PLAYERS


def colour(name: str) -> str:
    """Return the colour of a policy, as ``#RRGGBB``."""
    if name in _PLAYERS:
        return _PLAYERS[name][1]
    return _SPARE[crc32(name.encode()) % len(_SPARE)]


def ordered(names: Iterable[str]) -> list[str]:
    """Sort from the weakest to the best informed policy; unknown names come before ``optimal``, by name."""
    known = list(_PLAYERS)
    unknown_rank = known.index("optimal") - 0.5
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else unknown_rank, name))


MINUS = "\N{MINUS SIGN}"
UNKNOWN = "\N{EN DASH}"

BEFORE = "\N{DOUBLE DAGGER}"
"""Marks a policy with runs that are older than a fix that changes their numbers."""
FEW = "\N{SECTION SIGN}"
"""Marks an interval over episodes that rests on too few games."""
NO_SPREAD = "no spread"
"""Replaces the interval over training runs with equal scores."""


def number(value: float | None, decimals: int = 1) -> str:
    """Format a number with a typographic minus sign; None becomes a dash."""
    if value is None:
        return UNKNOWN
    rounded = f"{value:.{decimals}f}"
    # A value that is rounded to zero has no sign.
    return rounded.replace("-", MINUS if float(rounded) else "")


def count(value: float | None) -> str:
    """Format a count: ``980``, ``12.3 k``, ``5.00 M``; None becomes a dash."""
    if value is None:
        return UNKNOWN
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * unit:  # what would be rounded to a thousand of the smaller unit
            rounded = float(f"{value / unit:.3g}")
            decimals = 0
            if rounded < 10:
                decimals = 2
            elif rounded < 100:
                decimals = 1
            return f"{rounded:.{decimals}f}{name}"
    return f"{value:.0f}"


def percent(value: float, decimals: int = 1) -> str:
    """Format a share: 0.246 becomes ``24.6 %``."""
    return f"{number(100 * value, decimals)} %"


def with_interval(value: float, interval: Sequence[float], decimals: int = 1, scale: float = 1.0) -> str:
    """Format a value with its interval: ``97.3 [96.8, 97.9]``."""
    low, high = interval
    return f"{number(scale * value, decimals)} [{number(scale * low, decimals)}, {number(scale * high, decimals)}]"


def duration(seconds: float | None) -> str:
    """Format a duration: ``42 s``, ``5 min 03 s``, ``2 h 05 min``; None becomes a dash."""
    if seconds is None:
        return UNKNOWN
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
