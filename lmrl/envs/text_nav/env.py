"""Text-Nav: carry the stale food from the living room into the fridge, by commands in words."""

from collections.abc import Mapping
from typing import Any, ClassVar

from lmrl.envs.base import Opening, TextEnv, Turn
from lmrl.envs.task import ChatPrompt, Guide
from lmrl.envs.text_nav.house import OBJECTIVE, ROOMS, State, begin, carried, commands, described, obey, refusal, told
from lmrl.errors import check_range, unknown

__all__ = ["CHAT", "GUIDE", "TextNav"]

_CACHE = 1 << 15  # answers that are kept per environment


class TextNav(TextEnv):
    r"""A text adventure of eight rooms, reimplemented as a small state machine without the game engine.

    The first text states the objective and describes the room; each later one answers the command. All end with a
    line ``Admissible commands: go east, go south, ...`` and, fully observed, a line with the inventory (after the
    first command, as published). An action is one of those commands; spaces around it do not matter. Anything else is
    illegal: it is answered as the engine's parser would, and costs a turn.

    Won (reward 1, terminated): the stale food is in the closed fridge. Lost (terminated): it is eaten. Otherwise the
    reward is 0, and the clock truncates after ``max_steps`` commands. Source: LMRL-Gym, section 4 and appendix C.2.

    ``info`` also has ``room`` and ``world`` (a `lmrl.envs.text_nav.house.State`).

    Args:
        observe: ``full`` names the room and appends the inventory, ``partial`` leaves both out.
        show_commands: False leaves out the admissible commands. They reveal room and inventory even where these are not
            named.
        prose_seed: chooses the sentences that describe rooms and furniture, the same in every episode.
        max_steps: commands until the clock truncates.
        render_mode: see `TextEnv`.

    Raises:
        UserError: for an unknown ``observe`` or ``max_steps`` below 1.
    """

    reset_options: ClassVar[tuple[str, ...]] = ("room",)
    return_range = (0.0, 1.0)

    def __init__(
        self,
        observe: str = "full",
        show_commands: bool = True,
        prose_seed: int = 0,
        max_steps: int = 15,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(render_mode)
        if observe not in ("full", "partial"):
            raise unknown("observe", observe, ("full", "partial"))
        check_range("[1, inf)", max_steps=max_steps)
        self.observe = observe
        self.show_commands = show_commands
        self.prose_seed = prose_seed
        self.max_steps = max_steps
        self._named = observe == "full"
        self._state = begin(ROOMS[0])
        self._steps = 0
        # From state and command to the next state and the text of the answer.
        self._answers: dict[tuple[State, str], tuple[State, str]] = {}

    def legal_actions(self) -> list[str]:
        """Return the admissible commands."""
        return [f"{command}\n" for command in commands(self._state)]

    def begin(self, options: dict[str, Any]) -> Opening:
        room = options["room"] if "room" in options else ROOMS[int(self.np_random.integers(len(ROOMS)))]
        if room not in ROOMS:
            raise unknown("room", str(room), ROOMS)
        self._state = begin(room)
        self._steps = 0
        text = f"{OBJECTIVE}\n\n{described(self._state, self.prose_seed, self._named)}\n{self._commands(self._state)}"
        return Opening(text, task_id=room, start={"room": room}, info=self._where())

    def turn(self, action: str) -> Turn:
        self._steps += 1
        command = action.strip()
        key = (self._state, command)
        illegal = False
        if key in self._answers:
            state, text = self._answers[key]
        else:
            change = obey(self._state, command)
            illegal = change is None
            state = self._state if change is None else change.state
            if change is None:
                text = refusal(state, command)
            else:
                text = told(change, self.prose_seed, self._named)
            if not (state.won() or state.lost()):
                text += f"\n{self._commands(state)}"
                if self._named:
                    text += f"{carried(state)}\n"
            # There is no end of illegal texts, so they are not kept.
            if not illegal and len(self._answers) <= _CACHE:
                self._answers[key] = (state, text)
        self._state = state
        won = state.won()
        over = won or state.lost()
        if over:
            text += _ending(won, self._steps)
        info = {"illegal": illegal, "success": won, **self._where()}
        out_of_time = not over and self._steps >= self.max_steps
        return Turn(text, float(won), terminated=over, truncated=out_of_time, info=info)

    def _commands(self, state: State) -> str:
        return f"\nAdmissible commands: {', '.join(commands(state))}\n" if self.show_commands else ""

    def _where(self) -> dict[str, Any]:
        return {"room": self._state.room, "world": self._state}


def _ending(won: bool, turns: int) -> str:
    score = "\n\n\nYour score has just gone up by one point." if won else ""
    banner = "*** The End ***" if won else "*** You lost! ***"
    return f"{score}\n\n\n{banner}\n\nYou scored {int(won)} out of a possible 1, in {turns} turn{'s' * (turns > 1)}.\n"


def _changed_rules(env: Mapping[str, Any]) -> str:
    changed = []
    if "max_steps" in env:
        changed.append(f"You have {env['max_steps']} commands instead of fifteen.")
    if not env.get("show_commands", True):
        changed.append("The game does not list the commands.")
    return " ".join(changed)


CHAT = ChatPrompt(
    "an expert player of text adventures",
    """\
You play a text adventure in a house. Objective: take the stale food from the table in the living room, put it into the
fridge in the kitchen, and close the fridge, within fifteen commands. Do not eat it.

Your action is one of the admissible commands that the game lists, in the same words. Any other text costs a turn.""",
    appendix=_changed_rules,
)


GUIDE = Guide(
    "Take the stale food from the table in the living room, put it into the fridge in the kitchen, and close the "
    "fridge, before the time is up (fifteen commands, unless that was changed). That earns 1, all else nothing. Do "
    "not eat it.",
    "One of the admissible commands, in the same words. Any other text costs a turn.",
    ("open fridge", "You open the fridge, revealing a fruit."),
)
