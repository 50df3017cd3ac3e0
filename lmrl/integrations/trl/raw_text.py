"""Raw-text actions in TRL's `GRPOTrainer`: what the model says until its turn ends is the move, without a tool.

TRL trains on one sequence per episode, and it is the one that `lmrl.tokens.segments` makes of it where a window holds
the whole episode::

    prompt_ids       the first observation
    completion_ids   action 1, observation 2, action 2, ..., the last action
    env_mask         1 ......  0 ...........  1 ......       1 .............
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from lmrl import partners
from lmrl.envs.outside import named_task
from lmrl.envs.registry import chat_prompt
from lmrl.errors import UserError, check_range, unknown
from lmrl.integrations.trl.tools import TaskEnvironment, take_turns
from lmrl.models.lm import positions_of
from lmrl.policies.chat.policy import system_prompt
from lmrl.policies.lm import LMPolicy
from lmrl.rollout import episode_seed
from lmrl.tokens.encoding import RENDERINGS, Encoder, Window, adds_bos, encoder_for
from lmrl.types import Episode, Request

__all__ = ["TextRollout"]

_SEED = re.compile(r"[0-9]{1,18}")

_UNFIT = {
    "use_vllm": "episodes are sampled with the trainer's own model",
    "use_transformers_continuous_batching": "episodes are sampled by lmrl",
    "mask_truncated_completions": "it asks whether the last token ends the text, and here that is the end of a turn",
    "min_p": "only temperature, top_k and top_p are followed",
    "generation_kwargs": "only temperature, top_k and top_p are followed",
}
"""Arguments of `GRPOConfig` that would change nothing, or the wrong thing."""


class TextRollout:
    """A function for ``GRPOTrainer(rollout_func=...)``: the model plays by writing its moves, as a `LMPolicy` does.

    The prompt of a row is the seed of its episode (`lmrl.integrations.hf_datasets.seeds_dataset`), since TRL tells a
    rollout function nothing else; so all generations of a prompt begin alike. The reward function is `episode_return`.

    The model reads the whole episode. Its next turn is begun if an action of ``max_new_tokens`` still fits, into
    ``max_completion_length`` of `GRPOConfig` (all turns together, the observations included) and into the model: no
    action is cut. An episode without room for another turn resumes with empty lines (`episode_return`).

    Args:
        name: name of a task, of the benchmark or registered, ``openenv:URL`` or ``textarena:NAME``.
        rendering: ``text``: one text after the other as they are; ``chat``: as the tokenizer's chat template has it.
        max_new_tokens: longest action; None: that of the task.
        system: with ``chat``: the system message; None: the rules of the task, as `OfflineDataModule` has them.
        env: arguments of the environment that replace those of the task.

    Raises:
        UserError: for an unknown task or rendering, or a length below 1.
    """

    def __init__(
        self,
        name: str,
        rendering: str = "text",
        max_new_tokens: int | None = None,
        system: str | None = None,
        **env: Any,
    ) -> None:
        task = named_task(name)
        self.max_new_tokens = task.max_action_tokens if max_new_tokens is None else max_new_tokens
        check_range("[1, inf)", max_new_tokens=self.max_new_tokens)
        if rendering not in RENDERINGS:
            raise unknown("rendering", rendering, RENDERINGS)
        self._name = name
        if system is None:
            system = system_prompt(chat_prompt(name), env) if rendering == "chat" and task.chat else ""
        self._rendering = rendering
        self._system = system
        self._make_env = partners.environment(name, env)
        self._environments: list[TaskEnvironment] = []
        self._trainer: Any = None
        self._calls = 0

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play one episode per prompt.

        Args:
            prompts: seeds of episodes, as texts; generations of one prompt are repetitions of it.
            trainer: a `trl.GRPOTrainer`.

        Returns:
            ``prompt_ids``, ``completion_ids``, ``logprobs`` (0 for observations), ``env_mask`` (1 for tokens of the
            model) and ``environments``, which TRL hands on to reward functions: one entry per prompt.

        Raises:
            UserError: a prompt is no seed; the trainer has settings that cannot be followed; a first observation and
                an action do not fit into the model.
        """
        seeds = []
        for prompt in prompts:
            if not (isinstance(prompt, str) and _SEED.fullmatch(prompt)):
                raise UserError(
                    f"a prompt must be the seed of an episode as text (seeds_dataset makes them), got {prompt!r:.80}"
                )
            seeds.append(int(prompt))
        if self._trainer is not trainer:
            self._player = _player(trainer, self._rendering, self._system, self.max_new_tokens, len(seeds))
            self._trainer = trainer
        while len(self._environments) < len(seeds):
            self._environments.append(TaskEnvironment(self._name, self._make_env))
        playing = self._environments[: len(seeds)]
        for environment, seed in zip(playing, seeds, strict=True):
            environment.reset(seed=seed)
        # All generations of a prompt have the same seed of the game, but not the same samples.
        key = (trainer.args.seed, trainer.state.global_step, trainer.accelerator.process_index, self._calls)
        self._calls += 1
        _play(playing, self._player, [episode_seed(*key, slot) for slot in range(len(seeds))])
        return _columns(playing, self._player.encoder)


