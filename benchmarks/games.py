"""Speed of the games, in alphabetical order: steps, moves, answers and episodes per second.

Rates are per second of processor time, which hardly depends on what else the machine does. Only chess is measured in
wall time, because its engine is another process. Two games also report how often their best scripted policy succeeds.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import chess
import numpy as np

import lmrl
from benchmarks.row import Row
from lmrl.data import generate
from lmrl.envs.chess.env import spaced_san
from lmrl.envs.endgames.env import PIECE_SETS, draw_position
from lmrl.envs.endgames.table import best_move, load_table, lone_kings, solve
from lmrl.envs.guess_city.cities import cities, topics
from lmrl.envs.guess_city.oracle import ScriptedResident
from lmrl.envs.maze.layouts import LAYOUTS, MOVES
from lmrl.envs.registry import make_policy, recording
from lmrl.envs.twenty_questions.env import scripted_oracle
from lmrl.envs.twenty_questions.meaning import meaning
from lmrl.envs.twenty_questions.objects import properties, things
from lmrl.envs.wordle.players import WordlePlayer, mixture
from lmrl.errors import UserError
from lmrl.rollout import rollout
from lmrl.types import PartnerRequest, Policy, Request, Start


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    yield from car_dealer()
    yield from chess_moves()
    yield from endgames()
    yield from guess_city()
    yield from maze()
    yield from text_nav()
    yield from twenty_questions()
    yield from wordle()


# What several games share.


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


class Played(NamedTuple):
    """Episodes that a policy played, and the processor time of policy, environments and rollout loop together."""

    episodes: int
    turns: int
    successes: int
    seconds: float


def play(
    policy: Policy,
    task: str,
    starts: Iterable[Start],
    stop: Callable[[Request], bool] | None = None,
    **env_arguments: object,
) -> Played:
    """Play one episode per start."""
    episodes = 0
    turns = 0
    successes = 0
    began = time.process_time()
    for _, episode in rollout(policy, lambda: lmrl.make(task, **env_arguments), starts, task=task, stop=stop):
        episodes += 1
        turns += len(episode)
        successes += episode.success
    return Played(episodes, turns, successes, time.process_time() - began)


# Car Dealer: the scripted seller talks with the scripted buyer.


def car_dealer() -> Iterator[Row]:
    for seller in ("behaviour", "optimal"):
        played = play(make_policy("car_dealer", seller), "car_dealer", map(Start, range(2_000)))
        conversations = played.episodes / played.seconds
        lines = played.turns / played.seconds
        yield Row(f"Car Dealer, {seller}", conversations, "conversations/s", "higher", ">= 300 conversations/s")
        yield Row(f"Car Dealer, {seller}, seller's lines", lines, "lines/s", "higher")


# Chess: White's uniformly random legal moves, each with Black's answer.


def chess_moves_per_second(moves: int, **env_arguments: object) -> float:
    """White's moves per second of wall time in ``reset`` and ``step``. The choice of the moves is not timed."""
    env = lmrl.make("chess", **env_arguments)
    rng = random.Random(0)
    seconds = 0.0
    over = True
    for move in range(moves):
        if over:
            began = time.perf_counter()
            _, info = env.reset(seed=move)
            seconds += time.perf_counter() - began
        board = chess.Board(info["fen"])
        action = spaced_san(board.san(rng.choice(list(board.legal_moves))))
        began = time.perf_counter()
        _, _, terminated, truncated, info = env.step(action)
        seconds += time.perf_counter() - began
        over = terminated or truncated
    return moves / seconds


def chess_moves() -> Iterator[Row]:
    against_random = chess_moves_per_second(5_000, opponent="random")
    yield Row("chess against random", against_random, "moves/s", "higher", ">= 1,500 moves/s")
    yield Row("chess against alphabeta", chess_moves_per_second(1_000), "moves/s", "higher")
    against_stockfish = None
    shown = ""
    try:
        against_stockfish = chess_moves_per_second(600, opponent="stockfish", nodes=1_000)
    except UserError as error:
        shown = f"not measured: {error}"
    asked = ">= 300 moves/s"
    yield Row("chess against Stockfish, 1,000 nodes", against_stockfish, "moves/s", "higher", asked, shown=shown)


# Endgames: solving the tables without the cache, best moves by the tables, and random legal moves.


def best_moves_per_second(moves: int) -> float:
    """Best moves per second over all piece sets. The tables are in memory."""
    rng = np.random.default_rng(0)
    boards = [draw_position(rng, PIECE_SETS[index % len(PIECE_SETS)]) for index in range(moves)]
    for pieces in ("Q", "R", "QR", "RR"):
        load_table(pieces)
    began = time.process_time()
    for board in boards:
        best_move(board)
    return moves / (time.process_time() - began)


def endgame_steps_per_second(steps: int) -> float:
    """Steps per second against the random opponent, resets included. Listing the legal moves is not timed."""
    env = lmrl.make("endgames", opponent="random")
    rng = random.Random(0)
    seconds = 0.0
    env.reset(seed=0)
    for _ in range(steps):
        action = rng.choice(env.legal_actions())
        began = time.process_time()
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
        seconds += time.process_time() - began
    return steps / seconds


