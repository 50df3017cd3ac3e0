r"""Text to token ids and back: plain text, or a chat template cut at the turns.

With ``rendering: chat`` observations are user turns and actions assistant turns, after a system message if there is
one. A rendered dialogue is cut where the other side begins to write, so that training and rollouts build contexts of
the same pieces::

    opening     <|im_start|>user\nat 1, 1<|im_end|>\n<|im_start|>assistant\n       the first observation that is read
    action      move right<|im_end|>                                              the action, and its end of turn
    following   \n<|im_start|>user\nat 1, 2<|im_end|>\n<|im_start|>assistant\n     every later observation

Each piece is rendered once and kept, so what a policy has read and said stays a prefix of what it reads later, also
with templates that write earlier turns in another way than the newest.

See `lmrl.tokens.segments` for the alignment of states and action tokens.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from types import FrameType
from typing import Any, TypeAlias

import torch
from jinja2 import TemplateError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lmrl.errors import UserError, in_one_line, unknown

__all__ = [
    "RENDERINGS", "ChatEncoder", "Encoder", "Ids", "Window", "adds_bos", "encoder_for", "invalid_ids", "render_chat",
    "special_ids", "stop_ids",
]  # fmt: skip

Ids: TypeAlias = tuple[int, ...]


class Encoder:
    """Text to ids and back, one text at a time, remembering what it has seen (game texts repeat)."""

    #: Id with which a policy ends an action; None: a line break does, whichever id has it.
    end: int | None = None
    #: Id in front of each context; None: there is none.
    bos: int | None = None
    #: Text between an observation and an action, where it replaces the generation prompt of a chat template; None: it
    #: does not. See `ChatEncoder`.
    header: str | None = None

    def __init__(self, tokenizer: PreTrainedTokenizerBase, remember: int = 100_000) -> None:
        self.tokenizer = tokenizer
        # The same ids ten times faster than through the tokenizer's own methods.
        self._fast = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if self._fast is not None:
            self._fast.no_truncation()
            self._fast.no_padding()
        self._remember = remember
        self._ids: dict[str, Ids] = {}

    def encode(self, text: str) -> Ids:
        """Ids of ``text`` alone: token boundaries coincide with text boundaries, no special tokens are added."""
        ids = self._ids.get(text)
        if ids is None:
            ids = tuple(self._encode(text))
            if len(self._ids) < self._remember:
                self._ids[text] = ids
        return ids

    def _encode(self, text: str) -> Sequence[int]:
        if self._fast is None:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` as it is, special tokens and spaces included."""
        if self._fast is not None:
            return str(self._fast.decode(list(ids), skip_special_tokens=False))
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def action(self, text: str) -> Ids:
        """Ids of an action of the policy."""
        return self.encode(text)

    def decode_action(self, ids: Sequence[int]) -> str:
        """The text of an action, as environments read it, of the ids that a policy sampled."""
        return self.decode(ids)

    def opening(self, observation: str) -> Ids | None:
        """Return the ids of an observation at the start of a context, or None if they do not differ there.

        With None, a context may also start with an action.
        """
        return None if self.bos is None else (self.bos, *self.encode(observation))

    def prefix(self, opening: Ids) -> Ids:
        """The ids that come before the words of a first observation."""
        return () if self.bos is None else (self.bos,)

    def pieces(self, observations: Sequence[str], actions: Sequence[str], ids: Sequence[Ids]) -> list[Ids]:
        """The ids of every text in the order of the episode; actions as they were sampled, where that is known."""
        pieces = [self.encode(observations[0])]
        for turn, action in enumerate(actions):
            sampled = ids[turn] if turn < len(ids) else ()
            pieces.append(tuple(sampled) or self.action(action))
            if turn + 1 < len(observations):
                pieces.append(self.encode(observations[turn + 1]))
        return pieces


