"""Parts of a dataset that several machines record."""

from pathlib import Path

import pytest

from lmrl.cli import main
from lmrl.data import dataset_path, generate, join_shards, read_dataset
from lmrl.data.storage import read_metadata, write_episodes
from lmrl.errors import UserError


def parts(folder: Path, count: int, size: int = 300, seed: int = 3) -> list[Path]:
    return [
        generate("maze_po", size, seed, folder / f"{part}.parquet", progress=False, shard=(part, count))
        for part in range(count)
    ]


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_parts_are_the_whole(count: int, tmp_path: Path) -> None:
    whole = generate("maze_po", 300, 3, tmp_path / "whole.parquet", progress=False)
    files = parts(tmp_path, count)
    lengths = [len(list(read_dataset(file))) for file in files]
    assert sum(lengths) == 300 and max(lengths) - min(lengths) <= 1
    assert join_shards(files[::-1], tmp_path / "joined.parquet") == 300
    assert (tmp_path / "joined.parquet").read_bytes() == whole.read_bytes()


def test_parts_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMRL_DATA", str(tmp_path))
    for part in ("0/2", "1/2"):
        assert main(["data", "generate", "maze_fo", "--size", "5", "--shard", part]) == 0
    files = sorted(map(str, tmp_path.glob("*.parquet")))
    assert [Path(file).name for file in files] == ["maze_fo-v1-n5-s0-0of2.parquet", "maze_fo-v1-n5-s0-1of2.parquet"]
    assert read_metadata(files[1])["shard"] == [1, 2]
    out = dataset_path("maze_fo", 5, 0)
    assert main(["data", "join", *files, "--out", str(out)]) == 0
    assert out.read_bytes() == generate("maze_fo", 5, 0, tmp_path / "w.parquet", progress=False).read_bytes()


def test_what_is_not_all_of_one_dataset_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "joined.parquet"
    files = parts(tmp_path, 3, size=6)
    with pytest.raises(UserError, match=r"all of the 3 parts, each once; got the parts \[0, 2\]"):
        join_shards([files[0], files[2]], out)
    with pytest.raises(UserError, match="all of the 3 parts, each once"):
        join_shards([*files, files[0]], out)
    (tmp_path / "other").mkdir()
    other = parts(tmp_path / "other", 3, size=6, seed=4)
    with pytest.raises(UserError, match="is a part of another dataset than"):
        join_shards([*files[:2], other[2]], out)
    whole = generate("maze_po", 6, 3, tmp_path / "whole.parquet", progress=False)
    with pytest.raises(UserError, match="is no part of a dataset"):
        join_shards([whole], out)
    kept = tmp_path / "1.partial.parquet"
    write_episodes(kept, list(read_dataset(files[1]))[:1], read_metadata(files[1]))
    with pytest.raises(UserError, match=r"1\.partial\.parquet holds 1 of the 2 episodes of its part"):
        join_shards([files[0], kept, files[2]], out)
    assert not out.exists()


def test_parts_do_not_take_the_place_of_another_dataset(tmp_path: Path) -> None:
    files = [str(path) for path in parts(tmp_path, 2, size=6)]
    out = tmp_path / "joined.parquet"
    before = generate("maze_po", 6, 4, out, progress=False).read_bytes()
    with pytest.raises(UserError, match=r"joined\.parquet holds another dataset \(seed 4, not 3\): name another file"):
        join_shards(files, out)
    with pytest.raises(UserError, match=r"0\.parquet is the file from which the dataset is made"):
        join_shards(files, files[0])
    assert out.read_bytes() == before
    assert main(["data", "join", *files, "--out", str(out), "--overwrite"]) == 0
    assert main(["data", "join", *files, "--out", str(out)]) == 0 and read_metadata(out)["seed"] == 3


@pytest.mark.parametrize("part", [(2, 2), (-1, 2), (0, 7)])
def test_a_part_that_there_is_not(part: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="shard must be one of 0/n to n-1/n"):
        generate("maze_fo", 6, 0, tmp_path / "e.parquet", progress=False, shard=part)


@pytest.mark.parametrize("word", ["1", "a/2", "1/2/3", "-1/2"])
def test_a_part_is_two_numbers(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "generate", "maze_fo", f"--shard={word}"]) == 2
    assert "shard must be i/n, for example 0/8" in capsys.readouterr().err
