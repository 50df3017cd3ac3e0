"""The exceptions that users meet: they say what to do next and are shown without a traceback."""

import errno
import math
import os
import re
import signal
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = [
    "BudgetError",
    "OtherTaskError",
    "UserError",
    "check_choice",
    "check_range",
    "counted",
    "in_one_line",
    "system_error",
    "terminated_by_exception",
    "unknown",
    "user_error_in",
    "valid_unicode",
]

_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])")
# In a traceback that another process sent as text.
_REMOTE_USER_ERROR = re.compile(r"^(?:\w+\.)+(?:User|Budget|OtherTask|Chat|ChatBudget)Error: (.+)$", re.MULTILINE)

_CHOOSE_FOLDER = "choose another folder (--out, --trainer.default_root_dir, $LMRL_DATA)"
_FREE_SPACE = f"free some space, or {_CHOOSE_FOLDER}"
_CHANGE_PERMISSIONS = f"change its permissions, or {_CHOOSE_FOLDER}"
_USE_FEWER_PROCESSES = "use fewer processes (--workers, num_workers)"
_WAYS_OUT = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EFBIG: _FREE_SPACE,
    errno.EACCES: _CHANGE_PERMISSIONS,
    errno.EPERM: _CHANGE_PERMISSIONS,
    errno.EROFS: _CHOOSE_FOLDER,
    errno.ENOENT: "check the path",
    errno.EEXIST: "remove it, or choose another name",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "a part of the path is a file: check the path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: f"raise the limit (ulimit -n), or {_USE_FEWER_PROCESSES}",
    errno.ENFILE: f"too much is open on this machine: {_USE_FEWER_PROCESSES}",
    errno.EAGAIN: f"the machine is at its limit: {_USE_FEWER_PROCESSES}",
    errno.ENOMEM: f"memory ran out: {_USE_FEWER_PROCESSES}",
    errno.EIO: "the disk, or the way to it, is failing: try again, or " + _CHOOSE_FOLDER,
    errno.EADDRINUSE: "choose another port",
    errno.ECONNREFUSED: "nothing listens there: is it running?",
}
# What safetensors and tokenizers say where others raise an OSError.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
# What torch says.
_WRITE_FAILURES = ("PytorchStreamWriter failed", "file write failed")


# Everything below a space except tab and newline, delete and the C1 block, and the marks that turn text around.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SECRET = r"(?:api_?key|passw(?:or)?d|secret|(?:access|auth|api|hf)_?token)"
_SECRET_NAME = re.compile(rf"--?[\w.-]*{_SECRET}", re.IGNORECASE)
_SECRET_VALUE = re.compile(rf"({_SECRET}[\"']?\s*[=:]).+", re.IGNORECASE | re.DOTALL)
_CREDENTIALS = re.compile(r"//[^\s]*@")


class UserError(ValueError):
    """A wrong argument, file or setting. The message names the argument, the rule and what came."""


class BudgetError(UserError):
    """A budget is used up. Asking again does not help, so the command ends."""


class OtherTaskError(UserError):
    """A trained policy is to play another task than its own.

    The argument says who and which. The message also names the option of those who have one; others catch it.
    """

    def __str__(self) -> str:
        """Return the message with the way out."""
        return f"{self.args[0]}; if that is meant: lmrl evaluate --allow_other_task, in Python allow_other_task=True"


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that is not among the known ones: ``unknown task 'x'; known: a, b``."""
    return UserError(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}")


def check_choice(known: Collection[str], /, **choices: str) -> None:
    """Refuse names that are not among the known ones: ``check_choice(LEVELS, level=level)``.

    Args:
        known: the names.
        **choices: the names to check, by argument.

    Raises:
        UserError: a name is not known; see `unknown`.
    """
    for argument, name in choices.items():
        if name not in known:
            raise unknown(argument, name, known)


def check_range(interval: str, **numbers: float | None) -> None:
    """Refuse numbers outside of an interval: ``check_range("[0, 1]", gamma=gamma, polyak=polyak)``.

    Args:
        interval: as in mathematics, ``[`` and ``]`` for ends that belong to it: ``"(0, 1]"``, ``"[0, inf)"``.
        **numbers: the numbers to check, by argument; None is not checked.

    Raises:
        UserError: a value is outside, not finite, or no number.
    """
    parts = _INTERVAL.fullmatch(interval)
    assert parts is not None, interval
    opening, low, high, closing = parts.groups()
    for name, value in numbers.items():
        if value is None:
            continue
        is_number = isinstance(value, (int, float)) and math.isfinite(value)
        if is_number:
            is_above = value >= float(low) if opening == "[" else value > float(low)
            is_below = value <= float(high) if closing == "]" else value < float(high)
            if is_above and is_below:
                continue
        rules = [] if is_number else ["a finite number"]
        if high != "inf":
            rules.append(f"in {interval}")
        elif low != "-inf":
            rules.append(f"at least {low}" if opening == "[" else f"above {low}")
        raise UserError(f"{name} must be {', '.join(rules)}, got {value!r}")


def counted(count: int, what: str) -> str:
    """Return a number with the name of what it counts, ``1 turn`` or ``2 turns``.

    Args:
        count: their number.
        what: the name of one of them, whose plural ends in s.
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def in_one_line(error: BaseException | str, limit: int = 300) -> str:
    """Return an error's message without line breaks and terminal escapes, cut to a limited length."""
    words = " ".join(str(error).split())
    text = "".join(character if character.isprintable() else "?" for character in words)
    return text if len(text) <= limit else f"{text[:limit]}..."


