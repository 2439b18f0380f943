"""`plans/order` and `plans/timed`: requests in words that a plan must satisfy, one tool call a turn (PDoctor)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.plans.plan_oracle import PlanError, PlanLog, find_error, satisfied_share
from turnwise.envs.plans.plan_solvers import LARGEST, BuiltInSolver, earliest_start
from turnwise.envs.plans.plan_task import PlanTask, draw_task
from turnwise.envs.plans.plan_tools import (
    DONE,
    PROTOCOLS,
    START,
    START_OVER,
    describe_tools,
    mock_tools,
    read_time,
    read_turn,
    tool_name,
    tool_schemas,
    write_turn,
)
from turnwise.envs.plans.sentence_words import SYNONYMS
from turnwise.envs.plans.sentences import TimeOfDay
from turnwise.envs.plans.synthesis import CLOSES, GRAMMARS, OPENS
from turnwise.envs.tasks.answers import split_of
from turnwise.tools.formats import CallError, ToolCall
from turnwise.tools.tool import ToolResult, neutralise

_RULES = (
    "Carry out all tasks of {whose} with your tools: each task once, one call a turn, in an order that satisfies "
    "the request."
)
_TIMES = (
    f"Tasks do not overlap, and calls follow the clock, from {TimeOfDay(minute=OPENS)} to {TimeOfDay(minute=CLOSES)}. "
    "Every call says when its task starts; the answer says how long it took. If the rest of the request has become "
    f"impossible, call {START_OVER} and plan again with what you know."
)
_CHOICES = {
    "protocol": (*PROTOCOLS,),
    "prompt": ("full", "terse"),
    "grammar": (*GRAMMARS,),
    "reward": ("success", "share"),
}
_SATISFIED = "The request is satisfied."


class Planning(Env):
    """Executes the actions of a request in an order that satisfies it: `make("plans/order", sizes=[3, 4, 5])`.

    Terse, with letters as names, an episode of three turns:

        a c e : before a , e happens . c follows a .  →  e
        e done : a c                                  →  a
        a done : c                                    →  c

    `sizes` are the numbers of actions that are drawn, `sentences` the most sentences (one less than actions), and
    `synonyms` the ways to say each phrase (7); `grammar="simple"` has only sentences such as `a precedes b`. An
    episode ends when every action was executed, when the agent says that it is done, and after `max_turns`; with
    `spare`, after so many more turns than actions. The reward is 1 if the request is satisfied, or with
    `reward="share"` the share of its demands that hold. `info["error"]` names what went wrong, and the scores say how
    often, by size.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"solver"})

    def __init__(
        self,
        *,
        sizes: Sequence[int] = (3, 4, 5),
        timed: bool = False,
        protocol: Literal["react", "calls", "api", "plain"] = "react",
        prompt: Literal["full", "terse"] = "full",
        grammar: Literal["full", "simple"] = "full",
        sentences: int | None = None,
        synonyms: int = SYNONYMS,
        reward: Literal["success", "share"] = "success",
        max_turns: int = 50,
        spare: int | None = None,
        split: str = "train",
    ) -> None:
        super().__init__(split=split)
        if not sizes or not all(2 <= size <= LARGEST for size in sizes):
            raise ValueError(f"sizes is {list(sizes)}; name one or more numbers of actions from 2 to {LARGEST}")
        _require_known(protocol=protocol, prompt=prompt, grammar=grammar, reward=reward)
        if not 1 <= synonyms <= SYNONYMS or min(max_turns, sentences or 1, (spare or 0) + 1) < 1:
            raise ValueError(f"synonyms is from 1 to {SYNONYMS}, max_turns and sentences at least 1, spare at least 0")
        self.sizes, self.timed, self.protocol, self.prompt = tuple(sizes), timed, protocol, prompt
        self.grammar = grammar
        self.sentences, self.synonyms, self.reward = sentences, synonyms, reward
        self.max_turns, self.spare = max_turns, spare
        self.solver = BuiltInSolver()
        self.task: PlanTask | None = None

    def reset(self, seed: int | None = None, task: Mapping[str, Any] | None = None) -> Reset:
        """Draw a request of this split, or take the given one (a dict as in `info["task"]`)."""
        super().reset(seed=seed)
        self.task = self._draw() if task is None else PlanTask.from_dict(task)
        self.tools = mock_tools(self.task)
        self.places = {tool_name(action): place for place, action in enumerate(self.task.actions)}
        self.log, self.turn = PlanLog(), 0
        info = {**self._info(self.task), "task": self.task.as_dict()}
        return self._ask(self.task), {**info, "tools": tool_schemas(self.tools)} if self.protocol == "api" else info

    def step(self, action: str) -> Step:
        """Run the call of a turn."""
        task = self._running()
        self.turn += 1
        call = read_turn(self.protocol, action, self.tools)
        result = ToolResult(text=DONE) if call is None else self._run(task, call)
        self.log.wrong_calls += not result.ok
        if call is None or len(self.log.starts) == len(task.actions):
            return self._end(task, result)
        if self.turn == self._limit(task):
            return self._end(task, result, timed_out=True)
        info = {**self._info(task), "valid": result.ok, "parsed_action": _shown(call)}
        return self._show(task, result), 0.0, False, False, info

    def sample_random_action(self) -> str:
        """An action that was not executed yet, as soon as it may start: a random permutation in the end."""
        task = self._running()
        return self._write(task, self.rng.choice(self._left(task)))

    def oracle(self) -> str:
        """The next action of a plan for what is left; where there is none any more, begin again."""
        task = self._running()
        left = task.constraints.without(self.log.starts)
        plan = self.solver.solve(left, task.durations, start=self.log.clock(task))
        return write_turn(self.protocol, START_OVER, None) if plan is None else self._write(task, plan[0])

    def _draw(self) -> PlanTask:
        """No request is in two splits: its words decide."""
        size = self.rng.choice(self.sizes)
        while True:
            task = draw_task(
                self.rng,
                size,
                sentences=self.sentences,
                timed=self.timed,
                letters=self.prompt == "terse",
                synonyms=self.synonyms,
                grammar=self.grammar,
            )
            if split_of(task.text) == self.split:
                return task

    def _running(self) -> PlanTask:
        if self.task is None:
            raise ValueError("no episode is running; call reset() first")
        return self.task

    def _run(self, task: PlanTask, call: ToolCall | CallError) -> ToolResult:
        if isinstance(call, CallError):
            return ToolResult(text=call.message, ok=False)
        result = self.tools[call.name](call.arguments)
        assert isinstance(result, ToolResult)
        if call.name == START_OVER:
            self.log.starts.clear()
        elif result.ok and self.places[call.name] not in self.log.starts:
            now = len(self.log.starts) if task.minutes is None else read_time(call.arguments[START])
            self.log.starts[self.places[call.name]] = now
        return result

    def _end(self, task: PlanTask, result: ToolResult, *, timed_out: bool = False) -> Step:
        error = find_error(task, self.log, timed_out=timed_out)
        share = satisfied_share(task, self.log)
        reward = share if self.reward == "share" else float(error is None)
        info = {**self._info(task, error), "valid": result.ok, "success": error is None, "error": error and str(error)}
        info["scores"] |= {"satisfied": share} | {f"error_{kind}": float(kind == error) for kind in PlanError}
        said = (
            f"{self._show(task, result)}\n{_SATISFIED if error is None else f'The request is not satisfied: {error}.'}"
        )
        self.task = None
        return said, reward, True, False, info

    def _info(self, task: PlanTask, error: PlanError | None = PlanError.LOST) -> Info:
        """Scores stand in every info: an episode that a limit cuts is not a success."""
        done = ",".join(f"{action}@{start}" for action, start in self.log.starts.items())
        success = float(error is None)
        return {"state_key": f"{task.text} > {done}", "scores": {f"success_{len(task.actions)}": success}}

    def _limit(self, task: PlanTask) -> int:
        return self.max_turns if self.spare is None else min(self.max_turns, len(task.actions) + self.spare)

    def _left(self, task: PlanTask) -> list[int]:
        return [place for place in range(len(task.actions)) if place not in self.log.starts]

    def _write(self, task: PlanTask, action: int) -> str:
        name = tool_name(task.actions[action])
        if task.minutes is None:
            return write_turn(self.protocol, name, None)
        start = earliest_start(task.constraints, action, self.log.clock(task))
        return write_turn(self.protocol, name, str(TimeOfDay(minute=min(start, 24 * 60 - 1))))

    def _show(self, task: PlanTask, result: ToolResult) -> str:
        """The answer of a tool; in terse form also what is left."""
        if self.prompt == "terse":
            left = " ".join(task.actions[place] for place in self._left(task))
            return f"{result.text if result.ok else 'error'} : {left}"
        text = neutralise(result.text)
        return f"Observation: {text}" if self.protocol == "react" else text

    def _ask(self, task: PlanTask) -> str:
        if self.prompt == "terse":
            return f"{' '.join(task.actions)} : {task.text}"
        rules = _RULES.format(whose=f"the {task.topic}" if task.topic else "today")
        parts = [rules, _TIMES if task.minutes is not None else "", describe_tools(self.protocol, self.tools)]
        return "\n\n".join([*filter(None, parts), f"Request: {task.text}"])


def _require_known(**options: str) -> None:
    for name, value in options.items():
        if value not in _CHOICES[name]:
            raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(_CHOICES[name])}")


def _shown(call: ToolCall | CallError | None) -> Any:
    """What was understood, without what a hostile turn put beside it."""
    return call.name if isinstance(call, ToolCall) else None
