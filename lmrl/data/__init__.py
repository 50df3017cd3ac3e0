"""Datasets: record them, describe them, replay them, and read the official ones."""

from lmrl.data.importing import import_official
from lmrl.data.inspection import DatasetStats, Mismatch, Report, dataset_stats, stats_table, verify
from lmrl.data.recording import dataset_path, generate
from lmrl.data.storage import join_shards, read_dataset

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
