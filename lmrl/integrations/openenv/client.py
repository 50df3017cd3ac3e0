"""`TaskClient`: a served task for users of the package `openenv`, with types instead of dictionaries."""

from typing import Any

from lmrl.errors import UserError

try:
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient
    from openenv.core.env_server.types import Action, Observation, State
    from pydantic import Field
except ImportError as error:
    raise UserError(f"the client of OpenEnv needs openenv-core ({error}): pip install 'lmrl[openenv]'") from error

__all__ = ["TaskAction", "TaskClient", "TaskObservation", "TaskState"]


class TaskAction(Action):  # type: ignore[misc]
    """The action of the player."""

    text: str


class TaskObservation(Observation):  # type: ignore[misc]
    """The new text of a turn; ``done`` and ``reward`` are those of OpenEnv.

    ``info`` is that of `lmrl.envs.base.TextEnv` and holds what the player must not see: show a model ``text`` alone.
    """

    text: str
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = Field(default_factory=dict)


class TaskState(State):  # type: ignore[misc]
    """The state of a session: OpenEnv's fields, the task, the seed, and the sum of rewards as ``return_so_far``."""

    task: str = ""
    seed: int | None = None
    return_so_far: float = 0.0
    running: bool = False


class TaskClient(EnvClient[TaskAction, TaskObservation, TaskState]):  # type: ignore[misc]
    r"""A session of a task that ``lmrl serve`` hands out.

    Example::

        with TaskClient("http://127.0.0.1:8000").sync() as env:
            result = env.reset(seed=0)
            while not result.done:
                result = env.step(TaskAction(text="move up\n"))

    ``reset`` takes ``seed`` and ``options`` as `lmrl.envs.base.TextEnv.reset` does, and ``episode_id``. What the server
    refuses is raised as OpenEnv does, as a `RuntimeError` with its message and code.
    """

    def _step_payload(self, action: TaskAction) -> dict[str, Any]:
        return {"text": action.text}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[TaskObservation]:
        reward = payload["reward"]
        done = payload["done"]
        seen = TaskObservation(**payload["observation"], reward=reward, done=done)
        return StepResult(observation=seen, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> TaskState:
        return TaskState(return_so_far=payload.pop("return"), **payload)
