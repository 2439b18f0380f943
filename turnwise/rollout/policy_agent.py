"""The model agent: it renders what a seat sees, samples from an engine, and records the tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnwise.dialects.model_call import ModelCall
from turnwise.engine.contract import Completion, Engine, EngineError, Finish, SamplingParams
from turnwise.envs.faults import EpisodeError
from turnwise.policy.heard_words import heard_spans
from turnwise.policy.rendering import Conversation, Prompt, Renderer
from turnwise.rollout.agents import Action, Agent, View
from turnwise.rollout.call_branches import Placed, ProgramCall, Renderers
from turnwise.rollout.called_seat import CalledSeat, sampling_of
from turnwise.rollout.token_checks import check_completion
from turnwise.tools.native_calls import MESSAGES
from turnwise.types import POLICY, StopReason, Trajectory

# A truncated turn is not an action; a cancelled one says nothing about the policy.
_STOPS = {
    Finish.MAX_TOKENS: StopReason.MAX_TOKENS,
    Finish.CONTEXT_FULL: StopReason.CONTEXT_FULL,
    Finish.CANCELLED: StopReason.TIMEOUT,
}

_LONG = 20_000
"""Observations of up to this many characters are tokenised in the event loop, in a few milliseconds."""


@dataclass(kw_only=True)
class _Seat:
    """One seat's conversation, and the engine session that holds it."""

    conversation: Conversation
    session: str
    cut: bool = False
    """The last message, if any, was truncated: no observation followed it."""


