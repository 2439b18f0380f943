"""The built-in engine: in the process, on the trainer's own weights, with keys and values kept across turns.

Every step admits waiting requests, runs one bounded chunk of new prompt tokens, and samples one token for every session
that is ready. Sessions join and leave at any step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from turnwise.engine.attention import Chunk
from turnwise.engine.backends import Backend, Sampled, make_backend
from turnwise.engine.contract import Completion, Finish, Mixed, SamplingParams
from turnwise.engine.memory import slots_within
from turnwise.engine.sampling import session_seed
from turnwise.engine.session import Heard, Request, Session

PREFIX_WORTH_SHARING = 8
"""Shorter common prompts are cheaper to rerun than to look up."""


class TorchEngine:
    """Samples from a transformers causal LM. One thread drives it: `submit`, then `step` until everything is done.

    Example:

        engine = TorchEngine(model, tokenizer=tokenizer, capacity=512, memory_bytes=2**30)
        params = SamplingParams(max_tokens=16, stop_ids=(2,))
        first = engine.run([("geo-17/0", [1, 5, 6], params)])[0]
        second = engine.run([("geo-17/0", [7, 8], params)])[0]  # runs the new tokens only
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        tokenizer: Any = None,
        capacity: int | None = None,
        memory_bytes: int = 2**30,
        max_batch: int = 512,
        chunk_tokens: int = 2048,
        seed: int = 0,
        share_prompts: bool = True,
        recompute: bool = False,
        release: bool = False,
        mixed: Mixed | None = None,
        routing: bool = False,
    ) -> None:
        config: Any = model.config.get_text_config()
        limit = int(getattr(config, "max_position_embeddings", 0) or 2048)
        self.capacity = capacity or limit
        if not 2 <= self.capacity <= limit:
            raise ValueError(
                f"capacity={self.capacity} (rollout.context in a recipe) must be between 2 and the model's context of "
                f"{limit} tokens"
            )
        self._tokenizer = tokenizer
        self.vocabulary = int(config.vocab_size)
        self._max_batch, self._chunk_tokens, self._seed = max_batch, chunk_tokens, seed
        self._share, self._recompute, self._releases = share_prompts, recompute, release
        self._backend: Backend = make_backend(
            model,
            capacity=self.capacity,
            slots=lambda shape: slots_within(memory_bytes, shape, self.capacity),
            mixed=mixed,
            routing=routing,
        )
        self.slots = self._backend.cache.slots
        self._free = list(range(self.slots - 1, -1, -1))
        self._sessions: dict[str, Session] = {}
        self._waiting: list[Request] = []
        self._serving: list[Request] = []
        self._prompts: dict[tuple[int, ...], Session] = {}
        self._steps = 0
        self.version = 0
        self.counts = {"prefilled": 0, "shared": 0, "sampled": 0, "evicted": 0}
        """Tokens run as prompt, tokens copied from an equal prompt, tokens sampled; sessions that lost their slot."""
        self._rest()

    def submit(
        self,
        session: str,
        new_ids: Sequence[int],
        params: SamplingParams,
        done: Callable[[Completion], None],
        *,
        seed: int | None = None,
        heard: Heard | None = None,
    ) -> None:
        """Queue a request; `step` calls `heard` with each token and `done` when it ends. A new session takes its random
        stream from `seed`."""
        self._check(session, new_ids, params)
        self._backend.cache.restore()
        seed = session_seed(self._seed, session) if seed is None else seed
        state = self._sessions.setdefault(session, Session(name=session, seed=seed))
        state.ids.extend(new_ids)
        # Rerun at least one token even if nothing is new: sampling needs its logits.
        state.filled = min(state.filled, len(state.ids) - 1)
        state.request = Request(session=state, params=params, done=done, heard=heard, prompt=len(state.ids))
        self._waiting.append(state.request)

    def submit_whole(
        self,
        session: str,
        ids: Sequence[int],
        params: SamplingParams,
        done: Callable[[Completion], None],
        *,
        seed: int,
        heard: Heard | None = None,
    ) -> None:
        """Queue a session's whole sequence: what it extends is not run again, anything else starts afresh."""
        held = self._sessions.get(session)
        if held is not None and (held.request is not None or list(ids[: len(held.ids)]) != held.ids):
            self.close(session)
            held = None
        self.submit(session, ids if held is None else ids[len(held.ids) :], params, done, seed=seed, heard=heard)

    def step(self) -> bool:
        """Do one round of work; False when there is nothing left to do."""
        self._steps += 1
        self._admit()
        with torch.no_grad():
            launched = self._prefill() + self._decode()
        self._deliver(self._backend.collect(wait=not launched))
        return bool(self._waiting or self._serving)

    def run(self, requests: Sequence[tuple[str, Sequence[int], SamplingParams]]) -> list[Completion]:
        """Serve requests to completion."""
        results: dict[int, Completion] = {}
        for number, (session, new_ids, params) in enumerate(requests):
            self.submit(session, new_ids, params, lambda completion, n=number: results.__setitem__(n, completion))
        while self.step():
            pass
        return [results[number] for number in range(len(requests))]

    def publish(self, version: int, *, recompute: bool = False) -> None:
        """New weights are live. With `recompute`, here or in the constructor, keys and values are recomputed."""
        self._deliver(self._backend.collect(wait=True))
        self.version = version
        # A new session must not reuse a prompt that was run under the old weights.
        self._prompts.clear()
        if self._recompute or recompute:
            for state in self._sessions.values():
                self._refill(state)

    def close(self, session: str) -> None:
        """Forget a session; a request still being served ends as cancelled."""
        state = self._sessions.pop(session, None)
        if state is None:
            return
        if state.request is not None:
            self._end(state.request, Finish.CANCELLED)
        self._release(state)
        self._rest()

    def _rest(self) -> None:
        """With `release`, give the memory of keys and values to the learner while no session is open."""
        if self._releases and not self._sessions:
            self._deliver(self._backend.collect(wait=True))
            self.release_memory()

    def release_memory(self) -> None:
        """Free the memory of keys and values; what they held is lost."""
        self._backend.release()

    def load(self) -> dict[str, int]:
        """How busy it is: slots, sessions that are held, requests being served and requests that wait."""
        waiting = sum(not request.ended for request in self._waiting)
        held = {"slots": self.slots, "sessions": len(self._sessions)}
        return {**held, "serving": len(self._serving), "waiting": waiting}

    def clear(self) -> None:
        """Forget every session."""
        for session in list(self._sessions):
            self.close(session)

    def _check(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> None:
        state = self._sessions.get(session)
        if state is None and not new_ids:
            raise ValueError(f"session {session!r} starts with an empty prompt; give it at least one token")
        if state is not None and state.request is not None:
            raise ValueError(f"session {session!r} is still generating; wait for it or close it")
        if params.stop_strings and self._tokenizer is None:
            raise ValueError("stop strings need a tokenizer: pass tokenizer= to the engine, or use stop_ids")
        for token in (*new_ids, *params.bad_ids, *params.stop_ids):
            if not 0 <= token < self.vocabulary:
                raise ValueError(f"session {session!r}: token {token} is outside the vocabulary of {self.vocabulary}")

    # Slots: which sessions are served, and where their keys and values are.

    def _admit(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if request.ended:
                continue  # closed while it waited
            if request.prompt >= self.capacity:
                self._end(request, Finish.CONTEXT_FULL)
            elif len(self._serving) < self._max_batch and self._place(request.session):
                self._serve(request)
            else:
                self._waiting.append(request)

    def _serve(self, request: Request) -> None:
        state = request.session
        assert state.slot is not None
        state.touched, request.slot = self._steps, state.slot
        self._backend.begin(state.slot, seed=state.seed, temperature=request.params.temperature)
        self._serving.append(request)

    def _place(self, state: Session) -> bool:
        """Ensure that a session has a slot, evicting the longest idle one; False if it must wait."""
        if state.slot is not None:
            return True
        prompt = tuple(state.ids) if self._share and len(state.ids) >= PREFIX_WORTH_SHARING else None
        donor = None if prompt is None else self._prompts.get(prompt)
        common = len(state.ids) - 1
        if donor is not None and donor.filled < common:
            return False  # another try at the same task is running this prompt: wait for it
        state.slot = self._take_slot(keep=donor)
        if state.slot is None and donor is not None:
            donor, state.slot = None, self._take_slot(keep=None)  # a free slot is worth more than its prompt
        if state.slot is None:
            return False
        state.oldest_version = self.version
        if donor is not None:
            assert donor.slot is not None
            self._backend.cache.copy_prefix(donor.slot, state.slot, common)
            state.filled = common
            self.counts["shared"] += common
        elif prompt is not None:
            self._prompts[prompt] = state
        return True

    def _take_slot(self, *, keep: Session | None) -> int | None:
        if self._free:
            return self._free.pop()
        idle = [s for s in self._sessions.values() if s.slot is not None and s.request is None and s is not keep]
        if not idle:
            return None
        self._release(min(idle, key=lambda state: state.touched))
        self.counts["evicted"] += 1
        return self._free.pop()

    def _release(self, state: Session) -> None:
        for prompt in [prompt for prompt, owner in self._prompts.items() if owner is state]:
            del self._prompts[prompt]
        if state.slot is not None:
            self._free.append(state.slot)
        state.drop()

    def _refill(self, state: Session) -> None:
        """Drop keys and values; a session mid-turn reruns its tokens and continues."""
        request = state.request
        self._release(state)
        if request is not None and request in self._serving:
            self._serving.remove(request)
            self._waiting.append(request)
            request.restart()

    # Work: run prompts, sample, return tokens.

    def _prefill(self) -> int:
        """Run up to `chunk_tokens` new prompt tokens; returns how many."""
        chunks, completes, ids = list[Chunk](), list[Request | None](), list[int]()
        for request in self._serving:
            length = min(request.unread, self._chunk_tokens - len(ids))
            if length <= 0:
                continue
            state = request.session
            chunks.append(Chunk(slot=request.slot, start=len(ids), length=length, position=state.filled))
            ids.extend(state.ids[state.filled : state.filled + length])
            completes.append(request if length == request.unread else None)
            state.filled += length
        if chunks:
            self._backend.prefill(ids, chunks, completes, self.version)
            self._launched([request for request in completes if request is not None])
            self.counts["prefilled"] += len(ids)
        return len(chunks)

    def _decode(self) -> int:
        """Sample one more token for every request that has its first; returns how many."""
        requests = [request for request in self._serving if request.may_launch(self.capacity)]
        # Tokens that prefill sampled in this step are not returned yet, so they can be fed back only if the backend
        # keeps them on the device.
        requests = [request for request in requests if self._backend.runs_ahead or request.is_known]
        if requests:
            self._backend.decode(requests, self.version)
            for request in requests:
                request.session.filled += 1
            self._launched(requests)
        return len(requests)

    def _launched(self, requests: Sequence[Request]) -> None:
        for request in requests:
            request.launched += 1

    def _deliver(self, sampled: Sequence[Sampled]) -> None:
        for item in sampled:
            request = item.request
            if request.ended:
                continue  # sampled before the stop was known
            request.accept(item.token, item.logprob, item.version, item.top)
            self.counts["sampled"] += 1
            finish = request.finish(self.capacity, None if self._tokenizer is None else self._tokenizer.decode)
            if finish is not None:
                self._end(request, finish)

    def _end(self, request: Request, finish: Finish) -> None:
        state = request.session
        request.ended, state.request, state.touched = True, None, self._steps
        state.filled = min(state.filled, len(state.ids))
        self._serving = [other for other in self._serving if other is not request]
        request.done(request.completion(finish, self._new_experts(state)))

    def _new_experts(self, state: Session) -> list[list[int]]:
        """The experts of tokens that were run since the last report; those of tokens run again are not news."""
        if state.slot is None:
            return []
        start, state.reported = state.reported, max(state.reported, state.filled)
        return self._backend.cache.read_experts(state.slot, start, state.filled)
