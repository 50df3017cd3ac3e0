"""Write ``requirements/ci.txt`` and ``requirements/lowest.txt``: ``make pins`` after a change of versions.

Both are for CPython 3.11 on x86-64 Linux. They name every package, so that you install them with
``pip install --no-deps``. ``ci.txt`` has the versions of ``constraints.txt``, with a CPU build of torch, and the hashes
of the files that pip may install. ``lowest.txt`` has the lowest versions that ``pyproject.toml`` permits, with the
build of torch that a package index has, which does not start without the libraries of CUDA.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import tomllib

FOLDER = Path("requirements")
UV = [sys.executable, "-m", "uv", "pip", "compile", "--python-platform", "x86_64-manylinux_2_28"]
EXTRAS = ["--extra", "dev", "--extra", "textnav", "pyproject.toml"]
#: torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, of PyTorch's own index. It alone is listed: beside the hash
#: of the build for CUDA, pip prefers that one, whose libraries are not listed.
CPU_BUILD = {"torch": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"}
#: What torch needs for CUDA alone.
CUDA = ("cuda-", "nvidia-", "triton")


def compiled(*options: str) -> list[dict[str, Any]]:
    """Return the packages that uv chooses, with their files."""
    command = [*UV, "--format", "pylock.toml", *options, *EXTRAS]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    packages: list[dict[str, Any]] = tomllib.loads(text)["packages"]
    return packages


def with_hashes(package: dict[str, Any]) -> str:
    """Return the line of a package, with the hashes of its wheels, or else of its source."""
    files = package.get("wheels") or [package["sdist"]]
    hashes = sorted({file["hashes"]["sha256"] for file in files})
    if package["name"] in CPU_BUILD:
        hashes = [CPU_BUILD[package["name"]]]
    return " \\\n".join([f"{package['name']}=={package['version']}", *(f"    --hash=sha256:{one}" for one in hashes)])


def main() -> None:
    """Write both files."""
    tested = compiled("--python-version", "3.11.7", "--constraints", str(FOLDER / "constraints.txt"))
    tested = [package for package in tested if not package["name"].startswith(CUDA)]
    lowest = compiled("--python-version", "3.11.7", "--resolution", "lowest-direct")
    head = "# Written by tools/pins.py, which says what it is for. Do not edit.\n"
    (FOLDER / "ci.txt").write_text(head + "".join(f"{with_hashes(package)}\n" for package in tested))
    lines = [f"{package['name']}=={package['version']}\n" for package in lowest]
    (FOLDER / "lowest.txt").write_text(head + "".join(lines))


if __name__ == "__main__":
    main()
