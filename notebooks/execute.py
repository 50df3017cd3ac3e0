"""Execute notebooks, each in a fresh kernel, and say how long that took: python notebooks/execute.py [FILE ...].

Without files all of them. With ``--out DIR`` they are written there as ``.ipynb``, with everything that they show.
"""

import argparse
import os
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
NOTEBOOKS = sorted(HERE.glob("[0-9]_*.py"))


def execute(path: Path, out: Path | None) -> None:
    """Run it to its end, or to the first error, which is raised."""
    notebook = jupytext.read(path)
    wall, cores = time.perf_counter(), os.times()
    try:
        NotebookClient(notebook, timeout=3600, kernel_name="python3").execute()
    finally:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            jupytext.write(notebook, out / f"{path.stem}.ipynb")
    computed = os.times().children_user - cores.children_user  # the kernel's, which is this process's child
    print(f"{path.stem:22s} {time.perf_counter() - wall:6.1f} s, {computed:6.1f} s of one core", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=NOTEBOOKS, help="notebooks; none: all")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the executed notebooks")
    arguments = parser.parse_args()
    # Kernels start where this command does, and find what lies beside the notebooks as they do in Jupyter.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    for path in arguments.files:
        execute(path, arguments.out)


if __name__ == "__main__":
    main()
