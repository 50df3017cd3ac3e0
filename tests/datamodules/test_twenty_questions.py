from pathlib import Path

from lmrl.data import generate
from lmrl.datamodules import TwentyQuestionsDataModule
from lmrl.envs import task
from lmrl.models.tokenizer import load_tokenizer


def test_a_dialogue_is_one_segment_and_questions_fit(tmp_path: Path) -> None:
    path = generate("twenty_questions", 40, 3, tmp_path / "data.parquet", progress=False)
    data = TwentyQuestionsDataModule(path=str(path), batch_size=64)
    data.prepare_data()
    data.setup("fit")
    train, _ = data.split()
    (batch,) = data.train_dataloader()
    assert len(data.train_dataloader().dataset) == len(train) == 38  # type: ignore[arg-type]
    assert float(batch.reward.sum()) == sum(episode.total_reward for episode in train)
    tokenizer, most = load_tokenizer(), task("twenty_questions").max_action_tokens
    assert all(len(tokenizer(action)["input_ids"]) <= most for episode in train for action in episode.actions)
