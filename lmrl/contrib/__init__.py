"""Work around the benchmark that the core does not need: human ratings of dialogues, and mazes without language."""

from lmrl.commands.verb import Verb

__all__ = ["VERBS"]

_STUDY = "lmrl.contrib.study.command"
_SYMBOLIC = "lmrl.contrib.symbolic.command"

VERBS = {
    "symbolic": Verb(f"{_SYMBOLIC}:symbolic_command", "without language: tabular Q-learning, DQN and CQL"),
    "study make": Verb(f"{_STUDY}:make_command", "write a page on which people rate dialogues blindly"),
    "study table": Verb(f"{_STUDY}:table_command", "turn the returned ratings into a table with tests"),
}