@dataclass(frozen=True, slots=True)
class _Player:
    policy: LMPolicy
    encoder: Encoder
    positions: int
    """Most tokens of an episode, by the position embeddings of the model."""
    max_completion: int
    """Most tokens after the first observation, by the settings of the trainer."""
    max_action: int

    def can_act(self, episode: Episode) -> bool:
        """Whether there is room for another action."""
        first, *later = _pieces(self.encoder, episode)
        completion = sum(map(len, later)) + self.max_action
        return completion <= self.max_completion and len(first) + completion <= self.positions


def _player(trainer: Any, rendering: str, system: str, action: int, slots: int) -> _Player:
    """The trainer's model as a player."""
    args = trainer.args
    for name, why in _UNFIT.items():
        if getattr(args, name, None):
            raise UserError(f"raw-text episodes need {name} to be left out: {why}")
    if args.repetition_penalty != 1.0:
        raise UserError(f"raw-text episodes need repetition_penalty 1, got {args.repetition_penalty}")
    if action > args.max_completion_length:
        raise UserError(
            f"max_completion_length ({args.max_completion_length}) must have room for an action "
            f"({action} tokens, max_new_tokens of TextRollout)"
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise UserError("raw-text episodes need all weights in each process, without DeepSpeed and FSDP")
    model = trainer.accelerator.unwrap_model(trainer.model)
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # LoRA layers stay in their places
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"raw-text episodes need a model of transformers, got {type(model).__name__}")
    positions = positions_of(model.config)
    bos = rendering == "text" and adds_bos(trainer.processing_class)
    window = Window(None, positions - action, rendering, system, bos)
    policy = LMPolicy(
        model,
        trainer.processing_class,
        window,
        temperature=args.temperature,
        top_k=args.top_k or 0,
        top_p=args.top_p,
        max_new_tokens=action,
        slots=slots,
    )
    encoder = encoder_for(trainer.processing_class, window)
    return _Player(policy, encoder, positions, args.max_completion_length, action)


def _play(environments: Sequence[TaskEnvironment], player: _Player, seeds: Sequence[int]) -> None:
    """Play until all are over or have no room left; seeds are those of what is sampled."""
    for environment in environments:
        episode = environment.episode
        if not player.can_act(episode):
            raise UserError(
                f"the first observation of the episode with seed {episode.seed} and an action of {player.max_action} "
                f"tokens do not fit into the model's {player.positions} positions"
            )
    player.policy.reset()
    # Slots of the episodes that are not over. All of them act in one batch.
    slots = list(range(len(environments)))
    while slots:
        playing = []
        requests = []
        for slot in slots:
            episode = environments[slot].episode
            # Episodes without a sampled action have no ids at all.
            ids = episode.action_ids or ((),) * len(episode)
            playing.append(environments[slot])
            requests.append(Request(slot, seeds[slot], episode.observations, episode.actions, ids))
        take_turns(playing, player.policy.act(requests))
        slots = [slot for slot in slots if not environments[slot].done and player.can_act(environments[slot].episode)]


def _pieces(encoder: Encoder, episode: Episode) -> list[Sequence[int]]:
    """The ids of each text as the model reads them from the beginning: observations and actions in turn."""
    first, *later = encoder.pieces(episode.observations, episode.actions, episode.action_ids)
    opening = encoder.opening(episode.observations[0])
    return [first if opening is None else opening, *later]


def _columns(environments: Sequence[TaskEnvironment], encoder: Encoder) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = defaultdict(list)
    for environment in environments:
        episode = environment.episode
        # Nobody answers the observation after the last action, so it is left out.
        first, *later, _ = _pieces(encoder, episode)
        tokens: list[int] = []
        logprobs: list[float] = []
        mask: list[int] = []  # 1 for tokens that the model sampled
        for index, ids in enumerate(later):
            turn, is_observation = divmod(index, 2)
            tokens += ids
            logprobs += [0.0] * len(ids) if is_observation else episode.action_logprobs[turn]
            mask += [1 - is_observation] * len(ids)
        columns["prompt_ids"].append([*first])
        columns["completion_ids"].append(tokens)
        columns["logprobs"].append(logprobs)
        columns["env_mask"].append(mask)
        columns["environments"].append(environment)
    return dict(columns)
