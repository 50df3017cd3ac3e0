"""Contrast of two colours."""


def contrast(one: str, other: str) -> float:
    """Of two colours ``#rgb`` or ``#rrggbb``, as WCAG 2 has it."""
    shades = []
    for code in (one.lstrip("#"), other.lstrip("#")):
        wide = code if len(code) == 6 else "".join(2 * digit for digit in code)
        parts = [int(wide[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        shades.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(shades) + 0.05) / (min(shades) + 0.05)
