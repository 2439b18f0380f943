"""A model that is talked to: requests of any dialect become tokens, and tokens are sampled by the built-in engine."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.dialects.asgi import RefusedError
from turnwise.dialects.dialect import Asked, Said
from turnwise.engine.contract import Completion, SamplingParams
from turnwise.engine.sampling import session_seed
from turnwise.engine.serving import EngineServer
from turnwise.engine.session import Heard
from turnwise.policy.rendering import Renderer
from turnwise.rollout.call_branches import Renderers
from turnwise.rollout.call_tree import template_messages
from turnwise.rollout.calling_conversation import BREAKING
from turnwise.serve.told_calls import told_calls, with_marks

_LONG = 20_000
"""Characters that become tokens in the event loop, in a few milliseconds; longer texts do not make others wait."""


@dataclass(frozen=True, kw_only=True)
class Continued:
    """One answer to be sampled: its session in the engine, the prompt, and its number among the answers."""

    session: str
    prompt_ids: Sequence[int]
    choice: int
    seed: int


class ChatModel:
    """Renders requests with the model's chat template and samples their answers."""

    def __init__(self, engine: EngineServer, renderer: Renderer, *, lead: Sequence[int] = ()) -> None:
        """`lead` are the tokens with which the model's texts begin, for prompts that no template renders."""
        self.engine, self.renderer, self._lead = engine, renderer, list(lead)
        self._renderers = Renderers(renderer)
        self._aside_lock = threading.Lock()
        self._aside: Renderers | None = None

    async def render(self, asked: Asked) -> list[list[int]]:
        """The tokens of every prompt; RefusedError for what does not fit the context."""
        texts = [message.text for message in asked.messages]
        texts += [prompt for prompt in asked.prompts if isinstance(prompt, str)]
        if sum(map(len, texts)) <= _LONG:
            prompts = self._render(asked, self._renderers)
        else:
            prompts = await asyncio.to_thread(self._render_aside, asked, texts)
        for ids in prompts:
            if len(ids) >= self.engine.capacity:
                raise self._too_long(f"{len(ids)} tokens")
        return prompts

    def continued(self, asked: Asked, prompts: Sequence[Sequence[int]], *, id: str) -> list[Continued]:
        """Every answer that a request asks for. With a seed, the first one is the same whatever the others are."""
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        numbered = enumerate(ids for ids in prompts for _ in range(asked.n))
        return [
            Continued(
                session=f"{id}/{choice}",
                prompt_ids=ids,
                choice=choice,
                seed=session_seed(seed, str(choice)) if choice else seed,
            )
            for choice, ids in numbered
        ]

    async def sample(self, asked: Asked, one: Continued, heard: Heard | None = None) -> Completion:
        """One answer; cancelled or not, nothing of it stays in the engine."""
        params = self._sampling(asked, room=self.engine.capacity - len(one.prompt_ids))
        try:
            answer = self.engine.generate_whole(one.session, one.prompt_ids, params, seed=one.seed, heard=heard)
            return await asyncio.wrap_future(answer)
        except ValueError as error:
            raise RefusedError(400, str(error)) from None
        except RuntimeError as error:  # the engine has stopped
            raise RefusedError(503, str(error)) from None
        finally:
            self.engine.close(one.session)

    def _sampling(self, asked: Asked, *, room: int) -> SamplingParams:
        return SamplingParams(
            temperature=1.0 if asked.temperature is None else asked.temperature,
            top_p=asked.top_p or 1.0,
            top_k=max(0, asked.top_k or 0),
            min_p=asked.min_p or 0.0,
            max_tokens=min(asked.max_tokens or room, room),
            stop_ids=self.renderer.stop_ids,
            stop_strings=asked.stop,
            top_logprobs=asked.logprobs or 0,
        )

    def _render(self, asked: Asked, renderers: Renderers) -> list[list[int]]:
        if asked.prompts:
            return [self._encode(prompt, renderers.plain) for prompt in asked.prompts]
        if ids := _with_told_calls(asked, renderers):
            return [ids]
        conversation = renderers.open(asked.tools)
        messages = renderers.introduce(asked.tools, template_messages(asked.messages))
        try:
            return [conversation.extend(renderers.roles.fit(messages, opens=True)).ids]
        except BREAKING as error:
            raise RefusedError(400, f"the model's chat template rejects these messages: {error}") from None

    def _encode(self, prompt: str | tuple[int, ...], renderer: Renderer) -> list[int]:
        ids = [*self._lead, *renderer.encode(prompt)] if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise RefusedError(400, "prompt has no tokens; send at least one character")
        return ids

    def _render_aside(self, asked: Asked, texts: Sequence[str]) -> list[list[int]]:
        with self._aside_lock:  # one at a time: they share a tokenizer
            self._aside = self._aside or Renderers(self.renderer.for_another_thread())
            whole = ["\n".join(texts)] if asked.messages else texts
            if any(self._aside.plain.surely_exceeds(text, self.engine.capacity) for text in whole):
                raise self._too_long("many more")
            return self._render(asked, self._aside)

    def _too_long(self, size: str) -> RefusedError:
        text = f"This model's maximum context length is {self.engine.capacity} tokens, and the prompt alone has {size}"
        return RefusedError(400, f"{text}; send less.", "context_length_exceeded")


def _with_told_calls(asked: Asked, renderers: Renderers) -> list[int]:
    """The prompt with earlier calls as the template itself writes them, which is how the model knows them.

    Nothing if there are none, or if the template does not write all of them: some take only one call in a message.
    """
    has_calls, arguments = any(message.calls for message in asked.messages), renderers.arguments_as
    if not has_calls or arguments is None or not renderers.shows(asked.tools):
        return []

    def fitted(messages: Sequence[Said]) -> list[dict[str, Any]]:
        return renderers.fit_native(told_calls(messages, arguments), opens=True)

    conversation, (marked, marks) = renderers.open(asked.tools), with_marks(asked.messages)
    try:
        written = conversation.renderer.render(conversation.renderer.shield_all(fitted(marked)))
        return conversation.extend(fitted(asked.messages)).ids if all(mark in written for mark in marks) else []
    except BREAKING:
        return []