class PolicyAgent(Agent):
    """Plays with a model.

    Example:

        sampling = SamplingParams(max_tokens=200, stop_strings=("</search>", "</answer>"))
        agent = PolicyAgent(engine=engine, renderer=Renderer(tokenizer, system="Think first."), sampling=sampling)
        groups = await scheduler.run_groups(specs, agent)
    """

    def __init__(
        self, *, engine: Engine, renderer: Renderer, sampling: SamplingParams | None = None, policy: str = POLICY
    ) -> None:
        sampling = sampling or SamplingParams()
        self._policy = policy
        stop_ids = tuple(sorted({*sampling.stop_ids, *renderer.stop_ids}))
        self._engine, self._renderer = engine, renderer
        self._sampling = replace(sampling, stop_ids=stop_ids)
        self._seats: dict[tuple[str, str], _Seat] = {}
        self._called: dict[tuple[str, str], CalledSeat] = {}
        self._renderers: Renderers | None = None
        self._aside = threading.Lock()
        self._twin: Renderer | None = None

    async def act(self, view: View) -> Action:
        """Sample one turn."""
        call = view.info.get("call")
        if isinstance(call, ModelCall):
            return await self._answer(view, call)
        if MESSAGES in view.info:
            return await self._converse(view)
        seat = self._seat(view)
        prompt = await self._observe(seat.conversation, view.observation)
        if prompt is None:
            seat.cut = True
            return Action(text="", stop=StopReason.CONTEXT_FULL)
        if prompt.restarts:
            self._engine.close(seat.session)
            seat.session = _session(view)
        completion = await self._sample(view, seat.session, prompt.ids, self._sampling)
        seat.cut = completion.finish in _STOPS
        action = self._action(seat.conversation.record(completion.ids), prompt, completion)
        heard = heard_spans(self._renderer, prompt.ids, view.info.get("heard", ()))
        return replace(action, heard=heard, stop=_STOPS.get(completion.finish))

    async def _answer(self, view: View, call: ModelCall) -> Action:
        """Answer a program's call. A truncated answer goes back to the program like any other."""
        seat = self._called_seat(view)
        found = seat.find(call)
        placed = await self._place(seat, found)
        if placed is None or len(placed.whole) >= self._engine.capacity:
            return Action(text="", stop=StopReason.CONTEXT_FULL)
        if placed.sequence not in seat.sessions:
            seat.sessions[placed.sequence] = _session(view)
        session, sampling = seat.sessions[placed.sequence], sampling_of(self._sampling, call.asked)
        completion = await self._sample(view, session, placed.prompt.ids, sampling)
        text = seat.answer(call, placed, completion)
        stop = StopReason.TIMEOUT if completion.finish is Finish.CANCELLED else None
        return replace(self._action(text, placed.prompt, completion), call=found.as_row(), stop=stop)

    async def _converse(self, view: View) -> Action:
        """Sample a turn in an environment that speaks in messages, such as one with tools that the template shows."""
        seat, call = self._called_seat(view), ProgramCall.from_env(view.turn, view.observation, view.info)
        placed = await self._place(seat, call)
        if placed is None or len(placed.whole) >= self._engine.capacity:
            return Action(text="", stop=StopReason.CONTEXT_FULL)
        if placed.sequence not in seat.sessions:
            self._leave(seat)  # a rewritten history: nothing continues the sequence before
            seat.sessions = {placed.sequence: _session(view)}
        session = seat.sessions[placed.sequence]
        completion = await self._sample(view, session, placed.prompt.ids, self._sampling)
        text = seat.branches.answer(call.number, completion.ids)
        return replace(self._action(text, placed.prompt, completion), stop=_STOPS.get(completion.finish))

    async def _sample(self, view: View, session: str, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        try:
            completion = await self._engine.generate(session, ids, sampling)
        except EngineError as error:
            raise EpisodeError(str(error), culprit="engine", timed_out=error.timed_out) from error
        check_completion(completion, where=f"trajectory {view.episode!r} ({view.seat}), turn {view.turn}")
        return completion

    def _action(self, text: str, prompt: Prompt, completion: Completion) -> Action:
        return Action(
            text=text,
            prompt_ids=prompt.ids,
            sampled_ids=completion.ids,
            logprobs=completion.logprobs,
            policy=self._policy,
            policy_version=completion.policy_version,
            restarts=prompt.restarts,
            streams={"routing": completion.routing} if completion.routing else {},
        )

    async def end(self, trajectory: Trajectory) -> None:
        """Close the session; a truncated episode's last observation becomes `final_ids`.

        After a call that nobody answered there are none: the critic then values the end of the last turn.
        """
        if called := self._called.pop((trajectory.episode, trajectory.seat), None):
            self._leave(called)
            called.arrange(trajectory.turns)
            if called.branches.native and _goes_on(trajectory):
                number, last = len(trajectory.turns), trajectory.final_observation
                placed = await self._place(called, ProgramCall.from_env(number, last, trajectory.info))
                trajectory.final_ids = self._final(None if placed is None else placed.prompt)
            return
        seat = self._seats.pop((trajectory.episode, trajectory.seat), None)
        if seat is None:
            return
        self._engine.close(seat.session)
        if _goes_on(trajectory) and not seat.cut:
            trajectory.final_ids = self._final(await self._observe(seat.conversation, trajectory.final_observation))

    def _final(self, prompt: Prompt | None) -> Sequence[int]:
        # A rewritten history does not continue the last sequence, and text beyond the context cannot be read: the
        # critic then values the end of the last turn.
        fits = prompt is not None and len(prompt.ids) < self._engine.capacity
        return prompt.ids if prompt is not None and fits and not prompt.restarts else ()

    async def _observe(self, conversation: Conversation, observation: str) -> Prompt | None:
        """The new input as tokens; None if it does not fit the context. A long text does not block other episodes."""
        if len(observation) <= _LONG:
            return conversation.observe(observation)
        return await asyncio.to_thread(self._observe_aside, conversation, observation)

    async def _place(self, seat: CalledSeat, call: ProgramCall) -> Placed | None:
        """The same for a call."""
        texts = [str(message["content"]) for message in call.messages]
        if sum(map(len, texts)) <= _LONG:
            return seat.ask(call)
        return await asyncio.to_thread(self._place_aside, seat, call, "\n".join(texts))

    def _place_aside(self, seat: CalledSeat, call: ProgramCall, text: str) -> Placed | None:
        with self._aside:
            self._twin = self._twin or self._renderer.for_another_thread()
            if self._twin.surely_exceeds(text, self._engine.capacity):
                return None
            return seat.ask(call, self._twin)

    def _observe_aside(self, conversation: Conversation, observation: str) -> Prompt | None:
        with self._aside:  # one at a time: they share a tokenizer
            self._twin = self._twin or self._renderer.for_another_thread()
            if self._twin.surely_exceeds(observation, self._engine.capacity):
                return None
            conversation.renderer = self._twin
            try:
                return conversation.observe(observation)
            finally:
                conversation.renderer = self._renderer

    def _seat(self, view: View) -> _Seat:
        key = (view.episode, view.seat)
        if view.turn == 0:
            if left := self._seats.pop(key, None):  # left by an unfinished episode of this name
                self._engine.close(left.session)
            self._seats[key] = _Seat(conversation=self._renderer.open(), session=_session(view))
        return self._seats[key]

    def _called_seat(self, view: View) -> CalledSeat:
        key = (view.episode, view.seat)
        if view.turn == 0:
            if left := self._called.pop(key, None):
                self._leave(left)
            self._renderers = self._renderers or Renderers(self._renderer)
            self._called[key] = CalledSeat.of(self._renderers)
        return self._called[key]

    def _leave(self, seat: CalledSeat) -> None:
        for session in seat.sessions.values():
            self._engine.close(session)


def _goes_on(trajectory: Trajectory) -> bool:
    """Whether an observation came after the last turn that nobody has answered."""
    cut = trajectory.stop.is_failure or trajectory.stop in (StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL)
    return trajectory.truncated and not cut and bool(trajectory.turns and trajectory.final_observation)


def _session(view: View) -> str:
    """A unique name per sequence. Engines seed by it, so it includes a number from the seat's generator."""
    return f"{view.episode}/{view.seat}:{view.rng.getrandbits(64):016x}"
