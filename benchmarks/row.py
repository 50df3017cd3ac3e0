"""`Row`: one figure of a benchmark."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Row"]

_RATIOS = ("", "x", "%")


@dataclass(frozen=True)
class Row:
    """One figure: a number with its unit, which way is better, and how it is printed."""

    name: str
    value: float | None
    """None: could not be measured here, and `shown` says why."""
    unit: str = ""
    """``x`` and ``%`` (and no unit at all) are ratios, which say something on other machines too."""
    better: Literal["higher", "lower"] | None = None
    """None: a fact beside the others, never a regression."""
    asked: str = ""
    digits: int = 0
    """Behind the decimal point, in print."""
    shown: str = ""
    """What is printed where the number and its unit alone will not do."""

    @property
    def measured(self) -> str:
        """The figure in print."""
        if self.shown or self.value is None:
            return self.shown
        close = self.unit == "x" or self.unit.startswith("%")
        return f"{self.value:,.{self.digits}f}{'' if close else ' '}{self.unit}".strip()

    @property
    def is_ratio(self) -> bool:
        """Whether it can be held against the same figure of another machine."""
        return self.unit in _RATIOS

    def record(self) -> dict[str, Any]:
        """JSON-like: the number as it is, and as it is printed."""
        whole = asdict(self)
        return {name: whole[name] for name in ("name", "value", "unit", "better", "asked")} | {"shown": self.measured}

    def __str__(self) -> str:
        return f"{self.name} | {self.measured} | {self.asked}"
