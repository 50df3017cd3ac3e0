"""Datasets: record them, describe them, replay them, and read the official ones."""

from lmrl.data.generate import dataset_path, generate
from lmrl.data.official import import_official
from lmrl.data.reading import read_dataset
from lmrl.data.shards import join_shards
from lmrl.data.stats import DatasetStats, dataset_stats, stats_table
from lmrl.data.verify import Mismatch, Report, verify

__all__ = [
    "DatasetStats",
    "Mismatch",
    "Report",
    "dataset_path",
    "dataset_stats",
    "generate",
    "import_official",
    "join_shards",
    "read_dataset",
    "stats_table",
    "verify",
]
