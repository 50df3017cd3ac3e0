"""Checkpoints in shards are read as plain values or not at all."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from lmrl.checkpoints.reading import check_checkpoint, is_checkpoint, read_checkpoint, resolve_checkpoint
from lmrl.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

WEIGHTS = {"model.a": torch.arange(6.0).reshape(2, 3), "model.b.c": torch.ones(2, dtype=torch.bfloat16)}


class Evil:
    """An object that leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def write(folder: Path, rest: Any = 1, value: Any = 0.5) -> Path:
    """Write weights, an optimizer with tensors and a plain value, and the rest, from one process."""
    state = {"state_dict": dict(WEIGHTS), "optimizer_0": {"moment": torch.zeros(2), "lr": value}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    torch.save({"lmrl": {"class": "x"}, "rest": rest}, folder / "meta.pt")
    return folder


def test_shards_are_read_as_one_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "run" / "last.ckpt", rest=[1, "two"])
    assert is_checkpoint(folder) and resolve_checkpoint(tmp_path / "run") == folder
    check_checkpoint(folder, allow_pickle=False)
    assert read_checkpoint(folder) == {"lmrl": {"class": "x"}, "rest": [1, "two"]}
    for allowed in (False, True):
        found = read_checkpoint(folder, allowed, weights=True)
        assert found["rest"] == [1, "two"] and found["state_dict"].keys() == WEIGHTS.keys()
        assert all(torch.equal(found["state_dict"][name], tensor) for name, tensor in WEIGHTS.items())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["last.ckpt"]


def test_a_folder_without_a_table_of_contents_is_no_checkpoint(tmp_path: Path) -> None:
    folder = write(tmp_path / "last.ckpt")
    (folder / ".metadata").unlink()
    assert not is_checkpoint(folder)
    with pytest.raises(UserError, match="ckpt_path must be a checkpoint file or a folder of shards"):
        check_checkpoint(folder, allow_pickle=False)


@pytest.mark.parametrize("place", ["rest", "value", "contents"])
def test_objects_are_not_read_unless_that_is_allowed(place: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = tmp_path / "last.ckpt"
    if place == "contents":
        write(folder)
        (folder / ".metadata").write_bytes(pickle.dumps(Evil(mark)))
    else:
        write(folder, **{place: Evil(mark)})
    with pytest.raises(UserError, match="holds pickled objects, which can run any code"):
        check_checkpoint(folder, allow_pickle=False)
    if place != "value":  # the value belongs to the optimizer, which only a resumed run reads
        with pytest.raises(UserError, match="holds pickled objects"):
            read_checkpoint(folder, weights=True)
    assert not mark.exists()
    check_checkpoint(folder, allow_pickle=True)


def edit_contents(folder: Path, **fields: Any) -> None:
    """Change every entry of the table of contents that says where bytes are."""
    file = folder / ".metadata"
    contents = pickle.loads(file.read_bytes())
    for entry in contents.storage_data.values():
        vars(entry).update(fields)
    file.write_bytes(pickle.dumps(contents))


@pytest.mark.parametrize("place", ["absolute", "above", "path", "link", "missing"])
def test_the_table_of_contents_names_only_files_of_the_folder(place: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "last.ckpt")
    shard = next(folder.glob("*.distcp"))
    outside = shard.rename(tmp_path / "outside")
    (folder / "link").symlink_to(outside)
    names: dict[str, Any] = {
        "absolute": str(outside),
        "above": "../outside",
        "path": outside,
        "link": "link",
        "missing": "none",
    }
    edit_contents(folder, relative_path=names[place])
    with pytest.raises(UserError, match="its table of contents must name files of the folder"):
        read_checkpoint(folder, weights=True)
    with pytest.raises(UserError, match="its table of contents must name files of the folder"):
        check_checkpoint(folder, allow_pickle=False)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes")
def test_a_pipe_in_the_place_of_a_shard_is_not_waited_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "last.ckpt")
    shard = next(folder.glob("*.distcp"))
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(UserError, match="its table of contents must name files of the folder"):
        check_checkpoint(folder, allow_pickle=False)


def test_transformed_tensors_are_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "last.ckpt")
    edit_contents(folder, transform_descriptors=["zstd"])
    with pytest.raises(UserError, match="its tensors are transformed"):
        read_checkpoint(folder, weights=True)
