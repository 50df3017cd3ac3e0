"""Playing, summing up and reporting: scores with intervals, beside the published ones."""

from lmrl.evaluation.evaluate import Evaluation, default_episodes, evaluate
from lmrl.evaluation.intervals import Interval, bootstrap_difference, bootstrap_mean, wilson
from lmrl.evaluation.results import Result, read_results, write_evaluation

__all__ = [
    "Evaluation",
    "Interval",
    "Result",
    "bootstrap_difference",
    "bootstrap_mean",
    "default_episodes",
    "evaluate",
    "read_results",
    "wilson",
    "write_evaluation",
]
