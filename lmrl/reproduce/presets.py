"""At which size a table is made: what goes over the configuration file of each cell."""

from dataclasses import dataclass
from pathlib import Path

from lmrl.config_files import configs_folder
from lmrl.errors import UserError, unknown

__all__ = ["PRESETS", "SCRATCH", "Preset", "check_weights", "preset_of"]

SCRATCH = "scratch"
"""In place of weights: random ones of the same size."""

_GROUPS = {
    **dict.fromkeys(("maze_fo", "maze_po"), "maze"),
    **dict.fromkeys(("text_nav_fo", "text_nav_po"), "text_nav"),
    **dict.fromkeys(("twenty_questions", "guess_city", "car_dealer"), "dialogue"),
}
"""Tasks that share their overlays of the paper's settings."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A size of models and the place where its runs are kept."""

    runs: Path
    """Default folder of runs."""
    scale: str | None = None
    """An overlay for every cell; the paper's settings of its task and algorithm come with it."""
    weights: str | None = None
    """What a cell begins with that starts from no other; None: what its configuration says."""
    device: str | None = None
    """Where trained policies are evaluated; None: on the CPU."""

    def overlays(self, task: str, algorithm: str) -> list[str]:
        """Configuration files over ``configs/<task>/<algorithm>.yaml``, in their order."""
        if self.scale is None:
            return []
        names = (f"scale/paper_{group}_{algorithm}.yaml" for group in (task, _GROUPS.get(task)))
        papers = [f"configs/{name}" for name in names if (configs_folder() / name).is_file()]
        return [self.scale, *papers[:1]]


PRESETS = {
    "cpu": Preset(Path("runs")),
    "gpu": Preset(Path("runs/gpu"), "configs/scale/gpt2.yaml", "gpt2", "cuda"),
}


def preset_of(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UserError: there is none.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def check_weights(preset: Preset, weights: str | None) -> None:
    """Weights are for presets whose models have published ones.

    Raises:
        UserError: they were given for another.
    """
    if weights is not None and preset.weights is None:
        raise UserError(f"weights go with the preset gpu, got {weights!r}; the others train small models from scratch")