def valid_unicode(text: str) -> str:
    r"""Return a text with U+FFFD in place of half a surrogate pair, which JSON may hold (``"\ud83d"``).

    Neither Parquet nor UTF-8 can hold a lone surrogate, so texts from outside are mended where they arrive.
    """
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def printable(text: str) -> str:
    """Return a text with a mark in place of what cannot be seen, what turns text around, and what a terminal obeys."""
    return _UNPRINTABLE.sub("�", text.replace("\r\n", "\n"))


def without_secrets(words: Iterable[str]) -> list[str]:
    """Return words of a command line, or addresses, with ``...`` in place of API keys and passwords.

    Left out are the values of ``api_key=VALUE`` and its like, also as ``--api_key VALUE``, and in an address what
    stands before the @: ``http://user:password@host``.
    """
    public = []
    follows_name = False
    for word in words:
        is_value = follows_name and not word.startswith("-")
        follows_name = _SECRET_NAME.fullmatch(word) is not None
        if is_value:
            public.append("...")
            continue
        word = _CREDENTIALS.sub("//...@", word)
        public.append(_SECRET_VALUE.sub(r"\1...", word))
    return public


def system_error(error: BaseException) -> str | None:
    """Return the message for an error of the system (disk, permissions, memory, network), or None for other errors."""
    message = in_one_line(error)
    if isinstance(error, RuntimeError) and any(part in message for part in _WRITE_FAILURES):
        return f"a file could not be written ({message}): {_FREE_SPACE}"
    if isinstance(error, MemoryError):
        reason = message or "MemoryError"
        return f"memory ran out ({reason}): smaller batches, a smaller model or fewer processes need less"
    if not isinstance(error, OSError):
        native = _OS_ERROR.search(message)
        if native is None or isinstance(error, UserError):
            return None
        number = int(native[1])
    elif error.errno is None or error.strerror is None:
        return message or type(error).__name__
    else:
        number = error.errno
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
        message = in_one_line(f"{' to '.join(names)}: {error.strerror}" if names else error.strerror)
    way_out = _WAYS_OUT.get(number)
    return message if way_out is None else f"{message}; {way_out}"


@contextmanager
def terminated_by_exception() -> Iterator[None]:
    """Turn SIGTERM into ``SystemExit(143)`` inside the block, so that temporary files go and finished work is kept.

    The same goes for SIGHUP, which a terminal sends when it is closed. Only the main thread can do so; elsewhere, and
    for a signal that has a handler already, nothing is changed.
    """
    changed = []
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit)
                changed.append(number)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def user_error_in(error: BaseException) -> UserError | None:
    """The `UserError` that an exception comes from, wherever it was raised; None if there is none.

    Libraries raise it again as another exception: jsonargparse where a constructor raised it, torch from a worker of
    a data loader or another process (as text), `torch.compile` from within a graph.
    """
    # A search through everything that an exception holds or follows from, nearest first.
    seen: set[int] = set()
    pending: list[BaseException] = [error]
    while pending:
        current = pending.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        text = str(current)
        sent = _REMOTE_USER_ERROR.findall(text) if "Traceback" in text else []
        if sent:
            return UserError(sent[-1])
        if isinstance(current, UserError):
            return current
        pending += getattr(current, "exceptions", ())  # the errors in an exception group
        pending += [argument for argument in current.args if isinstance(argument, BaseException)]
        if current.__cause__ is not None:
            pending.append(current.__cause__)
        elif current.__context__ is not None and not current.__suppress_context__:
            pending.append(current.__context__)
    return None
