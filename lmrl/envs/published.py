"""The published numbers, and the scale that makes tasks comparable: 0 worst, 50 the published average, 100 best.

Source: Abdulhai et al., "LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models", ICML 2025.
Constants of the scale are its Table 5, raw scores Table 4, normalised scores Table 2, dataset statistics Table 1. Raw
car dealer scores of online filtered BC and GPT-4 are missing there and are taken from Table 2, where every other car
dealer number equals the raw one. FO and PO share one line of Table 1.

The printed normalised scores do not all follow from the printed raw scores and constants; `Scores.note` says where.
"""

from collections.abc import Mapping
from types import MappingProxyType

from lmrl.envs.task import PublishedData, Scores, _by_algorithm

__all__ = ["PUBLISHED"]

_MAZE = PublishedData(1_240, 19.7, 24.5, 0.11, -19.7, 24.5)
_TEXT_NAV = PublishedData(2_500, 12.2, 8.77, 0.26, 0.258, 0.424)

PUBLISHED: Mapping[str, Scores] = MappingProxyType(
    {
        "maze_fo": Scores(
            minimum=-101,
            average=-83,
            maximum=-6.84,
            raw=_by_algorithm(-72.1, -56.4, -48.1, -6.97, -37.7, -71.7, -39.7),
            normalized={
                **_by_algorithm(58.2, 68.9, 75.0, 99.9, 79.7, 57.4, 78.2),
                **{"symbolic_dqn": 100.0, "symbolic_cql": 100.0},  # Table 9, on the grid
            },
            data=_MAZE,
            note="From the constants BC, filtered BC and MC are 57.2, 67.5 and 72.9; the printed ones look like "
            "those of Text-Nav FO. The average is the return of a player that draws actions as often as the data has "
            "them, not the mean return of the data (-19.7). The minimum ignores illegal actions (with them: -401).",
        ),
        "maze_po": Scores(
            minimum=-101,
            average=-83,
            maximum=-25.75,
            raw=_by_algorithm(-79.5, -82.9, -80.3, -52.9, -91.7, -79.5, -88.0),
            normalized=_by_algorithm(53.1, 50.1, 52.4, 76.3, 42.4, 53.1, 60.4),
            data=_MAZE,
            note="From the constants PPO and GPT-4 are 25.8 and 36.1. Average and minimum as in Maze FO.",
        ),
        "text_nav_fo": Scores(
            minimum=0,
            average=0.26,
            maximum=1,
            raw=_by_algorithm(0.39, 0.54, 0.63, 0.88, 0.81, 0.62, 0.52),
            normalized=_by_algorithm(53.7, 65.1, 71.9, 91.8, 87.1, 74.5, 67.5),
            data=_TEXT_NAV,
            note="From the constants BC, filtered BC and MC are 58.8, 68.9 and 75.0. GPT-4 is hard to read in print "
            "(67.5; the constants give 67.6).",
        ),
        "text_nav_po": Scores(
            minimum=0,
            average=0.26,
            maximum=1,
            raw=_by_algorithm(0.25, 0.49, 0.58, 0.76, 0.80, 0.53, 0.21),
            normalized=_by_algorithm(49.7, 60.5, 71.6, 83.7, 85.5, 68.4, 40.2),
            data=_TEXT_NAV,
            note="From the constants BC, filtered BC and PPO are 48.1, 65.5 and 86.5.",
        ),
        "wordle": Scores(
            minimum=-6,
            average=-4.12,
            maximum=-1.94,
            raw=_by_algorithm(-2.81, -2.85, -2.16, -2.04, -2.63, -2.15, -5.42),
            normalized=_by_algorithm(79.9, 79.1, 94.9, 97.7, 84.2, 95.2, 15.4),
            data=PublishedData(1_000_000, 4.82, 1.27, 0.70, -4.12, 1.59),
            note="The released script has -4.121715 for the average and -1.935 for the maximum.",
        ),
        "chess": Scores(
            minimum=-401,
            average=0.21,
            maximum=1,
            raw=_by_algorithm(-22.3, -56.5, -28.2, -21.4, -16.0, -22.3, -81.3),
            normalized=_by_algorithm(47.2, 42.9, 46.5, 47.3, 48.0, 47.2, 0),
            data=PublishedData(625_000, 46.7, 18.16, 0.60, 0.210, 0.970),
            note="From the constants GPT-4 is 39.8; it is printed as 0.",
        ),
        "endgames": Scores(
            minimum=-1,
            average=0.586,
            maximum=1,
            raw=_by_algorithm(0.112, -0.439, 0.588, 0.452, 0.814, 0.112, -22.87),
            normalized=_by_algorithm(35.1, 17.7, 50.2, 45.8, 77.5, 36.2, 0),
            data=PublishedData(97_756, 11.9, 12.0, 0.59, 0.586, 0.492),
            note="-1 is no true minimum, since illegal moves repeat (-401 is): from the constants GPT-4 is -689; it is "
            "printed as 0. Online filtered BC has the raw score of BC (35.1) but is printed as 36.2.",
        ),
        "twenty_questions": Scores(
            minimum=-20,
            average=-17.3,
            maximum=-12.6,
            raw=_by_algorithm(-16.0, -14.6, -13.9, -14.2, -14.9, -16.8, -13.0),
            normalized=_by_algorithm(57.1, 77.1, 87.1, 82.9, 72.9, 55.2, 95.7),
            data=PublishedData(100_000, 14.9, 4.38, 0.31, -17.3, 2.56),
            note="The first five printed scores follow an average of -16.5 and a maximum of -13.0; from the constants "
            "they are 63.8, 78.7, 86.2, 83.0 and 75.5. Length, success and return of the data disagree: "
            "-14.9 + .31 is -14.6, not -17.3.",
        ),
        "guess_city": Scores(
            minimum=-20,
            average=-18.8,
            maximum=-8.56,
            raw=_by_algorithm(-17.0, -15.2, -11.2, -12.5, -15.1, -19.2, -10.13),
            normalized=_by_algorithm(30.0, 48.0, 88.0, 75.0, 49.9, 31.6, 92.3),
            data=PublishedData(100_000, 18.8, 4.57, 0.53, -18.8, 4.12),
            note="The first five printed scores follow an average of -15 and a maximum of -10; from the constants the "
            "first six are 58.8, 67.6, 87.1, 80.8, 68.1 and 33.3. Length, success and return of the data disagree: "
            "-18.8 + .53 is -18.3, not -18.8.",
        ),
        "car_dealer": Scores(
            minimum=0,
            average=None,
            maximum=None,
            raw=_by_algorithm(44.5, 54.8, 57.2, 46.3, 50.5, 40.4, 53.5),
            normalized=_by_algorithm(44.5, 54.8, 57.2, 46.3, 50.5, 40.4, 53.5),
            data=PublishedData(19_000, 16.5, 3.61, 0.53, 0.562, 0.422),
            note="No average and maximum were published; raw and normalised scores are the same numbers, in thousands "
            "of dollars. The data's length counts the lines of both speakers, its return is the reward fancy.",
        ),
    }
)
"""Every row of the results tables by task name."""