@dataclass(frozen=True, slots=True)
class Window:
    """How much of the past a policy reads, and in which form: whole texts, the newest ones."""

    texts: int | None = None
    """The most texts that are read (observations and actions both count); None means all."""
    tokens: int = 1024
    """The most tokens that are read. The oldest texts go first; a single longer text loses its first words."""
    rendering: str = "text"
    """``text``: one text after the other as they are; ``chat``: as the tokenizer's chat template has it."""
    system: str = ""
    """With ``chat``: the system message at the beginning of each context. It counts among the tokens."""
    bos: bool = False
    """With ``text``: each context begins with the tokenizer's BOS token, and with an observation. See `adds_bos`."""

    def start(self, lengths: Sequence[int], opening: Callable[[int], int] | None = None) -> int:
        """Return the index of the first text that a policy reads.

        Args:
            lengths: number of tokens of each text: observation 0, action 0, observation 1, ..., the newest observation.
            opening: returns the number of tokens of an observation at the start of a context, by the index of its
                text, if they differ there. Then no context starts with an action.
        """
        earliest = 0 if self.texts is None else max(0, len(lengths) - self.texts)
        if opening is not None:
            earliest += earliest % 2  # contexts begin at observations (even indices) only
        # Mostly all of them fit. This is asked at each turn of each episode of a data set.
        length = lengths[earliest] if opening is None else opening(earliest)
        if length + sum(lengths[earliest + 1 :]) <= self.tokens:
            return earliest
        newest = len(lengths) - 1
        first = newest
        total = 0
        for index in range(newest, earliest - 1, -1):
            if opening is None or index % 2 == 0:
                length = lengths[index] if opening is None else opening(index)
                if index < newest and total + length > self.tokens:
                    break
                first = index
            total += lengths[index]
        return first


_DIALOGUE = ("alpha one", "beta two", "gamma three", "delta four", "epsilon five")
_REPLY = "eta seven"  # marks the place of the newest action
_END_OF_THOUGHT = "</think>"  # by which templates find thoughts in what the assistant says
RENDERINGS = ("text", "chat")


def encoder_for(tokenizer: PreTrainedTokenizerBase, window: Window | None) -> Encoder:
    """The encoder that renders texts as a window wants them; None: as they are.

    Raises:
        UserError: for an unknown rendering; for ``chat`` as `ChatEncoder`.
    """
    if window is None or window.rendering == "text":
        encoder = Encoder(tokenizer)
        if window is not None and window.bos:
            encoder.bos = tokenizer.bos_token_id
        return encoder
    if window.rendering not in RENDERINGS:
        raise unknown("rendering", window.rendering, RENDERINGS)
    return ChatEncoder(tokenizer, window.system)


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer puts its BOS token in front of texts, as the pretraining of its model did."""
    return tokenizer.bos_token_id is not None and tokenizer.encode("a")[:1] == [tokenizer.bos_token_id]


_SECONDS = 5.0  # for one conversation, which takes a millisecond
_OF_THE_DATE = {
    "%A": "Friday", "%a": "Fri", "%-d": "26", "%d": "26",
    "%B": "July", "%b": "Jul", "%m": "07", "%Y": "2024", "%y": "24",
}  # fmt: skip
_FIXED_DATE = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f" | replace('{code}', '{text}')" for code, text in _OF_THE_DATE.items())
    + " }}{% endmacro %}\n"
)
"""The function by which templates write today's date, with the date that those of Llama 3 write without it."""


def render_chat(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]], generation_prompt: bool = True
) -> str:
    """Return a conversation as the chat template of a tokenizer writes it, by default up to where the assistant begins.

    Where it writes today's date, that is always 26 July 2024: a policy reads the same on every day.

    Raises:
        TemplateError: the template fails in whatever way, or does not end within 5 seconds.
    """
    # A template is a program that comes with a model and may loop forever. Only a trace function can stop it.
    deadline = time.monotonic() + _SECONDS

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if time.monotonic() > deadline:
            raise TimeoutError(f"it does not end within {_SECONDS:.0f} seconds")
        return trace if frame.f_code.co_filename.startswith("<") else None  # line by line in the template alone

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        text = tokenizer.apply_chat_template(
            list(map(dict, messages)),
            chat_template=_FIXED_DATE + tokenizer.get_chat_template(),
            add_generation_prompt=generation_prompt,
            tokenize=False,
        )
    except Exception as error:  # a template comes with a model and can do anything that its sandbox permits
        raise TemplateError(in_one_line(f"{type(error).__name__}: {error}")) from error
    finally:
        sys.settrace(before)
    return str(text)


