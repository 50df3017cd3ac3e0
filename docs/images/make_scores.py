"""Draw ``all_scores.png``, the scores of all tasks, from the records: ``python docs/images/make_scores.py``."""

from pathlib import Path

from PIL import Image

from lmrl.envs import registry
from lmrl.evaluation.records import DATA, read_records
from lmrl.evaluation.scores import data_score, score
from lmrl.report.pictures import draw_scores

HERE = Path(__file__).parent
RECORDS = HERE.parents[1] / "results" / "cpu"
PICTURE = HERE / "all_scores.png"
WIDTH = 1600  # pixels, twice what a page shows
COLOURS = 64


def main() -> None:
    """Draw the chart of the report, then store it with few colours, so that the file is small."""
    scores = {}
    for task in registry.tasks():
        players = {name: score(task, name, records) for name, records in read_records(RECORDS, task).items()}
        data = data_score(RECORDS, task)
        if data is not None:
            players[DATA] = data
        if players:
            scores[task] = players
    draw_scores(scores, PICTURE)
    picture = Image.open(PICTURE).convert("RGB")
    height = round(picture.height * WIDTH / picture.width)
    small = picture.resize((WIDTH, height), Image.Resampling.LANCZOS)
    small.quantize(COLOURS).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
