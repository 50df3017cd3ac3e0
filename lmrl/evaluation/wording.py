"""Numbers as people read them, the same in every table and picture."""

from collections.abc import Sequence

__all__ = ["MINUS", "UNKNOWN", "count", "duration", "number", "percent", "with_interval"]

MINUS, UNKNOWN = "\N{MINUS SIGN}", "\N{EN DASH}"


def number(value: float | None, decimals: int = 1) -> str:
    """A number with a real minus sign; a dash for what is not known."""
    return UNKNOWN if value is None else f"{value:.{decimals}f}".replace("-", MINUS)


def count(value: float | None) -> str:
    """``980``, ``12.3 k``, ``5.00 M``; a dash for what was not counted."""
    if value is None:
        return UNKNOWN
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:#.3g}".rstrip(".") + name
    return f"{value:.0f}"


def percent(value: float, decimals: int = 1) -> str:
    """``24.6 %`` of 0.246."""
    return f"{number(100 * value, decimals)} %"


def with_interval(value: float, interval: Sequence[float], decimals: int = 1, scale: float = 1.0) -> str:
    """``97.3 [96.8, 97.9]``."""
    low, high = interval
    return f"{number(scale * value, decimals)} [{number(scale * low, decimals)}, {number(scale * high, decimals)}]"


def duration(seconds: float | None) -> str:
    """``42 s``, ``5 min 03 s``, ``2 h 05 min``; a dash for what nobody measured."""
    if seconds is None:
        return UNKNOWN
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
