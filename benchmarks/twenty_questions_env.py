"""Twenty Questions: answers per second of the scripted oracle, dialogues per second, and the share that is solved."""

import time
from collections.abc import Iterator

import lmrl
from benchmarks.row import Row
from lmrl.envs.registry import make_policy, recording
from lmrl.envs.twenty_questions.env import scripted_oracle
from lmrl.envs.twenty_questions.meaning import meaning
from lmrl.envs.twenty_questions.objects import properties, things
from lmrl.rollout import rollout
from lmrl.types import PartnerRequest, Start

TASK = "twenty_questions"


def answers_per_second(rounds: int) -> float:
    """Every question of the table about every so many objects, through the oracle; processor time."""
    asked = [text for item in properties() for text in item.phrasings]
    facts = [{"word": thing.name} for thing in things()[::10]]
    requests = [PartnerRequest(TASK, fact, (text,), (), 0) for fact in facts for text in asked]
    meaning("Is it alive?")  # reading the table is not what is measured
    began = time.process_time()
    for _ in range(rounds):
        scripted_oracle().reply(requests)
    return rounds * len(requests) / (time.process_time() - began)


def new_questions_per_second(count: int) -> float:
    """Questions that were never asked before, none in the table: nothing is remembered."""
    asked = [f"Would {number} people ever buy it in a big shop?" for number in range(count)]
    began = time.process_time()
    for question in asked:
        meaning(question)
    return count / (time.process_time() - began)


def dialogues_per_second(count: int) -> float:
    """The dataset's player, oracle, environment and the loop that joins them; processor time."""
    recipe = recording(TASK)
    starts = (recipe.start(0, index) for index in range(count))
    began = time.process_time()
    for _ in rollout(recipe.policy, lambda: lmrl.make(TASK), starts, task=TASK, stop=recipe.stop):
        pass
    return count / (time.process_time() - began)


def solved() -> float:
    """Share of all objects that the most telling questions find."""
    starts = [Start(0, {"word": thing.name}) for thing in things()]
    played = rollout(make_policy(TASK, "optimal"), lambda: lmrl.make(TASK), starts, task=TASK)
    return sum(episode.success for _, episode in played) / len(starts)


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    yield Row("20 Questions, oracle", answers_per_second(5), "answers/s", "higher", ">= 20,000 answers/s")
    yield Row("20 Questions, oracle, never heard", new_questions_per_second(2_000), "answers/s", "higher")
    yield Row("20 Questions, recording", dialogues_per_second(2_000), "dialogues/s", "higher", ">= 300 dialogues/s")
    yield Row("20 Questions, optimal, objects found", 100 * solved(), "%", "higher", ">= 95 %", 1)
