"""How a run was made and what it looked like: commands, and one episode as a dialogue."""

from typing import Any

from lmrl.episode import Episode
from lmrl.evaluation.naming import label
from lmrl.evaluation.results import Result
from lmrl.evaluation.wording import duration, number

__all__ = ["commands", "transcript"]


def commands(result: Result) -> str:
    """The commands that make this result again, with seed and wall time of each."""
    scores, lines = result.scores, [label(result.name)]
    steps: dict[str, Any] = {name: step for name, step in result.timing.items() if isinstance(step, dict)}
    for name, step in steps.items():
        note = f", {step['note']}" if step.get("note") else ""
        lines.append(f"  {step.get('command', name)}    # {duration(step.get('seconds'))}{note}")
    if "evaluate" not in steps:
        made = f"lmrl evaluate {scores['task']} --policy {scores['policy']} --episodes {scores['episodes']}"
        lines.append(f"  {made} --seed {scores['seed']} --out {result.folder.as_posix()}/evaluation")
    lines.append(f"  seed {scores['seed']}, {scores['episodes']} episodes")
    made_with = scores.get("provenance", {})
    lines += [f"  {name}: {_flat(value)}" for name, value in made_with.items() if value]
    return "\n".join(lines)


def transcript(episode: Episode, turns: int = 12) -> str:
    """An episode as a dialogue: ``>`` before what the player said, the reward in brackets; long ones are cut."""
    lines = _said("", episode.observations[0])
    for turn in range(min(turns, len(episode))):
        lines += _said("> ", episode.actions[turn], f"   [{number(episode.rewards[turn], 2)}]")
        lines += _said("", episode.observations[turn + 1])
    if len(episode) > turns:
        lines.append(f"... and {len(episode) - turns} more turns")
    how = "solved" if episode.success else "ended by the rules" if episode.terminated else "cut short"
    lines.append(f"({how}; return {number(episode.total_reward, 2)}, {len(episode)} turns, {episode.illegal} illegal)")
    return "\n".join(lines)


def _flat(value: Any) -> str:
    return ", ".join(f"{name} {item}" for name, item in value.items()) if isinstance(value, dict) else str(value)


def _said(mark: str, text: str, after: str = "") -> list[str]:
    """The lines of a text, marked, none longer than a screen is wide."""
    shown = text if len(text) <= 600 else f"{text[:600]} ... ({len(text)} characters)"
    lines = [f"{mark}{line}" for line in shown.splitlines() or [""]]
    return [*lines[:-1], lines[-1] + after]
