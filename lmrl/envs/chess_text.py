"""Chess in the benchmark's spelling: one space between all characters."""

__all__ = ["plain_fen", "plain_san", "spaced_fen", "spaced_san"]


def spaced_fen(fen: str) -> str:
    """A position as the player reads it; a space of the FEN becomes three, and a line end follows."""
    return " ".join(fen) + "\n"


def plain_fen(text: str) -> str:
    """The FEN in such a text (the line end may be missing)."""
    return text.removesuffix("\n")[::2]


def spaced_san(san: str) -> str:
    r"""A move as the player writes it: ``N f 3\n``."""
    return " ".join(san) + "\n"


def plain_san(text: str) -> str:
    """The move in a text: ends stripped, all spaces removed."""
    return text.strip().replace(" ", "")
