"""Cut a large file into parts and put it together again: for a machine without a network that takes small uploads.

    python benchmarks/model_parts.py split FILE --parts 5 --out DIR
    python benchmarks/model_parts.py join DIR --out FILE

``split`` writes each part into a folder of its own, with ``manifest.json``: the name, the number of parts and the
SHA-256 of the whole. Parts may arrive in any order; ``join`` needs all of them and the manifest in one folder.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path


def split(file: Path, parts: int, out: Path) -> None:
    """Write the parts of a file, each into a folder of its own with the manifest: ``DIR/1``, ``DIR/2``..."""
    content = file.read_bytes()
    manifest = {"name": file.name, "parts": parts, "sha256": hashlib.sha256(content).hexdigest()}
    size = -(-len(content) // parts)
    for number in range(1, parts + 1):
        folder = out / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{file.name}.{number}of{parts}").write_bytes(content[(number - 1) * size : number * size])
        (folder / "manifest.json").write_text(json.dumps(manifest) + "\n", encoding="utf-8")


def join(folder: Path, out: Path) -> None:
    """Put a file together and check its hash.

    Raises:
        SystemExit: parts are missing, or the file is not the one that was cut.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except OSError:
        raise SystemExit(f"no part has arrived in {folder} yet: there is no manifest.json") from None
    count = manifest["parts"]
    paths = [folder / f"{manifest['name']}.{number}of{count}" for number in range(1, count + 1)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise SystemExit(f"{len(missing)} of {count} parts are missing in {folder}: {', '.join(missing)}")
    content = b"".join(path.read_bytes() for path in paths)
    if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
        raise SystemExit(f"the parts in {folder} do not make up {manifest['name']}: one of them is damaged")
    unfinished = out.with_name(f"{out.name}.unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, out)


def main(words: Sequence[str] | None = None) -> None:
    """Run ``split`` or ``join``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    splitter = actions.add_parser("split", help="write the parts of a file")
    splitter.add_argument("file", type=Path)
    splitter.add_argument("--parts", type=int, default=5)
    splitter.add_argument("--out", type=Path, required=True, help="each part gets a folder in this one")
    joiner = actions.add_parser("join", help="put a file together")
    joiner.add_argument("folder", type=Path, help="with all parts and the manifest")
    joiner.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(words)
    if options.action == "split":
        split(options.file, options.parts, options.out)
    else:
        join(options.folder, options.out)


if __name__ == "__main__":
    main()
