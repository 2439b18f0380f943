"""Hostile actions to every registered environment that works here: each gets an answer in the contract's form, in time.

Half of the actions are texts that mean nothing or too much; the other half are the expert's, or what the environment
itself calls an action, with something changed, so that episodes also get beyond their first turn.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import methodcaller

from tests.torture.tally import Tally, shares, shortened
from turnwise.envs.base import Env
from turnwise.envs.check_probes import _HOSTILE
from turnwise.envs.faults import EpisodeError
from turnwise.envs.process import EnvSource
from turnwise.envs.registry import specs
from turnwise.envs.workers import Host, Workers
from turnwise.waiting import finish

COUNT = 26_000
MEMBERS = (
    *("rg/basic_arithmetic", "rg/word_ladder", "rg/countdown", "gem/game:Mastermind-v0-hard", "gym/Taxi-v4"),
    *("gem/game:Minesweeper-v0-easy", "minigrid/MiniGrid-Empty-5x5-v0", "textarena/ConnectFour-v0"),
)
"""More of each family than its example."""
_DEADLINE = 60.0
"""Seconds that one answer may take on the busiest of machines; an idle one takes a thousandth of it."""
_OPENING = 120.0
_FORMS = (
    *("<tool_call>@</tool_call>", '<tool_call>{"name": "python", "arguments": @}</tool_call>', "<search>@</search>"),
    *("<answer>@</answer>", r"\boxed{@}", "```python\n@\n```", "<think>@", "[@]", "@\n@", "<|im_end|>@"),
)
"""Where environments and tools look for an action; the sign stands for it."""
_WORDS = (
    *("-1", "0", "1e999", "nan", "-0", "1_000", "０１", "²", "9" * 400, "0x10", "1/0", "[]", "{}", "null", "true"),
    *("", " ", "\n", "\0", "\x1b[2J", "\u202e", "\ud800", "\udfff", "ﷺ", "%s%n", "{0.__class__}", "../../etc/passwd"),
    *("$(id)", "__import__('os')", "up", "UP", "look", "inventory", "A", "yes", "quit", "restart", "save x", "a 1"),
)
_DEPTHS = (10, 1000, 50_000)


@dataclass(kw_only=True)
class Playing:
    """An episode under attack."""

    host: Host
    seed: int
    sources: list[Callable[[Env], str]] = field(default_factory=list[Callable[[Env], str]])
    """What names actions here: the expert, the environment's own random actions."""
    observation: str = ""
    over: bool = True

    async def reset(self) -> None:
        """The next episode."""
        self.seed += 1
        self.observation, _ = await self.host.reset(self.seed, None, deadline=_OPENING)
        self.over = False


def campaign(*, count: int = COUNT, seed: int = 0, envs: Sequence[EnvSource] | None = None) -> Tally:
    """Send `count` hostile actions, an equal share to each environment."""
    return finish(_attack(count, random.Random(seed), envs))


async def _attack(count: int, rng: random.Random, envs: Sequence[EnvSource] | None) -> Tally:
    tally, workers = Tally(), Workers()
    try:
        chosen = list(envs) if envs is not None else await offline(workers)
        for source, share in zip(chosen, shares(count, len(chosen)), strict=True):
            await _attack_one(source, share, rng, tally, workers)
    finally:
        workers.close()
    return tally


async def offline(workers: Workers) -> list[EnvSource]:
    """The registered environments, and members of families, that can be built and reset on this machine."""
    names = [*(spec.example or spec.id for spec in specs()), *MEMBERS]
    return [source for name in names if await _works(source := EnvSource(env=name), workers)]


async def _works(source: EnvSource, workers: Workers) -> bool:
    """Whether it needs nothing that is not here: a package, a file of questions, a hub."""
    try:
        host = await workers.open(source, deadline=_OPENING)
        await host.reset(0, None, deadline=_OPENING)
        await host.close(deadline=_OPENING)
    except EpisodeError:
        return False
    return True


async def _attack_one(source: EnvSource, count: int, rng: random.Random, tally: Tally, workers: Workers) -> None:
    playing, action = None, ""
    for _ in range(count):
        try:
            playing = playing or await _open(source, rng, workers)
            if playing.over:
                await playing.reset()
            action = await _choose(playing, rng)
            tally.note(await _step(playing, action))
        except Exception as error:  # the edge of an episode lets one kind through; here even that one is a failure
            place = f"{source.name}, seed {playing.seed}" if playing else source.name
            tally.fail(f"{place}, {shortened(action)}: {type(error).__name__}: {error}")
            if playing is not None:
                playing.host.leave()
            playing = None
    if playing is not None:
        await playing.host.close(deadline=_DEADLINE)


async def _open(source: EnvSource, rng: random.Random, workers: Workers) -> Playing:
    host = await workers.open(source, deadline=_OPENING)
    playing = Playing(host=host, seed=rng.randrange(10**6))
    await playing.reset()
    playing.sources = [job for job in _JOBS if await _ask(playing, job) is not None]
    return playing


async def _step(playing: Playing, action: str) -> str:
    """Play one action; returns how the episode stands then, and raises where the answer is not as it must be."""
    observation, *_, terminated, truncated, _ = await playing.host.step(action, deadline=_DEADLINE)
    playing.observation, playing.over = observation, terminated or truncated
    return "ended" if playing.over else "went on"


async def _choose(playing: Playing, rng: random.Random) -> str:
    """The next action: of all kinds, more often one that may be understood."""
    if playing.sources and rng.random() < 0.6:
        action = await _ask(playing, rng.choice(playing.sources)) or ""
        return action if rng.random() < 0.4 else _mutated(action, rng)
    kinds: list[Callable[[], str]] = [
        lambda: rng.choice(list(_HOSTILE.values())),
        lambda: _characters(rng),
        lambda: rng.choice(_FORMS).replace("@", rng.choice(_WORDS)),
        lambda: rng.choice(_FORMS).replace("@", _deep(rng)),
        lambda: _mutated(playing.observation[:2000], rng),
    ]
    return rng.choice(kinds)()


async def _ask(playing: Playing, job: Callable[[Env], str]) -> str | None:
    """What the environment would do; None where it cannot say, as in a position from which nobody wins."""
    try:
        return await playing.host.call(job, deadline=_DEADLINE)
    except EpisodeError:
        return None


_JOBS: tuple[Callable[[Env], str], ...] = (methodcaller("oracle"), methodcaller("sample_random_action"))


def _mutated(text: str, rng: random.Random) -> str:
    """The text with one to three changes."""
    for _ in range(rng.randint(1, 3)):
        place, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        text = rng.choice(
            (
                text[:place] + text[end:],
                text[:place] + rng.choice(_WORDS) + text[place:],
                text[:place] + rng.choice(_WORDS) + text[end:],
                text[:end] + text[place:],
                text.swapcase(),
                text[::-1],
                text * rng.choice((2, 50)),
                "".join(rng.choice(_WORDS) if letter.isdigit() else letter for letter in text),
                rng.choice(_FORMS).replace("@", text),
            )
        )[:1_000_000]
    return text


def _characters(rng: random.Random) -> str:
    return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x110000)))) for _ in range(rng.randrange(200)))


def _deep(rng: random.Random) -> str:
    """JSON and the like, nested deeper than anything that reads it recursively can follow."""
    depth = rng.choice(_DEPTHS)
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ("(", ")"), ("{", "}"), ("<answer>", "</answer>")))
    inside = json.dumps({"name": rng.choice(_WORDS), "arguments": {rng.choice(_WORDS): rng.choice(_WORDS)}})
    return opening * depth + inside + closing * rng.choice((0, 1, depth))
