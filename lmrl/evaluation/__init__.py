"""Evaluation of policies: episodes, scores with intervals, and comparisons of scores over seeds and tasks."""

from lmrl.evaluation.evaluate import Evaluation, default_episodes, evaluate
from lmrl.evaluation.intervals import Interval, bootstrap_difference, bootstrap_mean, wilson
from lmrl.evaluation.records import Record, read_records
from lmrl.evaluation.run_folder import write_evaluation

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
