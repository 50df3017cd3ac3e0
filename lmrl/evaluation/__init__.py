"""Playing, summing up and reporting: scores with intervals, next to the published ones."""

from lmrl.evaluation.evaluate import Evaluation, default_episodes, evaluate
from lmrl.evaluation.intervals import Interval, bootstrap_difference, bootstrap_mean, wilson
from lmrl.evaluation.records import Record, read_records
from lmrl.evaluation.results import write_evaluation

__all__ = [
    "Evaluation",
    "Interval",
    "Record",
    "bootstrap_difference",
    "bootstrap_mean",
    "default_episodes",
    "evaluate",
    "read_records",
    "wilson",
    "write_evaluation",
]
