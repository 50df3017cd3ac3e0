"""Connections to other libraries and services, one module or package each. The core imports none of them."""

from lmrl.commands.verb import Verb

__all__ = ["VERBS"]

VERBS = {
    "sweep": Verb(
        "lmrl.integrations.optuna.command:sweep_command", "search the options of a run file for what plays best"
    ),
    "data export": Verb("lmrl.integrations.minari:export_command", "write a dataset as a Minari dataset"),
    "serve": Verb("lmrl.integrations.openenv.command:serve_command", "hand out a task as an OpenEnv environment"),
}