def endgames() -> Iterator[Row]:
    began = time.process_time()
    kings = {"": lone_kings()}
    # Captures lead from four pieces to three, so the larger tables need the smaller ones.
    tables = {pieces: solve(pieces, kings)[0] for pieces in ("Q", "R")}
    seconds = time.process_time() - began
    yield Row("endgames, tables of kQK and kRK", seconds, "s", "lower", "<= 10 s", 2)

    began = time.process_time()
    for pieces in ("QR", "RR"):
        solve(pieces, tables)
    seconds = time.process_time() - began
    yield Row("endgames, tables of kQRK and kRRK", seconds, "s", "lower", "<= 60 s", 2)

    yield Row("endgames, best moves by the tables", best_moves_per_second(2_000), "moves/s", "higher")
    steps = endgame_steps_per_second(3_000)
    yield Row("endgames, random moves against random", steps, "steps/s", "higher", ">= 1,500 steps/s")


# Guess My City: recording a dataset, the scripted partner alone, and the best scripted guesser.


def guess_city_dialogues_per_second(dialogues: int) -> float:
    """Dialogues per second recorded as `lmrl data generate` does it, with the file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "games.parquet"
        # A first file loads the tables, which is not timed.
        generate("guess_city", 100, 0, path.with_name("first.parquet"), progress=False)
        seconds = processor_seconds(lambda: generate("guess_city", dialogues, 1, path, progress=False))
    return dialogues / seconds


def guess_city_answers_per_second() -> float:
    """One answer to each question of the table about each city, ten times."""
    resident = ScriptedResident()
    questions = [question for topic in topics() for question in topic.questions] * 10
    requests = []
    for city in cities():
        for seed, question in enumerate(questions):
            requests.append(PartnerRequest("guess_city", {"city": city.name}, (f"{question}\n",), (), seed))
    return len(requests) / processor_seconds(lambda: resident.reply(requests))


def guess_city() -> Iterator[Row]:
    dialogues = guess_city_dialogues_per_second(2_000)
    yield Row("Guess My City, recording", dialogues, "dialogues/s", "higher", ">= 300 dialogues/s")
    yield Row("Guess My City, scripted partner", guess_city_answers_per_second(), "answers/s", "higher")
    starts = [Start(seed, {"city": city.name}) for seed in range(10) for city in cities()]
    informed = play(make_policy("guess_city", "optimal"), "guess_city", starts)
    percent = 100 * informed.successes / informed.episodes
    yield Row("Guess My City, informed guesser, success", percent, "%", "higher", ">= 90 %", 1)


# Maze: lmrl's maze, which looks texts up in tables, beside one that makes each text at each step.


class PlainMaze:
    """A maze without tables, as the published benchmark's environment works.

    At each step it keeps the whole history, checks the number of steps, finds the walls and writes the sentence.
    """

    def __init__(self, max_steps: int = 100, last_texts: int = 1) -> None:
        self.rows = LAYOUTS["double_t_maze"].rows
        self.goal = LAYOUTS["double_t_maze"].goal
        self.max_steps = max_steps
        self.last_texts = last_texts
        self.rng = random.Random(0)

    def reset(self) -> tuple[str, ...]:
        """Begin at a random cell."""
        free = [(r, c) for r, row in enumerate(self.rows) for c, mark in enumerate(row) if mark == " "]
        free.remove(self.goal)
        self.cell = self.rng.choice(free)
        self.steps = 0
        return (self.describe(),)

    def describe(self) -> str:
        """Write the sentence for the present cell."""
        row, column = self.cell
        walls = []
        for name, (down, right) in {"right": (0, 1), "left": (0, -1), "above": (-1, 0), "below": (1, 0)}.items():
            if self.rows[row + down][column + right] == "#":
                walls.append(f"{name} you" if name in ("above", "below") else f"to your {name}")
        if not walls:
            sentence = "There are no walls near you."
        elif len(walls) == 1:
            sentence = f"There is a wall {walls[0]}."
        else:
            sentence = f"There are walls {', '.join(walls)}."
        goal = ", ".join(" ".join(str(number)) for number in self.goal)
        here = ", ".join(" ".join(str(number)) for number in self.cell)
        return f"The goal is at position {goal}. Your current position is at position {here}. {sentence}\n"

    def step(self, history: tuple[str, ...]) -> tuple[tuple[str, ...], float, bool]:
        """Return the new history, the reward and whether the episode is over, for a history that ends in an action."""
        if self.steps >= self.max_steps:
            return ("Failure\n",), -1.0, True
        self.steps += 1
        if history[-1] not in MOVES:
            return (self.describe(),), -4.0, False
        down, right = MOVES[history[-1]]
        moved = (self.cell[0] + down, self.cell[1] + right)
        if self.rows[moved[0]][moved[1]] != "#":
            self.cell = moved
        if self.cell == self.goal:
            return ("Success\n",), 0.0, True
        return (*history, self.describe())[-self.last_texts :], -1.0, False


def play_lmrl_maze(actions: list[str]) -> None:
    env = lmrl.make("maze_fo")
    env.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def play_plain_maze(actions: list[str]) -> None:
    env = PlainMaze()
    history = env.reset()
    for action in actions:
        history, _, done = env.step((*history, action))
        if done:
            history = env.reset()


def maze() -> Iterator[Row]:
    actions = random.Random(0).choices(list(MOVES), k=300_000)
    # The best of three rounds each.
    ours = len(actions) / min(processor_seconds(lambda: play_lmrl_maze(actions)) for _ in range(3))
    plain = len(actions) / min(processor_seconds(lambda: play_plain_maze(actions)) for _ in range(3))
    yield Row("maze, texts worked out at each step", plain, "steps/s", "higher")
    yield Row("maze, lmrl.make", ours, "steps/s", "higher", ">= 250,000 steps/s")
    yield Row("lmrl.make / texts worked out at each step", ours / plain, "x", "higher", digits=1)


# Text-Nav: uniformly random admissible commands. Its tables are empty when the clock starts.


def play_text_nav(steps: int) -> None:
    env = lmrl.make("text_nav_fo")
    rng = random.Random(0)
    env.reset(seed=0)
    over = False
    for step in range(steps):
        if over:
            env.reset(seed=step)
        _, _, terminated, truncated, _ = env.step(rng.choice(env.legal_actions()))
        over = terminated or truncated


def text_nav() -> Iterator[Row]:
    rate = 100_000 / processor_seconds(lambda: play_text_nav(100_000))
    yield Row("Text-Nav, resets included", rate, "steps/s", "higher", ">= 30,000 steps/s")


# Twenty Questions: the scripted oracle alone, recording a dataset without the file, and the best scripted guesser.


def oracle_answers_per_second(rounds: int) -> float:
    """Answers per second to every question of the table, about every tenth object."""
    questions = [text for item in properties() for text in item.phrasings]
    requests = []
    for thing in things()[::10]:
        for question in questions:
            requests.append(PartnerRequest("twenty_questions", {"word": thing.name}, (question,), (), 0))
    meaning("Is it alive?")  # loads the table, which is not timed
    began = time.process_time()
    for _ in range(rounds):
        scripted_oracle().reply(requests)
    return rounds * len(requests) / (time.process_time() - began)


def new_questions_per_second(count: int) -> float:
    """Questions per second that the oracle understands; none is in the table and none comes twice."""
    questions = [f"Would {number} people ever buy it in a big shop?" for number in range(count)]
    began = time.process_time()
    for question in questions:
        meaning(question)
    return count / (time.process_time() - began)


def twenty_questions() -> Iterator[Row]:
    yield Row("20 Questions, oracle", oracle_answers_per_second(5), "answers/s", "higher", ">= 20,000 answers/s")
    yield Row("20 Questions, oracle, never heard", new_questions_per_second(2_000), "answers/s", "higher")

    recipe = recording("twenty_questions")
    recorded_starts = (recipe.start(0, index) for index in range(2_000))
    recorded = play(recipe.policy, "twenty_questions", recorded_starts, recipe.stop)
    dialogues = recorded.episodes / recorded.seconds
    yield Row("20 Questions, recording", dialogues, "dialogues/s", "higher", ">= 300 dialogues/s")

    starts = [Start(0, {"word": thing.name}) for thing in things()]
    optimal = play(make_policy("twenty_questions", "optimal"), "twenty_questions", starts)
    percent = 100 * optimal.successes / optimal.episodes
    yield Row("20 Questions, optimal, objects found", percent, "%", "higher", ">= 95 %", 1)


# Wordle: the mixture policy, with the default list of words and with one as long as the official list.


def wordle_guesses_per_second(games: int, vocab: str | None) -> float:
    policy = WordlePlayer(mixture(0.33), vocab)
    lmrl.make("wordle", vocab=vocab)  # reads the list, which is not timed
    played = play(policy, "wordle", map(Start, range(games)), vocab=vocab)
    return played.turns / played.seconds


def write_long_list(path: Path, size: int) -> None:
    """Write words of random letters, which are as frequent as in English."""
    rng = random.Random(0)
    letters = "eeeeeeaaaaaarrrroooottttiiiinnnnssssllllccuuddppmmhhggbbffyywwkkvxzjq"
    words: set[str] = set()
    while len(words) < size:
        words.add("".join(rng.choices(letters, k=5)))
    path.write_text("\n".join(sorted(words)), encoding="utf-8")


def wordle() -> Iterator[Row]:
    rate = wordle_guesses_per_second(10_000, None)
    yield Row("Wordle, 431 words", rate, "guesses/s", "higher", ">= 20,000 guesses/s")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "words.txt"
        write_long_list(path, 12_972)
        rate = wordle_guesses_per_second(2_000, str(path))
    yield Row("Wordle, 12,972 words", rate, "guesses/s", "higher", ">= 2,000 guesses/s")