class ChatEncoder(Encoder):
    """Renders with the chat template of the tokenizer. Texts lose the white space around them, as in most templates.

    The generation prompt is the text that the template writes before a new assistant turn. If the template's own
    assistant turns begin with it, the policy acts right after it and `header` is None. Otherwise `header` is the
    template's text between an observation and the newest action, and the policy acts right after that text, which may
    hold an empty thought, for example.

    Args:
        tokenizer: with a chat template.
        system: the system message. A template that has no such role gets it in front of the first observation. If it
            is empty, some templates write one of their own, see `own_system`.
        remember: number of texts whose ids are kept, of each kind.

    Raises:
        UserError: there is no template, or one that cannot be cut: it leaves texts out, a turn does not end in a token
            of its own, or earlier turns change when the dialogue goes on.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, system: str = "", remember: int = 100_000) -> None:
        super().__init__(tokenizer, remember)
        if not tokenizer.chat_template:
            raise UserError(f"rendering chat needs a chat template, and {self._name} has none: use rendering text")
        self._system = system.strip()
        self._has_system_role = bool(self._system) and self._takes_system()
        self._openings: dict[str, Ids] = {}
        self._followings: dict[str, Ids] = {}
        dialogue = self._render(*_DIALOGUE)
        if not all(text in dialogue for text in _DIALOGUE):
            raise self._unfit(f"it leaves out texts of the dialogue, as in {dialogue!r}")
        observation = _DIALOGUE[0]
        try:
            self._find_pieces()
        except UserError:
            # The template's own turns begin with more than the generation prompt, or with something else.
            turn = self._render(observation, _REPLY, generation_prompt=False)
            self.header = _text_after(turn.rpartition(_REPLY)[0], observation)
            self._find_pieces()
        self._closes_thought = _END_OF_THOUGHT in _text_after(self._prompt(observation), observation)

    def _find_pieces(self) -> None:
        """Cut a short dialogue into its pieces, and check that such pieces make up a longer one."""
        first, action, second, *_ = _DIALOGUE
        opening = self._prompt(first)
        dialogue = self._prompt(first, action, second)
        # A turn of the assistant may begin in another way when it is an earlier one.
        shared = commonprefix((opening, dialogue))  # noqa: RUF071 (of texts, not of paths)
        newest_header = opening[len(shared) :]
        earlier_header, found, rest = dialogue[len(shared) :].partition(action)
        if not found or (self.header is None and (newest_header or earlier_header.strip())):
            raise self._unfit(f"after {opening!r} it goes on {dialogue!r}")
        # Text before the newest action only.
        self._newest_header = newest_header
        # Text before an action once it belongs to an earlier turn.
        self._earlier_header = earlier_header
        # White space that is encoded as part of the action.
        self._action_prefix = earlier_header if self.header is None else ""
        self.end = self._end_of_turn_id(rest)
        end = self.decode((self.end,))
        # The first observation and action, and the end of that turn.
        self._first_turn = shared + earlier_header + action + end
        built = self._first_turn
        for observation, action in zip(_DIALOGUE[2::2], _DIALOGUE[3::2], strict=False):
            built += self._later_observation_text(observation).removesuffix(newest_header)
            built += earlier_header + action + end
        built += self._later_observation_text(_DIALOGUE[-1])
        if built != self._prompt(*_DIALOGUE):
            raise self._unfit(f"earlier turns change when the dialogue goes on, as in {self._prompt(*_DIALOGUE)!r}")

    @property
    def deviations(self) -> list[str]:
        """How the rendering differs from the template's own, a phrase each; empty where it never does."""
        first, action, second, *_ = _DIALOGUE
        assert self.end is not None
        found = []
        if self.header is not None:
            prompt = _text_after(self._render(first), first)
            if prompt != self.header:
                found.append(f"policies act after {self.header!r}, and not after its generation prompt {prompt!r}")
            if self._newest_header != self._earlier_header:
                found.append(f"earlier turns keep {self._newest_header!r}, where it writes {self._earlier_header!r}")
        turn = _text_after(self._render(first, action, generation_prompt=False), first)
        built = _text_after(self._prompt(first) + self._action_prefix + action + self.decode((self.end,)), first)
        if not turn.startswith(built):
            found.append(f"the newest turn is {built!r}, where it writes {turn!r}")
        ids = [*self.opening(first), *self.action(action), *self._following(second)]
        has_one_header = self._newest_header == self._earlier_header
        if has_one_header and tuple(ids) != self.encode(self._prompt(first, action, second)):
            found.append("its tokens are those of one text after the other, and not those of the whole dialogue")
        thought = f"<think>\ntheta eight\n{_END_OF_THOUGHT}\n\n{action}"
        if not self._closes_thought and thought not in self._prompt(first, thought, second):
            found.append("thoughts stay in earlier turns, where it leaves them out")
        return found

    @property
    def own_system(self) -> str:
        """The system message that the template writes where it gets none; empty if it writes none."""
        observation = _DIALOGUE[0]
        system = "zeta six"
        try:
            with_system = render_chat(
                self.tokenizer,
                [{"role": "system", "content": system}, {"role": "user", "content": observation}],
            )
        except TemplateError:
            return ""
        without = render_chat(self.tokenizer, [{"role": "user", "content": observation}])
        before, found, after = with_system.partition(system)
        if not found or not (without.startswith(before) and without.endswith(after)):
            return ""
        return without[len(before) : len(without) - len(after)].strip()

    def _takes_system(self) -> bool:
        """Whether the template has a place for a system message."""
        messages = [{"role": "system", "content": self._system}, {"role": "user", "content": _DIALOGUE[0]}]
        try:
            return self._system in render_chat(self.tokenizer, messages)
        except TemplateError:
            return False

    def action(self, text: str) -> Ids:
        """Ids of an action, the end of the turn included.

        Raises:
            UserError: it has a thought, and the template has ended that before.
        """
        assert self.end is not None
        if self._closes_thought and _END_OF_THOUGHT in text:
            raise UserError(
                f"the action {text!r:.60} has a thought, and with the chat template of {self._name} policies act after "
                "the end of one: take thoughts out of the data, or take a template that leaves them to the assistant"
            )
        return (*self.encode(self._action_prefix + text.strip()), self.end)

    def decode_action(self, ids: Sequence[int]) -> str:
        """The text of an action, as environments read it: one text and a line break."""
        words = ids[:-1] if ids and ids[-1] == self.end else ids
        return self.decode(words).strip() + "\n"

    def opening(self, observation: str) -> Ids:
        """Ids of an observation with which a context begins."""
        ids = self._openings.get(observation)
        if ids is None:
            ids = tuple(self._encode(self._prompt(observation.strip())))
            if len(self._openings) < self._remember:
                self._openings[observation] = ids
        return ids

    def prefix(self, opening: Ids) -> Ids:
        """See `Encoder.prefix`: the template's beginning of a turn, with all that comes before it."""
        words = _DIALOGUE[0]
        header = self.encode(self._prompt(words).partition(words)[0])
        shared: Ids = tuple(commonprefix((header, opening)))  # noqa: RUF071 (of ids, not of paths)
        return shared

    def pieces(self, observations: Sequence[str], actions: Sequence[str], ids: Sequence[Ids]) -> list[Ids]:
        """See `Encoder.pieces`. A turn that was not ended gets its end from the observation that follows."""
        pieces = [self._following(observations[0])]
        for turn, action in enumerate(actions):
            sampled = ids[turn] if turn < len(ids) else ()
            pieces.append(tuple(sampled) or self.action(action))
            if turn + 1 < len(observations):
                following = self._following(observations[turn + 1])
                if pieces[-1][-1] != self.end:
                    assert self.end is not None
                    following = (self.end, *following)
                pieces.append(following)
        return pieces

    @property
    def _name(self) -> str:
        return f"the tokenizer {self.tokenizer.name_or_path!r}"

    def _following(self, observation: str) -> Ids:
        """Return the ids of an observation after the end of a turn."""
        ids = self._followings.get(observation)
        if ids is None:
            ids = self.encode(self._later_observation_text(observation.strip()))
            if len(self._followings) < self._remember:
                self._followings[observation] = ids
        return ids

    def _later_observation_text(self, observation: str) -> str:
        """Return the text that a policy reads for an observation after the end of a turn."""
        rendered = self._prompt(*_DIALOGUE[:2], observation)
        if not rendered.startswith(self._first_turn):
            raise self._unfit(f"earlier turns change with {observation!r}, as in {rendered!r}")
        return rendered.removeprefix(self._first_turn)

    def _end_of_turn_id(self, rest: str) -> int:
        """Return the id that ends a turn: the first one of the text behind an action."""
        first, *_ = self.encode(rest) or (-1,)
        if first not in self.tokenizer.added_tokens_decoder or not rest.startswith(self.decode((first,))):
            raise self._unfit(f"an action must end in a token of its own, but there comes {rest!r}")
        return first

    def _prompt(self, *texts: str) -> str:
        """Return all that a policy reads before its next action."""
        if self.header is None:
            return self._render(*texts)
        return self._render(*texts, _REPLY, generation_prompt=False).rpartition(_REPLY)[0]

    def _render(self, *texts: str, generation_prompt: bool = True) -> str:
        messages = []
        for index, text in enumerate(texts):
            messages.append({"role": "assistant" if index % 2 else "user", "content": text})
        if self._has_system_role:
            messages.insert(0, {"role": "system", "content": self._system})
        elif self._system:
            messages[0]["content"] = f"{self._system}\n\n{texts[0]}"
        try:
            return render_chat(self.tokenizer, messages, generation_prompt)
        except TemplateError as error:
            raise self._unfit(str(error)) from error

    def _unfit(self, why: str) -> UserError:
        return UserError(
            f"the chat template of {self._name} cannot be used for training, which needs one that is prefix-stable: "
            f"{why}. Use rendering text"
        )


