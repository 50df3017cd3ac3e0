"""Execute notebooks and write them with what they show: python notebooks/execute.py [FILE ...] [--out DIR].

The sources are `notebooks/N_name.py`; beside each lies `N_name.ipynb`, its cells and their outputs. Each runs in a
fresh kernel, all in one empty folder, so that nothing old is shown. Of what they write, pictures and standard output
are kept: progress bars and warnings go to standard error and are left out, as are times, versions and random names,
so that the same source gives the same file.
"""

import argparse
import os
import time
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
NOTEBOOKS = sorted(HERE.glob("[0-9]_*.py"))
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def read_source(path: Path) -> NotebookNode:
    """The cells of a source, without outputs and with names that are always the same."""
    notebook = jupytext.read(path)
    for place, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{place}", NotebookNode()
    notebook.metadata = NotebookNode(kernelspec=NotebookNode(KERNEL), language_info=NotebookNode(name="python"))
    if "from t_maze import" in path.read_text(encoding="utf-8"):  # what it shows comes from there, too
        notebook.metadata.t_maze = sha256((HERE / "t_maze.py").read_bytes()).hexdigest()
    notebook.nbformat, notebook.nbformat_minor = 4, 5  # cells have ids
    return notebook


def kept_outputs(outputs: list[NotebookNode], folder: str) -> list[NotebookNode]:
    """Pictures and standard output, the latter in one piece and without the folder that it was written in."""
    kept: list[NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stdout":
            text = output.text.replace(f"{folder}{os.sep}", "")
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += text
            else:
                kept.append(nbformat.v4.new_output("stream", name="stdout", text=text))
        elif "image/png" in output.get("data", {}):
            data = {kind: output.data[kind] for kind in ("image/png", "text/plain")}
            sizes = {kind: value for kind, value in output.metadata.items() if kind == "image/png"}
            kept.append(nbformat.v4.new_output("display_data", data, metadata=sizes))
        elif output.output_type == "execute_result":
            kept.append(output)
    return kept


def execute(path: Path, folder: str, out: Path) -> None:
    """Run it to its end and write it, or raise its first error."""
    notebook = read_source(path)
    wall, cores = time.perf_counter(), os.times()
    resources = {"metadata": {"path": folder}}
    NotebookClient(notebook, timeout=3600, kernel_name="python3", resources=resources, record_timing=False).execute()
    seconds = time.perf_counter() - wall
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.metadata = kept_outputs(cell.outputs, folder), NotebookNode()
    notebook.metadata.language_info = NotebookNode(name="python")  # the kernel has added its version
    out.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, out / f"{path.stem}.ipynb")
    computed = os.times().children_user - cores.children_user  # the kernel's, which is this process's child
    print(f"{path.stem:26s} {seconds:6.1f} s, {computed:6.1f} s of one core", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=NOTEBOOKS, help="sources; none: all")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: beside the sources)")
    arguments = parser.parse_args()
    if "LMRL_TINY" in os.environ and arguments.out is None:
        parser.error("with LMRL_TINY notebooks show nothing worth keeping: name a folder with --out")
    with TemporaryDirectory() as scratch:
        folder = str(Path(scratch).resolve())
        # Kernels find what lies beside the notebooks, as they do in Jupyter, and record their data anew.
        paths = [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "LMRL_DATA": str(Path(folder) / "data")}
        for path in arguments.files:
            execute(path, folder, arguments.out or HERE)


if __name__ == "__main__":
    main()
