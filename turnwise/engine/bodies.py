"""The bodies of requests to a served engine: vLLM's fields as far as they are used, and our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from turnwise.engine.contract import SamplingParams

BANNED = -100.0
"""The bias that bans a token, as in vLLM."""


class Sampling(BaseModel):
    """vLLM's sampling parameters, as far as they are used."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 16
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None

    def params(self, eos: Sequence[int]) -> SamplingParams:
        """The same in our terms; ValueError for a bias that is not a ban."""
        bias = self.logit_bias or {}
        if any(value > BANNED for value in bias.values()):
            raise ValueError(f"logit_bias can only ban tokens, with {BANNED:g}")
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        ends = () if self.ignore_eos else tuple(eos)
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            max_tokens=self.max_tokens,
            stop_ids=tuple(sorted({*(self.stop_token_ids or ()), *ends})),
            stop_strings=stop,
            bad_ids=tuple(bias),
            top_logprobs=self.logprobs or 0,
        )


class FromTrainer(BaseModel):
    """What our own client adds to a request."""

    run: str | None = None
    """In lock-step: whose requests are counted."""
    close: list[str] = []
    """Sessions that have ended."""


class GenerateBody(FromTrainer):
    """A request for tokens."""

    token_ids: list[int] = Field(min_length=1)
    sampling_params: Sampling = Sampling()
    model: str | None = None


class ExpectBody(FromTrainer):
    """How many requests lock-step waits for; null ends it."""

    requests: int | None = Field(default=None, ge=0)


class RpcBody(BaseModel):
    """A call on the model; only `reload_weights` is known."""

    method: str
    kwargs: dict[str, Any] = {}


class VersionBody(BaseModel):
    """The version that tokens carry from now on."""

    new_version: str


class AdapterBody(BaseModel):
    """A LoRA to sample with from now on."""

    lora_name: str
    lora_path: str


class ResetBody(BaseModel):
    """A trainer begins or ends."""

    run: str = ""


class Nothing(BaseModel):
    """An empty body."""