def _text_after(text: str, observation: str) -> str:
    """Return the part of a text behind the last occurrence of an observation; the whole text if there is none."""
    return text.rpartition(observation)[2]


def stop_ids(encoder: Encoder) -> frozenset[int]:
    """The id that ends a turn; where there is none, every id whose text ends a line.

    Raises:
        UserError: the tokenizer has none of either kind.
    """
    if encoder.end is not None:
        return frozenset((encoder.end,))
    tokenizer = encoder.tokenizer
    ids = frozenset(token for token in range(len(tokenizer)) if encoder.decode((token,)).endswith("\n"))
    if not ids:
        raise UserError(
            f"the tokenizer must have a token that ends in a line break, {type(tokenizer).__name__} has none"
        )
    return ids


def invalid_ids(
    tokenizer: PreTrainedTokenizerBase, vocabulary: int, device: torch.device, end: int | None = None
) -> Tensor:
    """``(vocabulary,)`` bool: special ids but ``end``, and ids that pad the vocabulary beyond the tokenizer's."""
    mask = torch.arange(vocabulary) >= len(tokenizer)
    mask[[token for token in special_ids(tokenizer, end) if token < vocabulary]] = True
    return mask.to(device)


def special_ids(tokenizer: PreTrainedTokenizerBase, end: int | None = None) -> set[int]:
    """Return the ids that stand for no text, such as BOS, but not ``end``."""
    found = set(tokenizer.all_special_ids)
    # Models have more of them than they name, such as other ends of a turn and reserved ones.
    found.update(token for token, added in tokenizer.added_tokens_decoder.items() if added.special)
    return found - {end}
