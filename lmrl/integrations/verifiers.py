"""The tasks for `verifiers` 0.4: a taskset, the environment in which an agent plays it, and a harness for chat.

``vf-eval lmrl-verifiers`` finds them through the module ``lmrl_verifiers``. The model reads the rules and the first
text, says one action per turn, and is answered with the new text; the reward is the undiscounted return.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from lmrl.envs.base import TextEnv
from lmrl.envs.outside import named_task
from lmrl.envs.registry import chat_prompt
from lmrl.envs.task import ChatPrompt
from lmrl.errors import UserError, check_range
from lmrl.integrations.trl.tools import TaskEnvironment, finish
from lmrl.partners import environment
from lmrl.policies.chat.policy import action_of, conversation, introduction
from lmrl.rollout import episode_seed
from lmrl.types import Request

try:
    import httpx
    import verifiers.v1 as vf
    from pydantic import Field
    from verifiers.v1.dialects.chat import message_to_wire
except ImportError as error:
    raise UserError(
        f"tasks for verifiers need verifiers 0.4 ({error}): pip install 'lmrl[verifiers]', in an environment of its own"
    ) from error

__all__ = ["ChatHarness", "ChatHarnessConfig", "GameConfig", "GameEnv", "GameEnvConfig", "GameTask", "GameTaskset"]

T = TypeVar("T")

_OF_VERIFIERS = 3  # keeps these episodes apart from those of evaluations, rounds and TRL with the same seed


class GameConfig(vf.TasksetConfig):  # type: ignore[misc]
    """The choice of episodes, ``--env.taskset.*``."""

    game: str = ""
    """Name of a task of `lmrl.tasks`, ``openenv:URL`` or ``textarena:NAME``; it has to be given."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its environment."""
    episodes: int = 64
    seed: int = 0
    """Other seeds are other episodes."""


class GameData(vf.TaskData):  # type: ignore[misc]
    """One episode; ``prompt`` holds the rules and the first text."""

    game: str
    arguments: dict[str, Any]
    seed: int


class _Games(NamedTuple):
    """The games with the same arguments, which share their partner."""

    make: Callable[[], TextEnv]
    turn: AbstractContextManager[Any]
    """Held while a game is played: a partner answers one at a time."""


@lru_cache
def _games(name: str, arguments: str) -> _Games:
    given = json.loads(arguments)
    return _Games(environment(name, given), Lock() if "partner" in given else nullcontext())


def _game(name: str, arguments: Mapping[str, Any]) -> tuple[TaskEnvironment, AbstractContextManager[Any]]:
    """Return a new game, and what its turns have to hold."""
    games = _games(name, json.dumps(arguments, sort_keys=True))
    return TaskEnvironment(name, games.make), games.turn


async def _in_thread(turn: AbstractContextManager[Any], call: Callable[..., T], *arguments: Any) -> T:
    def held() -> T:
        with turn:
            return call(*arguments)

    return await asyncio.to_thread(held)


class GameTask(vf.Task[GameData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """An episode of a game."""


class GameTaskset(vf.Taskset[GameTask, GameConfig]):  # type: ignore[misc]
    """A number of episodes of a game, each with a seed of its own.

    Raises:
        UserError: for an unknown task or argument of its environment, when it is read.
    """

    def load(self) -> Iterator[GameTask]:
        """Yield the episodes in order."""
        config = self.config
        check_range("[1, inf)", episodes=config.episodes)
        if not config.game:
            raise UserError("name a task: --env.taskset.game NAME")
        game, _ = _game(named_task(config.game).name, config.arguments)
        for index in range(config.episodes):
            seed = episode_seed(config.seed, index, _OF_VERIFIERS)
            game.reset(seed=seed)
            system, user = _messages(config.game, config.arguments, game.episode.observations[0])
            data = GameData(
                name=f"{config.game}#{index}",
                system_prompt=system["content"],
                prompt=user["content"],
                game=config.game,
                arguments=config.arguments,
                seed=seed,
            )
            yield GameTask(data, config.task)


class GameEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """One role: the player, ``--env.player.*``, on this machine unless its runtime is set."""

    player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class GameEnv(vf.Env[GameEnvConfig]):  # type: ignore[misc]
    """Plays an episode: each reply of the agent is a move, and the new text is its next message.

    A reply without an action is an empty line. Where the agent stops before the end, empty lines are played
    until the game is over: in most tasks each turn costs something, and not to play would be best.
    """

    async def run(self, task: GameTask, agents: Any) -> None:
        """Play, and record the return as reward and ``success``, ``turns``, ``illegal``, ``unfinished`` as metrics."""
        data = task.data
        key = _prompt(data.game).key
        # Games may wait for an engine or a partner, so they run in threads.
        game, turn = await asyncio.to_thread(_game, data.game, data.arguments)
        await _in_thread(turn, game.reset, data.seed)
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()  # the first text is in the prompt
            while not segment.terminated:
                action = action_of(segment.last_reply, "plain", key) or ""
                text = await _in_thread(turn, game.act, action)
                if game.done:
                    break
                segment = await interaction.turn(text or "(nothing)")
        unfinished = not game.done  # the agent stopped before the end
        await _in_thread(turn, finish, game)
        played = game.episode
        facts = {"success": played.success, "illegal": played.info["illegal"]}
        interaction.trace.record_reward("episode_return", played.total_reward)
        interaction.trace.record_metrics({**facts, "turns": len(played), "unfinished": unfinished})


class ChatHarnessConfig(vf.HarnessConfig):  # type: ignore[misc]
    """Nothing to set."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):  # type: ignore[misc]
    """Asks the model for its next message, in the process of the evaluation: games need neither tools nor sandboxes."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: Any,
    ) -> Any:
        """One request; an error of the endpoint is the harness's."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += map(message_to_wire, prompt)
        async with httpx.AsyncClient(timeout=None) as http:  # verifiers has its own limit of time
            answer = await http.post(
                f"{endpoint.rstrip('/')}/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"Authorization": f"Bearer {secret}"},
            )
        failed = answer.status_code >= 400
        return vf.ProgramResult(int(failed), "", answer.text[:500] if failed else "")


def _prompt(game: str) -> ChatPrompt:
    """Return the prompt of a game; tasks of users without prompts get a plain one."""
    return chat_prompt(game) if named_task(game).chat else ChatPrompt(role="a player", rules="")


def _messages(game: str, arguments: Mapping[str, Any], text: str) -> list[dict[str, str]]:
    """Return the messages that a model reads before its first action."""
    prompt = _prompt(game)
    first = Request(slot=0, seed=0, observations=[text], actions=[], action_ids=[], info={})
    return conversation(prompt, introduction(prompt, prompt.appendix(arguments), (), "plain"), first, "plain")
