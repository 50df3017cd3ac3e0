"""Draw ``game.gif``: a game of a trained policy, turn by turn, its words coloured by the return that it expects.

Of itself it draws the policy of the zoo that the README shows: ``python docs/images/make_game.py``.
"""

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import lmrl
from lmrl.evaluation.token_values import TokenValue, token_values
from lmrl.rollout import rollout
from lmrl.types import Episode, Start

SIZE = (8.4, 4.2)
DPI = 100
WIDTH = 62  # letters in a line
LINES = 17
SECONDS = 1.1  # for each turn
COLOURS = mpl.colormaps["RdYlGn"]


def play(policy: str, seed: int) -> tuple[Episode, list[list[TokenValue]]]:
    """One game, and the values of what was said."""
    loaded = lmrl.load_policy(policy)
    module = loaded.module
    task = str(module.made_with["task"])
    ((_, episode),) = rollout(loaded, lambda: lmrl.make(task), [Start(seed)], task=task)
    (values,) = token_values(module, [episode])
    return episode, values


Piece = tuple[str, float | None]
"""A piece of text, and its value if the policy said it."""


def lines(episode: Episode, values: Sequence[Sequence[TokenValue]], turns: int) -> list[list[Piece]]:
    """The text of the first turns in lines that fit, pieces side by side."""
    found: list[list[Piece]] = []
    for turn in range(turns + 1):
        for part in episode.observations[turn].splitlines():
            found += [[(line, None)] for line in textwrap.wrap(part, WIDTH) or [""]]
        if turn < turns:
            found.append([("> ", None)])
            for token in values[turn]:
                text = token.text.replace("\n", "")
                if sum(len(piece) for piece, _ in found[-1]) + len(text) > WIDTH:
                    found.append([("  ", None)])
                found[-1].append((text, token.q if token.v is None else token.v))
    return found[-LINES:]


def frame(episode: Episode, values: Sequence[Sequence[TokenValue]], turns: int, title: str) -> Image.Image:
    """The game up to a turn: text on the left, values of the states on the right."""
    known = [value.v for turn in values for value in turn if value.v is not None]
    scale = mpl.colors.Normalize(min(known), max(known))
    figure = Figure(figsize=SIZE, dpi=DPI, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    text = figure.add_axes((0.01, 0.02, 0.66, 0.9))
    text.set(xlim=(0, WIDTH), ylim=(LINES, 0))
    text.set_axis_off()
    for row, pieces in enumerate(lines(episode, values, turns)):
        column = 0
        for piece, value in pieces:
            style: dict[str, Any] = {"color": "#555555"}
            if value is not None:
                style = {
                    "weight": "bold",
                    "bbox": {"facecolor": COLOURS(0.15 + 0.7 * scale(value)), "edgecolor": "none", "pad": 1.0},
                }
            text.text(column, row + 0.5, piece, family="monospace", size=8, va="center", **style)
            column += len(piece)
    chart = figure.add_axes((0.74, 0.2, 0.23, 0.62))
    means = [float(np.mean([v.v for v in turn if v.v is not None])) for turn in values]
    chart.plot(range(1, len(means) + 1), means, color="#cccccc")
    chart.plot(range(1, turns + 1), means[:turns], color="#2b6cb0", marker="o", markersize=3)
    chart.set(xlabel="turn", title="expected return")
    chart.tick_params(labelsize=7)
    figure.text(0.02, 0.95, title, size=10, weight="bold", va="center")
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return Image.fromarray(pixels).convert("RGB")


def main() -> None:
    """Play, draw, and say what was drawn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="zoo:maze_fo/ilql", help="one with values")
    parser.add_argument("--seed", type=int, default=11, help="of the game")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("game.gif"))
    given = parser.parse_args()
    episode, values = play(given.policy, given.seed)
    title = f"{given.policy} plays {episode.task}"
    pictures = [frame(episode, values, turn, title) for turn in range(len(episode) + 1)]
    together = Image.fromarray(np.concatenate([np.asarray(picture) for picture in pictures]))
    colours = together.quantize(128, method=Image.Quantize.MAXCOVERAGE)  # else colours of few words get lost
    first, *rest = [picture.quantize(palette=colours, dither=Image.Dither.NONE) for picture in pictures]
    times = [int(1000 * SECONDS)] * (len(pictures) - 1) + [4000]
    first.save(given.out, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    size = given.out.stat().st_size // 1000
    print(f"{given.out}: {len(pictures)} pictures, return {episode.total_reward:.0f}, {size} kB")


if __name__ == "__main__":
    main()
