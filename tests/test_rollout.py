"""The loop in which policies meet environments, also those that fail."""

import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from itertools import count
from typing import Any, ClassVar

import pytest

import lmrl
from lmrl.envs import Opening, TextEnv, Turn
from lmrl.envs.registry import make_policy
from lmrl.envs.twenty_questions.env import ScriptedOracle
from lmrl.errors import UserError
from lmrl.evaluation import Evaluation
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, PartnerRequest, Reply, Request, Start
from tests.helpers.cases import cases


class Counter(TextEnv):
    """A game of five turns that counts them. ``fails(seed, turn)`` decides which turn raises; turn -1 is the reset."""

    def __init__(self, fails: Callable[[int, int], bool]) -> None:
        super().__init__()
        self.fails = fails
        self.turns = 0

    def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        self.seed = arguments["seed"]
        self.turns = 0
        if self.fails(self.seed, -1):
            raise OSError("no answer")
        return super().reset(**arguments)

    def begin(self, options: dict[str, Any]) -> Opening:
        return Opening("0\n", "0", {})

    def turn(self, action: str) -> Turn:
        self.turns += 1  # as a game that has moved before its engine breaks
        if self.fails(self.seed, self.turns):
            raise OSError("no answer")
        over = self.turns == 5
        return Turn(f"{self.turns}\n", 1.0, over, False, {"illegal": False, "success": over})


class Says:
    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply("go\n", (1, 2), (-0.5, -0.5)) for _ in requests]


def play(fails: Callable[[int, int], bool], forgiving: bool = True, slots: int = 2) -> list[Episode]:
    starts = [Start(seed) for seed in range(4)]
    return in_order(rollout(Says(), lambda: Counter(fails), starts, task="toy", slots=slots, forgiving=forgiving))


class Silent(Counter):
    def begin(self, options: dict[str, Any]) -> Opening:
        return Opening("", "0", {})


def test_an_episode_that_begins_with_nothing_to_read_is_refused_by_name() -> None:
    starts = [Start(7)]
    with pytest.raises(UserError, match=r"Silent begins the episode with seed 7 with an empty text"):
        list(rollout(Says(), lambda: Silent(lambda *_: False), starts, task="toy"))
    (found,) = in_order(rollout(Says(), lambda: Silent(lambda *_: False), starts, task="toy", forgiving=True))
    assert len(found) == 0 and "Silent begins the episode with seed 7" in found.info["error"]


class Once:
    """A condition that is true for one seed and turn, the first time only."""

    def __init__(self, seed: int, turn: int) -> None:
        self.wanted = (seed, turn)
        self.times = 0

    def __call__(self, seed: int, turn: int) -> bool:
        self.times += (seed, turn) == self.wanted
        return (seed, turn) == self.wanted and self.times == 1


WHOLE = play(lambda seed, turn: False, forgiving=False)


@pytest.mark.parametrize("turn", [-1, 1, 3, 5])
def test_what_fails_once_is_played_again_and_nothing_shows(turn: int) -> None:
    fails = Once(1, turn)
    assert play(fails) == WHOLE
    assert fails.times >= 2


def test_what_fails_again_ends_its_episode_and_no_other() -> None:
    played = play(lambda seed, turn: (seed, turn) == (1, 3))
    assert [played[0], *played[2:]] == [WHOLE[0], *WHOLE[2:]]
    broken = played[1]
    assert (broken.truncated, broken.terminated, broken.success) == (True, False, False)
    assert broken.observations == ("0\n", "1\n", "2\n")
    assert (len(broken.actions), broken.action_ids) == (2, ((1, 2), (1, 2)))
    assert broken.info["error"] == "OSError: no answer"


class Talkative(Counter):
    """A game whose ``info`` has keys of its own that rollouts and learners give a meaning."""

    def turn(self, action: str) -> Turn:
        answer = super().turn(action)
        own = {"error": None, "group": "A", "final_observation": 5}
        return Turn(answer.text, answer.reward, False, self.turns == 3, {**answer.info, **own})


@pytest.mark.parametrize("fails", [lambda *_: False, lambda _, turn: turn == 3], ids=["truncated", "aborted"])
def test_only_a_failure_marks_an_episode_as_aborted(fails: Callable[[int, int], bool]) -> None:
    (episode,) = in_order(rollout(Says(), lambda: Talkative(fails), [Start(0)], task="toy", forgiving=True))
    failed = fails(0, 3)
    assert episode.truncated and episode.aborted == failed
    assert episode.info.get("error") == ("OSError: no answer" if failed else None)
    assert "group" not in episode.info
    assert episode.final_observation == episode.observations[-1] == ("2\n" if failed else "3\n")


def test_an_episode_that_cannot_begin_has_no_turn() -> None:
    played = play(lambda seed, turn: (seed, turn) == (2, -1))
    assert [len(episode) for episode in played] == [5, 5, 0, 5]
    assert played[2].info["error"] == "OSError: no answer"


def test_without_forgiveness_a_failure_is_an_exception() -> None:
    with pytest.raises(OSError, match="no answer"):
        play(Once(1, 3), forgiving=False)


