"""Chat templates of a folder: whether lmrl accepts each for training, and how its dialogues differ from the template's.

Each ``*.jinja`` file is tried with a bundled tokenizer to which the special tokens in its text are added. A template is
accepted if, in all dialogues, a policy reads exactly what it has read and said before, and training reads the same ids.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jinja2 import TemplateError
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from benchmarks.row import Row
from lmrl.errors import UserError, in_one_line
from lmrl.models.tokenizer import load_tokenizer
from lmrl.tokens.encoding import ChatEncoder, Ids, Window, invalid_ids, render_chat, stop_ids
from lmrl.tokens.segments import context, segments
from lmrl.types import Episode

# Tags that are plain text to the real tokenizers, such as <tools>, are found too, which changes nothing here.
_SPECIAL = re.compile(r"<[|\uff5c/]?[\w|\uff5c\u2581]+[|\uff5c]?>|\[/?[A-Za-z]+\]")  # also as DeepSeek writes them
_SYSTEMS = ("", "You walk.\n\nThere are four moves.")
_DIALOGUES = {
    "plain": (("You are at 1, 1.\n", "Wall!\n", "You are at 1, 2.\n"), ("move up\n", "move right\n")),
    "spaces": (("  You are at 1, 1. \n\n", "\tWall!", " You are at 1, 2."), (" move up ", "\n move right\n")),
    "non-ASCII": (("Où est la tour ? 東京 🗼\n", "Nein, größer.\n", "Ещё раз.\n"), ("à côté 🗼\n", "東京\n")),
    "empty": (("", "Wall!\n", ""), ("", "move right\n")),
    "thoughts": (
        ("You are at 1, 1.\n", "Wall!\n", "You are at 1, 2.\n"),
        ("<think>\nUp is free.\n</think>\n\nmove up\n", "<think>\nRight.\n</think>\n\nmove right\n"),
    ),
}


def run(folder: Path | None) -> Iterator[Row]:
    """Rows for `python -m benchmarks`: one per template, and their numbers.

    Args:
        folder: of ``*.jinja`` files.

    Raises:
        UserError: there are none.
    """
    files = [] if folder is None else sorted(folder.glob("*.jinja"))
    if not files:
        raise UserError(f"chat_templates needs --folder, a folder of *.jinja files; got {folder}")
    num_accepted = 0
    for file in files:
        template = file.read_text(encoding="utf-8")
        try:
            verdict = "; ".join(["accepted", *differences(template)])
        except UserError as error:
            yield Row(file.stem, 0.0, shown=f"refused: {in_one_line(error, 300)}")
            continue
        num_accepted += 1
        yield Row(file.stem, 1.0, shown=verdict)
    yield Row(f"accepted of {len(files)}", num_accepted, better="higher")


def differences(template: str) -> list[str]:
    """Try a template with all dialogues.

    Returns:
        The differences between lmrl's dialogues and the template's own, one phrase each.

    Raises:
        UserError: the template is refused.
        AssertionError: the template is accepted, but a dialogue is not what it must be.
    """
    tokenizer = load_tokenizer()
    # Thoughts are tokens that policies may sample.
    specials = [AddedToken(text, special="think" not in text) for text in sorted(set(_SPECIAL.findall(template)))]
    tokenizer.add_tokens(specials)
    tokenizer.chat_template = template
    found: dict[str, None] = {}  # without repetition
    for system in _SYSTEMS:
        encoder = ChatEncoder(tokenizer, system)
        found.update(dict.fromkeys(encoder.deviations))
        _check_end(encoder)
        for name, (observations, actions) in _DIALOGUES.items():
            window = Window(rendering="chat", system=system)
            try:
                recorded = [encoder.action(action) for action in actions]
            except UserError:
                assert name == "thoughts"
                found["recorded thoughts are refused"] = None
                continue
            _check_history(encoder, window, observations, actions, recorded)
            # Ids that the tokenizer would not choose, and an action that ran out of tokens.
            spelt = [token for letter in actions[1] for token in encoder.encode(letter)]
            _check_history(encoder, window, observations, actions, [recorded[0][:-1] or recorded[0], tuple(spelt)])
            if name in ("plain", "spaces", "non-ASCII"):
                turns = 1 if any("earlier turns keep" in phrase for phrase in encoder.deviations) else len(observations)
                read = context(encoder, window, observations[:turns], actions[: turns - 1])
                assert read in _of_template(tokenizer, system, observations[:turns], actions[: turns - 1])
    return list(found)


def _check_end(encoder: ChatEncoder) -> None:
    """Check that an action ends with a token that policies may sample and that ends their turn."""
    tokenizer = encoder.tokenizer
    ids = encoder.action("move up")
    assert stop_ids(encoder) == {ids[-1]}
    assert not invalid_ids(tokenizer, len(tokenizer), torch.device("cpu"), encoder.end)[ids[-1]]


def _check_history(
    encoder: ChatEncoder, window: Window, observations: Sequence[str], actions: Sequence[str], ids: Sequence[Ids]
) -> None:
    """Check that what a turn reads begins with what was read and said before, and that training reads the same."""
    contexts = []
    for turn in range(len(observations)):
        contexts.append(context(encoder, window, observations[: turn + 1], actions[:turn], ids[:turn]))
    for before, said, after in zip(contexts, ids, contexts[1:], strict=False):
        assert after[: len(before) + len(said)] == [*before, *said]
    texts = tuple(encoder.decode_action(said) for said in ids)
    rewards = (0.0,) * len(texts)
    episode = Episode("maze_fo", tuple(observations), texts, rewards, False, True, action_ids=tuple(ids))
    (segment,) = segments(episode, encoder, window)
    start = 0
    for before, said in zip(contexts, ids, strict=False):
        columns = segment.col[start : start + len(said)]
        assert segment.ids[: columns[0] + 1].tolist() == before
        assert segment.token[start : start + len(said)].tolist() == [*said]
        start += len(said)
    assert start == len(segment.token)
    assert segment.next_ids is not None
    assert segment.next_ids.tolist() == contexts[-1]


def _of_template(
    tokenizer: PreTrainedTokenizerBase, system: str, observations: Sequence[str], actions: Sequence[str]
) -> list[list[int]]:
    """Return the ids of a dialogue as its template renders it, as a whole, and with lmrl's date.

    Returns:
        The dialogue with a generation prompt, and the dialogue up to a last message of the assistant.
    """
    messages = [{"role": "system", "content": system}] if system else []
    for turn, observation in enumerate(observations):
        messages.append({"role": "user", "content": observation.strip()})
        if turn < len(actions):
            messages.append({"role": "assistant", "content": actions[turn].strip()})
    reply = {"role": "assistant", "content": "move down"}
    try:
        prompt = render_chat(tokenizer, messages)
        turns = render_chat(tokenizer, [*messages, reply], generation_prompt=False)
    except TemplateError:  # it has no system role: see `lmrl.tokens.encoding.ChatEncoder`
        first = f"{system}\n\n{observations[0].strip()}"
        return _of_template(tokenizer, "", (first, *observations[1:]), actions)
    texts = (prompt, turns.rpartition(reply["content"])[0])
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]
