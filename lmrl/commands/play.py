"""``lmrl play``: a person at the terminal plays one episode, or watches a policy play it."""

from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec, own_tasks_only, task_of
from lmrl.play.terminal import known_actions, play_episode
from lmrl.utils.configuration import env_arguments

__all__ = ["play_command"]


def play_command(
    task: str | None = None,
    *,
    policy: str = "human",
    seed: int = 0,
    advisor: str | None = None,
    env: list[str] | None = None,
    actions: bool = False,
) -> None:
    """Play one episode yourself: read the text, type an action, press enter. Or watch a policy play it.

    Args:
        task: name of the task, e.g. maze_fo, openenv:URL or textarena:NAME (default: that of the policy or the advisor,
            if it is a run).
        policy: who plays, as lmrl evaluate --policy takes it, each move with V if it has values; human is you.
        seed: decides what is random about the episode.
        advisor: a run folder, a checkpoint or another player whose move is shown each turn, and V if it has values.
        env: arguments of the environment, e.g. opponent=random or partner=lm:PATH.
        actions: only print what can be typed as the first move, a line each: all of it, or in dialogues some of it.
    """
    watched = policy != "human"
    if watched and advisor is not None:
        raise UserError(f"an advisor is for a person who plays: leave out --advisor {advisor} or --policy {policy}")
    name = policy if watched else advisor
    spec = None if name is None else PolicySpec.parse(name, task)
    played = task_of([], task) if spec is None else spec.task
    arguments = env_arguments(env)
    if actions:
        print("\n".join(known_actions(played, arguments, seed)))
        return
    with own_tasks_only():
        adviser = None if spec is None or watched else spec.load_advisor(arguments).policy
        player = spec.load(arguments).policy if spec is not None and watched else None
    play_episode(played, arguments, seed, adviser, advisor or "", player)
