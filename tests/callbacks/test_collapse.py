import pytest

from lmrl.callbacks.rollouts import signs_of_collapse
from lmrl.types import Episode


def said(*actions: str, reward: float = 0.0, logprob: float = -1.0, ids: tuple[int, ...] = (1, 2, 3)) -> Episode:
    turns = len(actions)
    return Episode(
        "toy",
        ("o",) * (turns + 1),
        actions,
        (reward,) * turns,
        True,
        False,
        action_ids=(ids,) * turns,
        action_logprobs=((logprob,) * len(ids),) * turns,
    )


HEALTHY = [said(*f"{number}abcdefgh", reward=number) for number in range(4)]


def test_nothing_is_said_of_a_healthy_round() -> None:
    assert signs_of_collapse(HEALTHY) == []
    assert signs_of_collapse([said("same", "same")]) == []  # too little to tell


SURE = [said(*"abcdefgh", reward=n, logprob=-0.001) for n in range(3)]
EQUAL = [said("a", "b", reward=-2.0)] * 3
SAME = [said(*["go\n"] * 20, "b", reward=n) for n in range(2)]
STUTTER = [said(*"abcd", reward=n, ids=(5, 6) * 9) for n in range(2)]


@pytest.mark.parametrize(
    ("episodes", "sign"),
    [
        (SURE, "entropy is near zero: 0.0010 nats per token"),
        (EQUAL, "returns do not differ: all 3 are -4"),
        (SAME, "40 of 42 actions are 'go\\n'"),
        (STUTTER, "88% of the three-token pieces within actions"),
    ],
)
def test_a_collapse_is_told_in_words(episodes: list[Episode], sign: str) -> None:
    (found,) = signs_of_collapse(episodes)
    assert found.startswith(sign)
