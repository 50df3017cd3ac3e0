"""Share of padding in the training batches of each task, with the settings of its shipped BC configuration.

It is measured for batches as BC reads them and as ILQL reads them, with the contexts that follow. The larger share
counts.
"""

import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from omegaconf import OmegaConf

import lmrl
from benchmarks.row import Row
from lmrl.data import generate
from lmrl.datamodules import OfflineDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.models.tokenizer import load_tokenizer
from lmrl.utils.configuration import configuration

EPISODES, CHESS = 400, 40  # chess is slow


def padding(task: str, folder: Path, episodes: int) -> float:
    """Return the share of padding among all ids that a model reads in one epoch over `episodes` episodes."""
    path = folder / f"{task}.parquet"
    quick = {"opponent": "random"} if task == "chess" else {}
    generate(task, episodes, 0, path, progress=False, env=quick)
    config = configuration(["--config", f"configs/{task}/bc.yaml"])
    arguments = {**OmegaConf.to_container(config.data.init_args), "path": str(path), "env": None}
    module, _, name = config.data.class_path.rpartition(".")
    data: OfflineDataModule = getattr(import_module(module), name)(**arguments)
    tokenizer = load_tokenizer(*filter(None, [config.model.init_args.get("tokenizer")]))
    data.setup("fit")
    shares = []
    for bootstrap in (False, True):
        data.configure_batches(BatchSpec(tokenizer=tokenizer, bootstrap=bootstrap))
        batches = list(data.train_dataloader())
        read = sum(rows * width for batch in batches for rows, width in batch.groups)
        ids = sum(int((batch.input_ids != tokenizer.pad_token_id).sum()) for batch in batches)  # no text has this id
        shares.append(1.0 - ids / read)
    return max(shares)


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    with tempfile.TemporaryDirectory() as folder:
        for task in lmrl.tasks():
            share = padding(task, Path(folder), CHESS if task == "chess" else EPISODES)
            yield Row(f"padding, {task}", 100 * share, "%", "lower", "< 10 %", 1)
