"""The model card contains the facts that it was given, and names the folder's policy correctly."""

import yaml

from lmrl.checkpoints.card import model_card

FACTS = {
    "algorithm": "ilql",
    "task": "maze_fo",
    "data": "maze_fo-n10.parquet",
    "seed": 3,
    "reads_texts": 1,
    "beta": 8.0,
}
SCORES = {
    "task": "maze_fo", "episodes": 200, "seed": 7, "return_mean": -6.84, "return_ci": [-7.29, -6.38],
    "normalized": 100.0, "normalized_ci": [99.7, 100.3], "success_rate": 1.0, "success_ci": [0.98, 1.0],
    "length_mean": 7.84, "illegal_rate": 0.015, "provenance": {"decoding": {"beta": 4}},
}  # fmt: skip


def test_metadata_can_be_read_by_the_hub() -> None:
    _, head, body = model_card(FACTS, None, guided=True).split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["lmrl", "ilql", "maze_fo"],
    }
    assert body.lstrip().startswith("# ilql on maze_fo")


def test_scores_come_with_their_intervals_and_origin() -> None:
    card = model_card(FACTS, SCORES, guided=True)
    assert "| return | -6.84 | -7.29 to -6.38 |" in card
    assert "| success rate | 1 | 0.98 to 1 |" in card
    assert "200 episodes of `maze_fo`, seed 7" in card
    assert "1.5% of them illegal" in card
    assert '{"decoding": {"beta": 4}}' in card
    assert '| data | `"maze_fo-n10.parquet"` |' in card
    assert "Not evaluated yet." in model_card(FACTS, None, guided=True)


def test_a_pipe_does_not_end_a_cell_of_the_table() -> None:
    card = model_card({**FACTS, "system": "yes|no", "header": "<|assistant|>"}, None, guided=True)
    assert r'| system | `"yes\|no"` |' in card and r'| header | `"<\|assistant\|>"` |' in card


def test_only_learned_values_need_the_processor() -> None:
    guided = model_card(FACTS, None, guided=True)
    plain = model_card(FACTS, None, guided=False)
    assert "ValueGuidedLogitsProcessor.from_pretrained(folder)" in guided
    assert "**not** the one that was trained" in guided
    assert "ValueGuided" not in plain
    assert "the last 1 texts" in plain


def test_the_prompt_is_the_one_that_was_trained_on() -> None:
    chat = model_card({**FACTS, "reads_texts": None, "rendering": "chat"}, None, guided=True)
    assert "`text` holds all texts so far as `apply_chat_template` renders them, with a generation prompt." in chat
    assert "apply_chat_template" not in model_card({**FACTS, "rendering": "text"}, None, guided=True)
    assert "In front of every action" not in chat
    headed = model_card({**FACTS, "rendering": "chat", "header": "\n<think></think>"}, None, guided=True)
    assert r'In front of every action, earlier ones included, stands `"\n<think></think>"`' in headed


def test_a_chat_adapter_names_its_library_and_its_base() -> None:
    card = model_card({**FACTS, "rendering": "chat"}, None, guided=False, base="someone/model")
    _, head, body = card.split("---\n", 2)
    found = yaml.safe_load(head)
    assert (found["library_name"], found["base_model"]) == ("peft", "someone/model")
    assert "ends with the end of its turn" in body and "line break" not in body
    assert "ends in a line break" in model_card(FACTS, None, guided=False)


def test_other_environment_settings_have_no_normalised_score() -> None:
    other = {**SCORES, "provenance": {"env": {"max_steps": 8}}}
    assert "normalised return" in model_card(FACTS, SCORES, guided=False)
    assert "normalised return" not in model_card(FACTS, other, guided=False)
