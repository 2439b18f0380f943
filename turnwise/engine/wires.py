"""What is said to a server, and what its answers must look like. Pure functions from requests to JSON and back.

`VLLM` is vLLM 0.32's `/inference/v1/generate` and its routes for weights, `TURNWISE` the same plus our own, `SGLANG`
SGLang 0.5.23's `/generate`. An answer with a wrong count, an id outside the vocabulary, a log-prob that cannot be, or
an unknown version is refused: nothing of it reaches a batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from turnwise.engine.contract import Finish, SamplingParams

_NO_LOGPROB = -9999.0
"""vLLM writes this where it has no log-prob."""
_CERTAIN = 1e-4
"""Rounding may lift the log-prob of a certain token this far above zero."""
Json = dict[str, Any]


class WireError(Exception):
    """A server's answer cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One HTTP request; without a body it is a GET."""

    path: str
    body: Json | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


FACTS = Call(path="/v1/models")
"""What a server serves."""


def reset(run: str) -> Call:
    """Our server forgets all sessions and what was expected, and from now on counts the requests of this run."""
    return Call(path="/turnwise/close", body={"run": run})


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Continue a sequence by up to `params.max_tokens`."""

    ids: Sequence[int]
    params: SamplingParams
    session: str = ""
    """Empty: a single request that continues nothing."""
    seed: int = 0
    """The session's key."""
    salt: str = ""
    """Separates caches of different weights."""
    adapter: str = ""
    scores_prompt: bool = False
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a server sampled."""

    ids: list[int]
    logprobs: list[float]
    versions: list[str]
    """The label of the weights that sampled each token."""
    finish: Finish
    oldest_version: int | None = None
    top: Sequence[Sequence[tuple[int, float]]] = ()
    prompt_logprobs: list[float] = field(default_factory=list[float])
    """Of all tokens but the first, at temperature 1, if they were asked for."""


class Wire(Protocol):
    """How one kind of server is spoken to."""

    kind: str
    probe_temperature: float
    """Another one than 1 shows whether log-probs are those of the sampled distribution."""
    adapter_is_version: bool
    """Whether a request keeps the adapter that it started with; otherwise tokens say themselves what sampled them."""

    def refusal(self, params: SamplingParams) -> str:
        """Why the server cannot sample like this; empty if it can."""
        ...

    def generate(self, ask: Ask) -> Call:
        """The request for tokens."""
        ...

    def read(self, content: Any, ask: Ask) -> Answer:
        """Its answer; WireError if it is not one."""
        ...

    def publish(self, folder: Path, version: int) -> list[Call]:
        """Pause, load a whole model, set the version."""
        ...

    def adapt(self, name: str, folder: Path, version: int) -> list[Call]:
        """Load an adapter under a name that was never used before."""
        ...

    def resume(self) -> Call:
        """End the pause."""
        ...


class VllmWire:
    """vLLM, started with --enable-scale-out, --logprobs-mode processed_logprobs and VLLM_SERVER_DEV_MODE=1."""

    kind, probe_temperature, adapter_is_version = "vllm", 2.0, True

    def refusal(self, params: SamplingParams) -> str:
        """It can do all of it."""
        return ""

    def generate(self, ask: Ask) -> Call:
        """POST /inference/v1/generate."""
        params = ask.params
        sampling: Json = {
            "temperature": params.temperature,
            "max_tokens": params.max_tokens,
            "logprobs": params.top_logprobs,
            "seed": self._seed(ask),
            "stop_token_ids": params.stop_ids,
            "ignore_eos": True,  # the policy's own stop tokens are the only ones
        }
        if params.stop_strings:
            sampling["stop"] = params.stop_strings
        if params.bad_ids:
            sampling["logit_bias"] = {str(token): -100.0 for token in params.bad_ids}
        if params.top_p < 1 or params.top_k or params.min_p:
            sampling |= {"top_p": params.top_p, "top_k": params.top_k, "min_p": params.min_p}
        if ask.scores_prompt:
            sampling["prompt_logprobs"] = 0
        body: Json = {"token_ids": ask.ids, "sampling_params": sampling, "cache_salt": ask.salt}
        if ask.adapter:
            body["model"] = ask.adapter
        headers = {"x-session-id": ask.session} if ask.session else {}
        return Call(path="/inference/v1/generate", body=body, headers=headers)

    def _seed(self, ask: Ask) -> int:
        """A request's generator starts afresh, so every turn of a session needs another seed."""
        digest = hashlib.blake2b(f"{ask.seed}:{len(ask.ids)}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def read(self, content: Any, ask: Ask) -> Answer:
        """`choices[0]` with ids, log-probs by id, and the versions as spans."""
        try:
            (choice,) = content["choices"]
            ids, entries = choice["token_ids"], choice["logprobs"]["content"]
            if [entry["token_id"] for entry in entries] != ids:
                raise WireError(f"it sent {len(entries)} log-probs that are not those of its {len(ids)} tokens")
            answer = Answer(
                ids=ids,
                logprobs=[entry["logprob"] for entry in entries],
                versions=_versions(choice["weight_versions"], len(ids)),
                finish=_finish(choice["finish_reason"], len(ids), ask),
                oldest_version=choice.get("oldest_version"),
                top=[_top(entry) for entry in entries] if ask.params.top_logprobs else (),
                prompt_logprobs=_of_prompt(content.get("prompt_logprobs"), ask) if ask.scores_prompt else [],
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise WireError(f"its answer has another form ({type(error).__name__}: {error})") from error
        return _checked(answer, ask)

    def publish(self, folder: Path, version: int) -> list[Call]:
        """Requests in flight are kept; their keys and values are computed again."""
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        return [
            Call(path="/pause?mode=keep", body={}),
            Call(path="/collective_rpc", body=reload),
            Call(path="/update_weight_version", body={"new_version": str(version)}),
        ]

    def adapt(self, name: str, folder: Path, version: int) -> list[Call]:
        """Requests in flight keep the adapter that they began with, so nothing is paused."""
        return [Call(path="/v1/load_lora_adapter", body={"lora_name": name, "lora_path": str(folder)})]

    def resume(self) -> Call:
        """POST /resume."""
        return Call(path="/resume", body={})


class TurnwiseWire(VllmWire):
    """Our own server: sessions that keep their keys and values, per-session random streams, lock-step."""

    kind, adapter_is_version = "turnwise", False

    def _seed(self, ask: Ask) -> int:
        return ask.seed

    def publish(self, folder: Path, version: int) -> list[Call]:
        """Keys and values are kept as in this process; answers say how old the oldest are."""
        _, *rest = super().publish(folder, version)
        return [Call(path="/pause?mode=keep&clear_cache=false", body={}), *rest]

    def adapt(self, name: str, folder: Path, version: int) -> list[Call]:
        """The server has one adapter at a time, so it changes like weights."""
        first, _, last = self.publish(folder, version)
        return [first, *super().adapt(name, folder, version), last]


class SglangWire:
    """SGLang. Its log-probs are those before top-p, top-k and min-p, so these are refused."""

    kind, probe_temperature, adapter_is_version = "sglang", 1.0, True

    def refusal(self, params: SamplingParams) -> str:
        """Log-probs must be those of the distribution that was sampled."""
        if params.top_p < 1 or params.top_k or params.min_p or params.bad_ids:
            return "SGLang reports log-probs before top_p, top_k, min_p and banned tokens; sample without them"
        return ""

    def generate(self, ask: Ask) -> Call:
        """POST /generate."""
        params = ask.params
        digest = hashlib.blake2b(f"{ask.seed}:{len(ask.ids)}".encode(), digest_size=4).digest()
        sampling: Json = {
            "temperature": params.temperature,
            "max_new_tokens": params.max_tokens,
            "stop_token_ids": params.stop_ids,
            "stop": params.stop_strings,
            "no_stop_trim": True,
            "ignore_eos": True,
            "sampling_seed": int.from_bytes(digest, "big") >> 1,
        }
        body: Json = {
            "input_ids": ask.ids,
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0 if ask.scores_prompt else -1,
            "top_logprobs_num": params.top_logprobs,
            "cache_salt": ask.salt,
        }
        if ask.adapter:
            body["lora_path"] = ask.adapter
        return Call(path="/generate", body=body)

    def read(self, content: Any, ask: Ask) -> Answer:
        """`output_ids`, and the rest in `meta_info`."""
        try:
            ids, about = content["output_ids"], content["meta_info"]
            sampled = about["output_token_logprobs"]
            if [entry[1] for entry in sampled] != ids:
                raise WireError(f"it sent {len(sampled)} log-probs that are not those of its {len(ids)} tokens")
            spans = about.get("weight_versions") or [{"version": about["weight_version"], "start": 0, "end": len(ids)}]
            scored = about["input_token_logprobs"][1:] if ask.scores_prompt else []
            answer = Answer(
                ids=ids,
                logprobs=[entry[0] for entry in sampled],
                versions=_versions(spans, len(ids)),
                finish=_finish(about["finish_reason"]["type"], len(ids), ask),
                prompt_logprobs=[float(entry[0]) for entry in scored],
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise WireError(f"its answer has another form ({type(error).__name__}: {error})") from error
        return _checked(answer, ask)

    def publish(self, folder: Path, version: int) -> list[Call]:
        """Requests in flight are put back and computed again under the new weights."""
        load = {"model_path": str(folder), "weight_version": str(version), "flush_cache": True}
        return [
            Call(path="/pause_generation", body={"mode": "retract"}),
            Call(path="/update_weights_from_disk", body=load),
        ]

    def adapt(self, name: str, folder: Path, version: int) -> list[Call]:
        """POST /load_lora_adapter."""
        return [Call(path="/load_lora_adapter", body={"lora_name": name, "lora_path": str(folder)})]

    def resume(self) -> Call:
        """POST /continue_generation."""
        return Call(path="/continue_generation", body={})


def _finish(reason: str, count: int, ask: Ask) -> Finish:
    """Only the caller knows whether a length was the turn's own limit or the end of the context."""
    if reason == "length" and count != ask.params.max_tokens:
        raise WireError(f"it sent {count} of {ask.params.max_tokens} tokens and says that the length is reached")
    return {"stop": Finish.STOP, "length": Finish.MAX_TOKENS, "abort": Finish.CANCELLED}[reason]


def _versions(spans: Sequence[Mapping[str, Any]], count: int) -> list[str]:
    """The label of every token."""
    versions: list[str] = []
    for span in spans:
        if span["start"] != len(versions) or not span["start"] < span["end"] <= count:
            raise WireError(f"its version spans do not cover its {count} tokens: {list(spans)}")
        versions += [str(span["version"])] * (span["end"] - span["start"])
    if len(versions) != count:
        raise WireError(f"its version spans cover {len(versions)} of its {count} tokens")
    return versions


def _top(entry: Mapping[str, Any]) -> list[tuple[int, float]]:
    return [(int(each["token_id"]), float(each["logprob"])) for each in entry["top_logprobs"]]


def _of_prompt(entries: Sequence[Any], ask: Ask) -> list[float]:
    return [float(entry[str(token)]["logprob"]) for token, entry in zip(ask.ids[1:], entries[1:], strict=True)]


def _checked(answer: Answer, ask: Ask) -> Answer:
    """The answer, if every number in it is possible."""
    ids, params = answer.ids, ask.params
    if not (0 if answer.finish is Finish.CANCELLED else 1) <= len(ids) <= params.max_tokens:
        raise WireError(f"it sent {len(ids)} tokens; 1 to {params.max_tokens} were asked for")
    for token, logprob in zip(ids, answer.logprobs, strict=True):
        if type(token) is not int or not 0 <= token < ask.vocabulary:
            raise WireError(f"it sent the id {token!r}, which is outside the vocabulary of {ask.vocabulary}")
        if type(logprob) not in (int, float) or not math.isfinite(logprob) or not _NO_LOGPROB < logprob <= _CERTAIN:
            raise WireError(f"it sent the log-prob {logprob!r}")
    if not set(params.stop_ids).isdisjoint(ids[:-1]):
        raise WireError("it went on after a stop token")
    if answer.finish is Finish.STOP and not params.stop_strings and ids[-1] not in params.stop_ids:
        raise WireError("it says that it stopped, but its last token is not a stop token")
    if ask.scores_prompt and len(answer.prompt_logprobs) != len(ask.ids) - 1:
        raise WireError(f"it sent {len(answer.prompt_logprobs)} log-probs of {len(ask.ids)} prompt tokens")
    return answer
