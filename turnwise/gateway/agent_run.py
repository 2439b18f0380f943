"""The environment in which the user's own program is the agent.

It turns the program inside out: a call to the model is an observation, the policy's turn is the answer to it, and what
the program returns is the reward. So episodes, limits, ledgers and checks are the usual ones.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

from turnwise.dialects.dialect import Asked, Said, canonical
from turnwise.dialects.model_call import ModelCall, answer_of
from turnwise.envs.base import Env, Execution, Info, Reset, Step
from turnwise.envs.faults import EpisodeError
from turnwise.envs.task_lists import HeldOutTasks, TaskList, TaskSource
from turnwise.gateway.agent_session import AgentSession, Ended
from turnwise.gateway.gateway_server import gateway
from turnwise.gateway.program_host import HostedProgram
from turnwise.gateway.programs import Address, ProgramOutcome, RunningCommand, RunningFunction, Tell
from turnwise.outside import load
from turnwise.tools.formats import write_call

Program = Callable[..., Any]
RunningProgram = RunningFunction | HostedProgram | RunningCommand


class AgentRun(Env):
    """Runs `program`, which is `my_agent.py:run`, `package.module:run` or the function itself, or a `command`.

    Tasks are the rows of `tasks` (a JSONL file or a list), otherwise `{"seed": 17, "split": "train"}`. A program that
    neither calls nor ends for `patience` seconds has failed. One that raises has too, unless `crash_reward` says what
    that earns.
    """

    execution: ClassVar[Execution] = "loop"
    reward_range = (float("-inf"), float("inf"))
    shared = frozenset({"tasks"})

    def __init__(
        self,
        *,
        program: str | Program = "",
        command: str | Sequence[str] = "",
        tasks: TaskSource | None = None,
        held_out: HeldOutTasks = 0.1,
        split: str = "train",
        patience: float = 50.0,
        crash_reward: float | None = None,
    ) -> None:
        super().__init__(split=split)
        if bool(program) == bool(command):
            raise ValueError("give a program (my_agent.py:run) or a command (python my_agent.py), and not both")
        if isinstance(program, str) and program:
            load(program)  # what is wrong with it is said before it is played
        self._program, self._command = program, command
        self._patience, self._crash_reward = patience, crash_reward
        self.tasks = None if tasks is None else TaskList.of(tasks, split=split, held_out=held_out).rows
        self._session: AgentSession | None = None
        self._running: RunningProgram | None = None
        self._call: ModelCall | None = None

    def list_tasks(self) -> list[dict[str, Any]] | None:
        """Every row of the split, once; None if tasks come from seeds."""
        return None if self.tasks is None else copy.deepcopy(list(self.tasks))

    def reset(self, seed: int | None = None, task: Any = None) -> Awaitable[Reset]:
        """Start the program; its first call is the observation."""
        super().reset(seed=seed)
        self.close()
        number = self.rng.getrandbits(31) if seed is None else seed
        if task is None:
            task = {"seed": number, "split": self.split} if self.tasks is None else self.rng.choice(self.tasks)
        server, self._session = gateway(), AgentSession()
        server.open(self._session)
        address = Address(origin=server.origin, api_key=self._session.key)
        self._running = self._start(copy.deepcopy(task), address, self._session.end)
        return _in_loop(self._begin(task))

    def _start(self, task: Any, address: Address, tell: Tell) -> RunningProgram:
        if self._command:
            return RunningCommand(self._command, task, address, tell)
        if isinstance(self._program, str):
            return HostedProgram(self._program, task, address, tell)
        return RunningFunction(self._program, task, address, tell)  # what has no name cannot be found elsewhere

    def step(self, action: str) -> Awaitable[Step]:
        """Answer the open call; the next call is the observation, the end of the program the end of the episode."""
        if self._session is None or self._call is None:
            raise ValueError("no call is open; call reset() first")
        text = action.encode("utf-8", "replace").decode("utf-8")  # half of a surrogate pair cannot be sent
        answered = self._call.answered or answer_of(text, self._call.asked)
        following = self._session.next()
        self._session.answer(answered)
        return _in_loop(self._follow(following, valid=answered.finish != "length"))

    def sample_random_action(self) -> str:
        """A word of what the program says to the model."""
        words = "" if self._call is None else observation_of(self._call.asked)
        return self.rng.choice(words.split() or ["yes"])

    def get_state(self) -> Mapping[str, Any]:
        """A program that runs cannot be copied."""
        raise NotImplementedError("a program that runs cannot be copied")

    def close(self) -> None:
        """Stop the program and refuse its calls."""
        if self._session is not None:
            self._session.close("the episode has ended, and with it this API key")
            gateway().leave(self._session)
        if self._running is not None:
            self._running.stop()
        self._session = self._running = self._call = None

    async def _begin(self, task: Any) -> Reset:
        assert self._session is not None
        event = await self._wait(self._session.next())
        if isinstance(event, ModelCall):
            observation, info = self._show(event)
            return observation, {**info, "task": task}
        if event.error is not None:
            raise event.error
        raise EpisodeError("the program ended without a call to the model; is its client's base_url the given one?")

    async def _follow(self, following: Future[ModelCall | Ended], *, valid: bool) -> Step:
        event = await self._wait(following)
        if isinstance(event, ModelCall):
            observation, info = self._show(event)
            return observation, 0.0, False, False, {**info, "valid": valid}
        return self._finish(event, valid=valid)

    async def _wait(self, event: Future[ModelCall | Ended]) -> ModelCall | Ended:
        timer = asyncio.timeout(self._patience)
        try:
            async with timer:
                return await asyncio.wrap_future(event)
        except TimeoutError:
            text = f"the program neither called the model nor ended within {self._patience:g} s (env.kwargs.patience)"
            raise EpisodeError(text, timed_out=True) from None

    def _show(self, call: ModelCall) -> tuple[str, Info]:
        self._call = call
        return observation_of(call.asked), {"call": call, "state_key": _state_key(call.asked), **self._ignored()}

    def _ignored(self) -> Info:
        return {"ignored": dict(self._session.ignored)} if self._session is not None and self._session.ignored else {}

    def _finish(self, ended: Ended, *, valid: bool) -> Step:
        assert self._session is not None
        info: Info = {"valid": valid, "retried_calls": self._session.retries, **self._ignored()}
        if ended.error is not None:
            if self._crash_reward is None:
                raise ended.error
            said = str(ended.error)
            return said, self._crash_reward, True, False, {**info, "success": False, "crash": said}
        outcome = ProgramOutcome.of(ended.value)
        info |= {} if outcome.success is None else {"success": outcome.success}
        info |= {} if outcome.parts is None else {"reward_parts": dict(outcome.parts)}
        info |= {} if outcome.scores is None else {"scores": dict(outcome.scores)}
        return "", outcome.reward, True, False, info


def observation_of(asked: Asked) -> str:
    """What a call says that the policy has not said itself: the messages since its last one, as text."""
    said = [place for place, message in enumerate(asked.messages) if message.role == "assistant"]
    new = asked.messages[said[-1] + 1 if said else 0 :]
    if len(new) == 1:
        return _text_of(new[0])
    return "\n".join(f"[{message.role}] {_text_of(message)}" for message in new)


def _text_of(message: Said) -> str:
    return "\n".join(filter(None, [message.text, *map(write_call, message.calls)]))


def _state_key(asked: Asked) -> str:
    """Equal conversations are equal states."""
    said = repr([canonical(message) for message in asked.messages])
    return hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:16]


def _in_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """A future of the running event loop; where none runs yet, the coroutine itself."""
    try:
        return asyncio.get_running_loop().create_task(coroutine)
    except RuntimeError:
        return coroutine