@pytest.mark.parametrize("turn", [1, 2])
def test_an_environment_that_does_not_repeat_itself_is_not_trusted(turn: int) -> None:
    class Moody(Counter):
        made = 0

        def __init__(self, fails: Callable[[int, int], bool]) -> None:
            super().__init__(fails)
            Moody.made += 1
            self.mood = f"{Moody.made}\n"

        def begin(self, options: dict[str, Any]) -> Opening:
            return Opening(self.mood, "0", {})

    fails = Once(0, turn)
    (episode,) = in_order(rollout(Says(), lambda: Moody(fails), [Start(0)], task="toy", slots=1, forgiving=True))
    assert "does not repeat itself" in episode.info["error"]
    assert len(episode) == turn - 1 and episode.observations[0] == "1\n"


class Door(Counter):
    """A game that counts its instances, and keeps those that are open."""

    made = 0
    opened: ClassVar[set["Door"]] = set()

    def __init__(self, fails: Callable[[int, int], bool]) -> None:
        super().__init__(fails)
        Door.made += 1
        Door.opened.add(self)

    def close(self) -> None:
        Door.opened.remove(self)


@pytest.fixture
def doors() -> type[Door]:
    Door.made, Door.opened = 0, set()
    return Door


def test_a_slot_keeps_its_environment_and_closes_it(doors: type[Door]) -> None:
    class Seated(Says):
        def act(self, requests: Sequence[Request]) -> list[Reply]:
            assert len({request.slot for request in requests} & {0, 1, 2}) == len(requests)
            return super().act(requests)

    starts = [Start(seed) for seed in range(7)]
    for _ in rollout(Seated(), lambda: doors(lambda *_: False), starts, task="toy", slots=3):
        assert len(doors.opened) == 3
    assert (doors.made, doors.opened) == (3, set())


def test_a_rollout_that_is_left_closes_its_environments(doors: type[Door]) -> None:
    endless = (Start(seed) for seed in count())
    episodes = rollout(Says(), lambda: doors(lambda *_: False), endless, task="toy", slots=3)
    next(episodes)
    assert len(doors.opened) == 3
    episodes.close()
    assert doors.opened == set()


@pytest.mark.parametrize("turn", [-1, 2])
def test_a_failure_closes_every_environment(doors: type[Door], turn: int) -> None:
    starts = [Start(seed) for seed in range(3)]
    with pytest.raises(OSError, match="no answer"):
        list(rollout(Says(), lambda: doors(lambda *at: at == (1, turn)), starts, task="toy", slots=2))
    assert (doors.made, doors.opened) == (2, set())


def test_where_a_recorder_stops_the_rules_have_not_ended_the_episode() -> None:
    stop: Callable[[Request], bool] = lambda request: request.turn >= 2 + request.seed  # noqa: E731
    starts = [Start(seed) for seed in range(4)]
    episodes = in_order(rollout(Says(), lambda: Counter(lambda *_: False), starts, task="toy", stop=stop))
    assert [len(episode) for episode in episodes] == [2, 3, 4, 5]
    assert [(episode.terminated, episode.truncated) for episode in episodes] == [(False, True)] * 3 + [(True, False)]


class Critic(Says):
    """A policy whose values are ten times the number of turns."""

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply("go\n", (1,), (-0.5,), (10.0 * request.turn,)) for request in requests]

    def state_values(self, requests: Sequence[Request]) -> list[float]:
        return [10.0 * request.turn for request in requests]


@pytest.mark.parametrize("slots", [1, 3])
def test_what_is_cut_short_has_a_value_beyond_its_end_and_what_the_rules_end_has_none(slots: int) -> None:
    def stop(request: Request) -> bool:
        return request.turn >= 2 + request.seed

    def make_env() -> Counter:
        return Counter(lambda *_: False)

    starts = [Start(seed) for seed in range(4)]
    values = [
        episode.final_value
        for episode in in_order(rollout(Critic(), make_env, starts, task="toy", stop=stop, slots=slots))
    ]
    assert values == [20.0, 30.0, 40.0, None]
    (plain,) = in_order(rollout(Says(), make_env, starts[:1], task="toy", stop=stop))
    assert plain.truncated and plain.final_value is None


class Mute(Counter):
    """A game that truncates its episodes with an empty text."""

    def turn(self, action: str) -> Turn:
        return Turn("", 1.0, False, True, {})


def test_an_episode_that_is_cut_without_a_word_is_played_all_the_same() -> None:
    class Reader(Critic):
        def state_values(self, requests: Sequence[Request]) -> list[float]:
            assert all(request.observations[-1] for request in requests)
            return super().state_values(requests)

    (episode,) = in_order(rollout(Reader(), lambda: Mute(lambda *_: False), [Start(0)], task="toy"))
    assert episode.truncated and episode.observations[-1] == "" and episode.final_value is None


