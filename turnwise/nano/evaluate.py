"""Measure the nano model in the real environments, with its own simple sampler.

All episodes run in lock-step: at each step every one consumes one token, forced (what it observes) or sampled. They all
start at position 0, so there is no padding and no mask.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from turnwise.envs.base import Env
from turnwise.envs.games.game import Game
from turnwise.envs.search.env import SearchEnv
from turnwise.nano.tokenizer import AGENT_ID, END_ID, USER_ID

MAX_TURN_TOKENS = 48
"""A turn that has not ended by then is taken as it is."""


@dataclass(kw_only=True)
class Attempt:
    """One running episode: tokens still to be read, tokens of the turn being written, and the counts so far."""

    env: SearchEnv | Game
    task_id: str
    unread: list[int]
    written: list[int] = field(default_factory=list[int])
    turns: int = 0
    valid_turns: int = 0
    success: bool = False
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """Shares over all episodes; `by_fact` is (successes, episodes) for each kind of fact asked for."""

    episodes: int
    success: float
    valid: float
    turns: float
    by_fact: dict[str, tuple[int, int]]

    def __str__(self) -> str:
        facts = ", ".join(f"{fact} {right / tries:.2f}" for fact, (right, tries) in sorted(self.by_fact.items()))
        return (
            f"success {self.success:.3f} of {self.episodes}, valid turns {self.valid:.3f}, "
            f"turns {self.turns:.2f}; by fact: {facts}"
        )


@torch.inference_mode()
def evaluate(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    make_env: Callable[[], Env],
    *,
    seeds: Sequence[int],
    temperature: float,
    seed: int = 0,
) -> Scorecard:
    """Play one episode for each environment seed; temperature 0 is greedy."""
    attempts = [_begin(make_env(), env_seed, tokenizer) for env_seed in seeds]
    generator = torch.Generator(model.device).manual_seed(seed)
    running, cache = attempts, DynamicCache(config=model.config)
    tokens = [attempt.unread.pop(0) for attempt in running]
    while True:
        fed = torch.tensor(tokens, device=model.device)[:, None]
        logits = model(input_ids=fed, past_key_values=cache, use_cache=True).logits[:, -1].float()
        sampled = _sample(logits, temperature, generator).tolist()
        tokens = [_advance(*pair, tokenizer) for pair in zip(running, sampled, strict=True)]
        going = [place for place, attempt in enumerate(running) if not attempt.done]
        if not going:
            return _report(attempts)
        if len(going) < len(running):
            cache.batch_select_indices(torch.tensor(going, device=model.device))
            running, tokens = [running[place] for place in going], [tokens[place] for place in going]


def _begin(env: Env, seed: int, tokenizer: PreTrainedTokenizerFast) -> Attempt:
    assert isinstance(env, (SearchEnv, Game))
    observation, info = env.reset(seed=seed)
    task_id = info["task"]["id"] if "task" in info else "game/all"
    return Attempt(env=env, task_id=task_id, unread=_observed(observation, tokenizer))


def _observed(text: str, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    # An environment's text must not become a chat marker.
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return [USER_ID, *ids, AGENT_ID]


def _sample(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]


def _advance(attempt: Attempt, sampled: int, tokenizer: PreTrainedTokenizerFast) -> int:
    """The next token of this attempt: one it has yet to read, otherwise the sampled one, which may end its turn."""
    if attempt.unread:
        return attempt.unread.pop(0)
    attempt.written.append(sampled)
    if sampled == END_ID or len(attempt.written) == MAX_TURN_TOKENS:
        _finish_turn(attempt, tokenizer)
    return sampled


def _finish_turn(attempt: Attempt, tokenizer: PreTrainedTokenizerFast) -> None:
    action = str(tokenizer.decode(attempt.written, skip_special_tokens=True))
    observation, _, terminated, truncated, info = attempt.env.step(action)
    attempt.written = []
    attempt.turns += 1
    attempt.valid_turns += info.get("valid", True)
    attempt.done = terminated or truncated
    attempt.success = attempt.done and bool(info["success"])
    attempt.unread = _observed(observation, tokenizer)


def _report(attempts: Sequence[Attempt]) -> Scorecard:
    turns = sum(attempt.turns for attempt in attempts)
    rights, tries = defaultdict[str, int](int), Counter[str]()
    for attempt in attempts:
        fact = attempt.task_id.split("/")[1]
        rights[fact] += attempt.success
        tries[fact] += 1
    return Scorecard(
        episodes=len(attempts),
        success=sum(rights.values()) / len(attempts),
        valid=sum(attempt.valid_turns for attempt in attempts) / turns,
        turns=turns / len(attempts),
        by_fact={fact: (rights[fact], count) for fact, count in tries.items()},
    )
