"""``lmrl partner-agreement``: a learned second speaker beside the scripted one."""

import json as json_module

from rich.console import Console
from rich.table import Table

from lmrl.commands.arguments import partner_argument
from lmrl.errors import UserError
from lmrl.evaluation.agreement import partner_agreement
from lmrl.partners import make_partner

__all__ = ["agreement_command"]


def agreement_command(
    task: str, *, partner: str, size: int = 2_000, seed: int = 0, json: bool = False, chat: list[str] | None = None
) -> None:
    """Ask a second speaker and the scripted one the same questions, half of them in words that no data holds.

    Args:
        task: name of a task whose second speaker says yes or no.
        partner: who is tested: lm:PATH or chat:MODEL.
        size: questions in all.
        seed: of the questions.
        json: print JSON instead of a table.
        chat: settings of a chat partner, e.g. budget_tokens=1000000 timeout=30 base_url=URL.
    """
    tested = make_partner(partner_argument(partner, chat), task)
    if tested is None:
        raise UserError("partner must be lm:PATH or chat:MODEL: the scripted one always agrees with itself")
    found = [line.to_dict() for line in partner_agreement(tested, task, size, seed)]
    if json:
        print(json_module.dumps({"task": task, "partner": tested.describe(), "agreement": found}, indent=2))
        return
    table = Table("questions", "asked", "agreement", "95 % interval", "on yes", "on no", title=f"{task}: {partner}")
    for line in found:
        low, high = line["agreement_ci"]
        shares = [f"{line[key]:.1%}" for key in ("agreement", "agreement_on_yes", "agreement_on_no")]
        table.add_row(line["group"], str(line["questions"]), shares[0], f"{low:.1%} to {high:.1%}", *shares[1:])
    Console().print(table)
