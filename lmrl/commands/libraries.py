"""Messages of libraries: errors become one line with a remedy, and notes on themselves are dropped."""

import logging
import os
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

__all__ = ["explain_library", "is_refused_setting", "one_line_warnings", "quiet_libraries"]

#: A line of the project's metadata about a package that an extra brings.
_NEEDED = re.compile(r"([\w.-]+).*extra == ['\"](\w+)")
_NO_GPU = (
    "gpu backend found",
    "can not run on your system since the accelerator is not available",
    "torch not compiled with cuda",
    "found no nvidia driver",
    "no cuda gpus are available",
    "invalid device ordinal",
)
#: Loggers, and from which level on they are heard.
_LEVELS = {
    "lightning.pytorch": "WARNING",
    "lightning.fabric": "WARNING",
    "transformers": "ERROR",
    "huggingface_hub": "ERROR",
}
#: Beginnings of warnings that are of no use here: a resumed run writes into its folder again.
_NOTES = (
    "Experiment logs directory",
    "Checkpoint directory",
    "The number of training batches",
    "The '.*dataloader' does not have many workers",
    "`isinstance.treespec, LeafSpec.` is deprecated",
    "You defined a `validation_step` but have no `val_dataloader`",
    "Total length of `list` across ranks is zero",  # nothing is held out
    "Found .* module.s. in eval mode at the start of training",
)
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")


def explain_library(error: BaseException) -> str | None:
    """One line for what a library refused; None for anything else, which is a bug that a traceback belongs to.

    No library is imported: exceptions are distinguished by the names of their classes.
    """
    for at in _chain(error):
        told = _explain(at, " ".join(str(at).split()))
        if told is not None:
            return told
    return None


def is_refused_setting(error: BaseException) -> bool:
    """Whether an exception came out of a library's own code: where objects are built, it is about what they were given.

    The line of code that raised the first exception of the chain decides.
    """
    first = [*_chain(error)][-1]
    frames = traceback.extract_tb(first.__traceback__)
    ours = Path(__file__).parents[1]
    return bool(frames) and "site-packages" in frames[-1].filename and ours not in Path(frames[-1].filename).parents


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Inside, a warning is one line without its place in the code; LMRL_DEBUG=1 keeps that."""
    if os.environ.get("LMRL_DEBUG") == "1":
        yield
        return
    formatted = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {' '.join(str(message).split())}\n"
    try:
        yield
    finally:
        warnings.formatwarning = formatted


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Inside, libraries are heard where something goes wrong, and warnings are one line; LMRL_DEBUG=1 keeps all."""
    if os.environ.get("LMRL_DEBUG") == "1":
        yield
        return
    before = {name: logging.getLogger(name).level for name in _LEVELS}
    with warnings.catch_warnings(), one_line_warnings():
        for message in _NOTES:
            warnings.filterwarnings("ignore", message=message)
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        try:
            for name, level in _LEVELS.items():
                logging.getLogger(name).setLevel(level)
            yield
        finally:
            for name, number in before.items():
                logging.getLogger(name).setLevel(number)


def _chain(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)


def _missing(package: str) -> str:
    """Return the message about a missing package, with the install command if this project has an extra for it.

    The name can come from a file that chose it, and installing it would run its code: no other package is recommended.
    """
    try:
        needed = requires("lmrl") or ()
    except PackageNotFoundError:  # not installed, only on the path
        needed = ()
    pairs = [found.groups() for found in map(_NEEDED.match, needed) if found]
    sizes = Counter(extra for _, extra in pairs)
    bringing = sorted((extra for name, extra in pairs if name == package), key=lambda extra: sizes[extra])
    if bringing:
        return f"the package {package} is not installed: pip install 'lmrl[{bringing[0]}]'"
    if any(re.match(rf"{re.escape(package)}(?![\w.-])", line) for line in needed):
        return f"the package {package} is not installed: pip install {package}"
    return f"there is no module {package!r:.60}, which lmrl itself does not need: look for what asks for it"


def _explain(error: BaseException, text: str) -> str | None:
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    said = text.lower()
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != "lmrl":
        package = error.name.partition(".")[0]
        return _missing(package)
    if any(kind.startswith("wandb.") for kind in kinds):
        return f"Weights & Biases: {text.rstrip('.')}; run wandb login, or stay on this machine: WANDB_MODE=offline"
    if any(sign in said for sign in _NO_GPU):
        return (
            f"this machine has no such GPU ({text.rstrip('.!')}); ask for what it has: --trainer.accelerator=cpu "
            "(fit), --device=cpu (evaluate)"
        )
    if "torch.OutOfMemoryError" in kinds or (isinstance(error, RuntimeError) and any(s in said for s in _NO_MEMORY)):
        return (
            f"out of memory ({text[:200]}); take a smaller data.init_args.batch_size with "
            "trainer.accumulate_grad_batches, or lora, or model.init_args.activation_checkpointing"
        )
    if isinstance(error, RuntimeError) and "in loading state_dict" in said:
        return (
            f"the checkpoint holds the weights of another model ({text[:300]}); give the model.init_args that it was "
            "trained with (config.yaml in its folder), or start from it with model.init_args.pretrained"
        )
    if any(kind.endswith(".MisconfigurationException") for kind in kinds):
        return f"trainer: {text}"
    return None
