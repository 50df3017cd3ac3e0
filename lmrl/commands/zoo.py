"""``lmrl zoo``: trained policies that can be played without training; list them and show their cards."""

from rich.table import Column, Table

from lmrl.checkpoints.zoo import GET_ZOO, zoo_policies, zoo_policy
from lmrl.envs import registry
from lmrl.errors import UserError
from lmrl.evaluation.scores import describe_settings
from lmrl.utils.consoles import table_console

__all__ = ["zoo_info_command", "zoo_list_command"]


def zoo_list_command(task: str | None = None) -> None:
    """List the trained policies that can be played without training.

    Args:
        task: only those of one task.
    """
    if task is not None:
        registry.task(task)
    names = zoo_policies(task)
    if not names:
        raise UserError(f"there is no policy{'' if task is None else f' for {task}'} here: {GET_ZOO}")
    numbers = [Column(head, justify="right", no_wrap=True) for head in ("return", "normalised", "won", "MB")]
    # For 80 columns.
    table = Table(Column("policy", overflow="fold"), *numbers, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        policy = zoo_policy(name)
        scores = policy.scores
        size = sum(path.stat().st_size for path in policy.folder.iterdir())
        low, high = scores["normalized_ci"]
        row = [f"{scores['return_mean']:.2f}", f"{scores['normalized']:.1f} [{low:.1f}, {high:.1f}]"]
        row += [f"{scores['success_rate']:.0%}", f"{size / 1e6:.1f}"]
        table.add_row(name, *row)
    table_console().print(table)
    first = zoo_policy(names[0])
    print(f"play with its advice: lmrl play {first.task} --advisor {names[0]}")
    print(f"watch it: lmrl web --policy {names[0]}")


def zoo_info_command(policy: str) -> None:
    """Show the card of a policy of the zoo: what it was trained on and how, its scores, and how it plays.

    Args:
        policy: its name, e.g. zoo:maze_fo/ilql.
    """
    found = zoo_policy(policy)
    print((found.folder / "README.md").read_text(encoding="utf-8").partition("---\n")[2].partition("---\n")[2].strip())
    settings = describe_settings(found.settings) or "as it was trained"
    print(f"\nsettings: {settings}\nfolder: {found.folder}")