class Grumpy:
    """A partner that fails at its first request, and at every request with one seed."""

    def __init__(self, seed: int | None = None) -> None:
        self.refused = seed
        self.asked = 0

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        self.asked += 1
        if self.asked == 1 or any(request.seed == self.refused for request in requests):
            raise TimeoutError("no time")
        return ["Yes.\n"] * len(requests)

    def describe(self) -> dict[str, Any]:
        return {"name": "grumpy"}


@pytest.mark.parametrize("refused", [None, 2])
def test_a_second_speaker_that_fails_is_asked_again(refused: int | None) -> None:
    partner = Grumpy(refused)
    played = in_order(
        rollout(
            make_policy("twenty_questions", "random"),
            lambda: lmrl.make("twenty_questions", partner=partner),
            [Start(seed) for seed in range(4)],
            task="twenty_questions",
            slots=4,
            stop=lambda request: request.turn >= 3,
            forgiving=True,
        )
    )
    assert [len(e) for e in played] == [0 if e.seed == refused else 3 for e in played]
    assert [e.info.get("error") for e in played] == [
        "TimeoutError: no time" if e.seed == refused else None for e in played
    ]


class Miscounting(ScriptedOracle):
    """A partner that loses its first reply, and a policy that loses its first action."""

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        return super().reply(requests)[1:]

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply("Is it alive?\n")] * (len(requests) - 1)


def test_too_few_replies_are_named_in_one_line() -> None:
    def play(policy: Any, slots: int, **arguments: Any) -> None:
        make = partial(lmrl.make, "twenty_questions", **arguments)
        list(rollout(policy, make, map(Start, range(2)), task="twenty_questions", slots=slots))

    with pytest.raises(UserError, match=r"partner Miscounting must return one reply .* for 2 requests it returned 1"):
        play(make_policy("twenty_questions", "random"), 2, partner=Miscounting())
    with pytest.raises(UserError, match=r"policy Miscounting must return one reply .* for 2 requests it returned 1"):
        play(Miscounting(), 2)
    env = lmrl.make("twenty_questions", partner=Miscounting())
    env.reset(seed=0)
    with pytest.raises(UserError, match="for 1 request it returned 0"):
        env.step("Is it alive?\n")


@cases(
    ("observations", "actions", "ids", "error"),
    [
        ((), (), (), "after 0 actions needs 1 observation, got 0"),
        (("a", "b"), (), (), "after 0 actions needs 1 observation, got 2"),
        (("a",), ("b",), (), "after 1 action needs 2 observations, got 1"),
        (("a", "c"), ("b",), ((1,), (2,)), r"action_ids of a request must be empty or .* action \(1\), got 2"),
    ],
)
def test_a_request_whose_texts_do_not_fit_together_is_refused(
    observations: tuple[str, ...], actions: tuple[str, ...], ids: tuple[tuple[int, ...], ...], error: str
) -> None:
    with pytest.raises(UserError, match=error):
        Request(0, 0, observations, actions, ids)


class Remembering(ScriptedOracle):
    """A partner that counts its requests since its last reset, and its resets."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = 5
        self.forgotten = 0

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        self.kept += len(requests)
        return super().reply(requests)

    def reset(self) -> None:
        self.kept = 0
        self.forgotten = self.forgotten + 1


def test_what_a_second_speaker_has_kept_is_forgotten_once_when_a_rollout_begins() -> None:
    partner = Remembering()
    make = partial(lmrl.make, "twenty_questions", partner=partner)
    starts = [Start(seed) for seed in range(3)]
    played = in_order(
        rollout(make_policy("twenty_questions", "random"), make, starts, task="twenty_questions", slots=2)
    )
    assert partner.forgotten == 1
    assert partner.kept == sum(len(episode) for episode in played)


# Records, as they are shown.

LONG = "a long text with\na second line " * 1_000
EPISODE = Episode("maze_fo", (LONG, LONG, LONG), ("x\n", LONG), (-1.0, 0.0), True, False, 7, {"success": True})
RECORDS = {
    "<Episode of maze_fo: 2 turns, return -1, terminated, success, seed 7>": EPISODE,
    "<Request of slot 3, seed 7, turn 1: 'a long text with": Request(3, 7, (LONG, LONG), (LONG,)),
    "<Reply 'a long text with": Reply(LONG, tuple(range(1_000))),
    "<PartnerRequest of guess_object, seed 7, text 1: 'a long text": PartnerRequest("guess_object", {}, (LONG,), (), 7),
    "<Evaluation of me on maze_fo: 90 episodes, seed 0, mean return -1.00>": Evaluation(
        "maze_fo", "me", (EPISODE,) * 90, 0
    ),
}


@pytest.mark.parametrize(("beginning", "record"), RECORDS.items(), ids=[type(one).__name__ for one in RECORDS.values()])
def test_a_record_is_shown_in_one_short_line_and_is_otherwise_as_before(beginning: str, record: object) -> None:
    shown = repr(record)
    assert shown.startswith(beginning) and len(shown) < 160 and "\n" not in shown
    again = pickle.loads(pickle.dumps(record))
    assert again == record == copy.deepcopy(record)
    assert all(getattr(again, field.name) == getattr(record, field.name) for field in fields(record))  # type: ignore[arg-type]
