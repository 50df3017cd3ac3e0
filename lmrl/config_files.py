"""Where the shipped run configurations are: in a checkout at its top, in an installed wheel inside the package."""

from pathlib import Path

from lmrl.errors import UserError

__all__ = ["config_file", "configs_folder"]


def configs_folder() -> Path:
    """The folder with ``<task>/<algorithm>.yaml``, ``scale/*.yaml`` and ``logger/*.yaml``."""
    package = Path(__file__).parent
    inside, beside = package / "_configs", package.parent / "configs"
    return inside if inside.is_dir() else beside


def config_file(name: str | Path) -> Path:
    """The file of that name: as given, or among the shipped ones (``configs/maze_fo/ilql.yaml`` works anywhere).

    Raises:
        UserError: there is no such file; the message lists the shipped ones nearest to it.
    """
    given = Path(name)
    if given.is_file():
        return given
    shipped = configs_folder()
    parts = given.parts[1:] if given.parts[:1] == ("configs",) else given.parts
    if not given.is_absolute() and shipped.joinpath(*parts).is_file():
        return shipped.joinpath(*parts)
    known = [f"configs/{path.relative_to(shipped).as_posix()}" for path in sorted(shipped.rglob("*.yaml"))]
    near = [path for path in known if path.split("/")[1] in parts] or known
    raise UserError(f"no config file {str(name)!r}; known: {', '.join(near)}")
