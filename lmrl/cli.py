"""The command line: finds the verb, hands it its arguments, turns errors into one line and an exit code.

A verb is a function, most of them in `lmrl.commands`. Its module is imported when the verb is called and not before, so
that ``lmrl --help`` and the verbs that need no model answer without loading torch.
"""

import codecs
import os
import select
import sys
from collections.abc import Sequence
from functools import cache
from io import TextIOWrapper

from lmrl import __version__
from lmrl.commands.libraries import explain_library, one_line_warnings
from lmrl.commands.verb import NOTHING_TO_TRAIN, Verb, added_verbs
from lmrl.errors import UserError, in_one_line, system_error, user_error_in

__all__ = ["main", "verbs"]


_FIT = """\
usage: lmrl fit --config configs/<task>/<algorithm>.yaml [--config OVERLAY.yaml] [--KEY=VALUE ...]

Several files are merged in their order over configs/defaults.yaml, options come last. Shipped files are found from
anywhere.

options:
  --config FILE                  a configuration, e.g. configs/maze_fo/ilql.yaml or configs/logger/wandb.yaml
  --trainer.KEY=VALUE            of Lightning's Trainer, e.g. --trainer.max_steps=1000 or --trainer.accelerator=gpu;
                                 --trainer.default_root_dir is the run's folder
  --model.init_args.KEY=VALUE    of the algorithm, e.g. --model.init_args.lr=3e-4
  --data.init_args.KEY=VALUE     of the data, e.g. --data.init_args.path=data/mine.parquet
  --evaluation.KEY=VALUE         how often the policy plays, and how much: every_n_steps and episodes; likewise
                                 --checkpoint.every_n_steps and, of online runs, --rollout.episodes
  --seed_everything SEED         decides everything that is random about the training
  --resume                       resume from the run's last.ckpt (or best.ckpt), if it has one
  --ckpt_path FILE               checkpoint to resume from, e.g. runs/maze_fo/ilql/last.ckpt
  --overwrite                    start a new run; the old one moves to .earlier/NAME-1 next to its folder
  --allow_pickle                 read one with pickled objects; that can run any code in it
  --print_config                 show the merged configuration and end

All of the trainer's options:    lmrl fit --config FILE --help
All of an algorithm's:           lmrl fit --model.help lmrl.modules.ILQL
All of the data's:               lmrl fit --data.help lmrl.datamodules.OfflineDataModule"""


def _verb(target: str, help: str) -> Verb:
    return Verb(f"lmrl.commands.{target}", help)


_VERBS = {
    "fit": Verb(
        "lmrl.commands.fit:fit",
        "train: lmrl fit --config configs/maze_fo/ilql.yaml",
        raw=True,
        page=_FIT,
        without_words=NOTHING_TO_TRAIN,
    ),
    "evaluate": Verb(
        "lmrl.commands.evaluate:evaluate_command",
        "let a policy play and write its episodes and scores, or judge it by a file",
    ),
    "compare": Verb(
        "lmrl.commands.compare:compare_command", "evaluations of a task in one table, and whether they differ"
    ),
    "plot": _verb("plot:plot_command", "draw the curves of several runs in one picture"),
    "tune": _verb("models:tune_command", "choose the temperature, top_p and beta with which a run plays"),
    "export": _verb("models:export_command", "write a run's model as a folder for transformers"),
    "reproduce": Verb(
        "lmrl.commands.reproduce:reproduce_command", "data, training, evaluation and report for whole tasks"
    ),
    "report": _verb("reproduce:report_command", "write the report again from finished runs"),
    "data generate": _verb("data:generate_command", "record a dataset with a task's scripted player"),
    "data join": _verb("data:join_command", "put the parts of a dataset together (data generate --shard)"),
    "data stats": _verb("data:stats_command", "describe a dataset next to the published figures"),
    "data verify": _verb("data:verify_command", "replay a dataset through its environment"),
    "data floor": Verb(
        "lmrl.commands.data:floor_command", "how random the player of a dataset is: the floor of cloning"
    ),
    "data import": _verb("data:import_command", "convert an official LMRL-Gym file"),
    "partner-agreement": Verb("lmrl.commands.models:agreement_command", "how often a partner answers rightly"),
    "view": Verb(
        "lmrl.commands.models:view_command", "show episodes on an HTML page, with a model's values over the words"
    ),
    "check-env": _verb("data:check_env_command", "test that an environment obeys the laws of the package"),
    "zoo list": _verb("zoo:zoo_list_command", "the trained policies that can be played without training"),
    "zoo info": _verb("zoo:zoo_info_command", "the card of one of them"),
    "zoo evaluate": Verb(
        "lmrl.commands.zoo_add:zoo_evaluate_command", "play with one and compare with its published score"
    ),
    "zoo add": _verb("zoo_add:zoo_add_command", "put a run among them"),
    "play": _verb("play:play_command", "play a task yourself in the terminal, or watch a policy"),
    "chat": _verb("chat:chat_command", "talk to a trained policy in the terminal"),
    "web": _verb("web:web_command", "play, watch and compare policies in the browser"),
}


@cache
def verbs() -> dict[str, Verb]:
    """Return all commands by their names: those of the core, then those of plugins."""
    return {**_VERBS, **added_verbs()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0; 1 (a check failed), 2 (a wrong argument), 130 (interrupted), 143 (told to end by SIGTERM).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdin is None:  # closed by who called: as if there was nothing to read
        sys.stdin = open(os.devnull, encoding="utf-8")
    _print_anywhere()
    try:
        with one_line_warnings():
            code = _dispatch(words)
        if sys.stdout is not None:  # closed by who called
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError as error:
        if not _output_is_unread():
            print(f"error: {in_one_line(error)}", file=sys.stderr)
            return 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as end:  # --help of the parsers; Lightning, which tidies up after Ctrl-C and then exits with 1
        if isinstance(end.__context__, KeyboardInterrupt):
            return _interrupted()
        if isinstance(end.__context__, BrokenPipeError):  # rich exits where nobody reads its tables
            return 0
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # as Python does
        return 1
    except Exception as error:
        told = user_error_in(error) or explain_library(error) or system_error(error)
        if told is None or os.environ.get("LMRL_DEBUG") == "1":
            raise
        print(f"error: {' '.join(str(told).split())}", file=sys.stderr)
        return 2


def _output_is_unread() -> bool:
    """Return whether the reader of the output has closed the pipe; another pipe may be the one that broke."""
    if sys.stdout is None:
        return False
    if not hasattr(select, "poll"):  # Windows
        return True
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(state & select.POLLERR for _, state in output.poll(0))


_PLAIN_CHARACTERS = {"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{MULTIPLICATION SIGN}": "x"}


def _plain_characters(error: UnicodeError) -> tuple[str, int]:
    """Write what an encoding lacks as a plain character, or as a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    plain = [_PLAIN_CHARACTERS.get(character, "?") for character in lacking]
    return "".join(plain), error.end


def _print_anywhere() -> None:
    """Let output that the terminal's encoding cannot write (cp1252, ASCII) become plain characters, not an error."""
    codecs.register_error("lmrl-plain", _plain_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="lmrl-plain")


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"lmrl {__version__}")
        return 0
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in verbs():
            return verbs()[name].run(words[length:], name)
    return _no_such_verb(words)


def _no_such_verb(words: list[str]) -> int:
    group = {name: verb for name, verb in verbs().items() if name.startswith(f"{words[0]} ")}
    if group and (len(words) == 1 or words[1] in ("-h", "--help")):
        print(_overview(group))
        return 0 if len(words) > 1 else 2
    given = " ".join(words[: 2 if group else 1])
    raise UserError(f"unknown command {given!r}; known: {', '.join(group or verbs())}")


def _overview(group: dict[str, Verb] | None = None) -> str:
    lines = [f"  lmrl {name:<17} {verb.help}" for name, verb in (group or verbs()).items()]
    return "\n".join(
        [
            f"lmrl {__version__}: multi-turn reinforcement learning for language models",
            "",
            "usage: lmrl COMMAND [arguments]      lmrl COMMAND --help      lmrl --version",
            "",
            *lines,
            "",
            "LMRL_DEBUG=1 shows tracebacks; LMRL_DATA is where datasets are kept (default: data).",
        ]
    )
