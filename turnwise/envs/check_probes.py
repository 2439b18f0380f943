"""The doctor's checks of behaviour. Each plays the environment in one way and returns a verdict and a sentence."""

from __future__ import annotations

import random
import re
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

from turnwise.envs.base import Env
from turnwise.envs.check_play import Choose, Moment, Outcome, Patient
from turnwise.envs.faults import EpisodeError
from turnwise.envs.workers import Host
from turnwise.words import counted

_ORACLE_TURNS = 2000
_HUGE_OBSERVATION = 100_000
_SAMPLES, _SAMPLE_SECONDS = 300, 1.0
_GIBBERISH = "@@ neither an action nor an answer @@"
_ZERO = re.compile(r"(?<![\w.])0(?![\w.])")
_HOSTILE = {
    "empty": "",
    "1 MB of letters": "a" * 1_000_000,
    "1 MB of open tags": "<answer>" * 125_000,
    "1 MB of brackets": r"\boxed{" * 140_000,
    "control characters": "".join(map(chr, range(32))) + "\x7f\x1b[2J",
    "unclosed tag": "<search>what <answer>",
    "nested tags": "<answer><answer><search>x</answer></search></answer>",
    "a lone surrogate": "\ud800",
    "a digit that is not a number": "\u00b2",
    "a number of 5000 digits": "9" * 5000,
    "the same in a box": rf"\boxed{{{'9' * 5000}}}",
    "infinity": r"\boxed{1e999} inf nan",
    "broken JSON": '<tool_call>{"name": ["</tool_call>',
}


@contextmanager
def keep_global_generators() -> Iterator[None]:
    """Restores Python's and numpy's global generators afterwards."""
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy and numpy_state is not None:
            numpy.random.set_state(numpy_state)


def _global_state() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), repr(numpy.random.get_state(legacy=False)["state"]["key"].tolist()) if numpy else None


def _disturb(seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


async def returns(patient: Patient) -> Outcome:
    """Random and constant players get only well-formed answers, and closing twice is safe."""
    patient.can_sample = await patient.ask(_can_sample)
    for seed in range(patient.seeds):
        await patient.play_new(patient.random_player(seed), seed)
        await patient.play_new(_constant_player(patient), seed)
    async with patient.instance() as host:
        await host.reset(None, None, deadline=patient.deadline)
        await host.call(methodcaller("close"), deadline=patient.deadline)
    if not patient.can_sample:
        return "note", "well-formed; it has no sample_random_action(), so the checks used plain words"
    return "pass", f"well-formed in {counted(sum(len(seen.moments) for seen in patient.seen), 'step')}"


def _can_sample(env: Env) -> bool:
    return type(getattr(env, "unwrapped", env)).sample_random_action is not Env.sample_random_action


def _constant_player(patient: Patient) -> Choose:
    first, said = patient.random_player("constant"), list[str]()

    async def choose(host: Host) -> str:
        if not said:
            said.append(await first(host))
        return said[0]

    return choose


async def determinism(patient: Patient) -> Outcome:
    """Equal seeds give equal episodes, with another instance in between, and whatever the global generators do."""
    for seed in range(patient.seeds):
        _disturb(1)
        alone = await patient.play_new(patient.random_player(seed), seed)
        async with patient.instance() as host, patient.instance() as neighbour:
            await patient.reset(neighbour, seed + 1000)
            crowded = await patient.play(host, _disturbed(patient, seed, neighbour), seed)
        if (difference := alone.difference(crowded)) is not None:
            return "defect", f"equal seeds, unequal episodes: {difference}"
    return "pass", f"equal episodes for equal seeds ({counted(patient.seeds, 'seed')}, two instances interleaved)"


def _disturbed(patient: Patient, seed: int, neighbour: Host) -> Choose:
    """The random player of `seed`; before each turn another instance moves and the global generators are reseeded."""
    own, others = patient.random_player(seed), patient.random_player("neighbour")
    ended = False

    async def choose(host: Host) -> str:
        nonlocal ended
        if not ended:
            ended = (await patient.step(neighbour, await others(neighbour))).over
        _disturb(random.randrange(2, 10**6))
        return await own(host)

    return choose


async def global_generators(patient: Patient) -> Outcome:
    """Playing leaves Python's and numpy's global generators unchanged."""
    before = _global_state()
    await patient.play_new(patient.random_player(0), 0)
    if _global_state() != before:
        return "defect", "playing changes the global random generator; draw from self.rng instead"
    return "pass", "untouched"


async def reset_leaks(patient: Patient) -> Outcome:
    """The second episode of an instance equals its first."""
    for seed in range(patient.seeds):
        async with patient.instance() as host:
            first = await patient.play(host, patient.random_player(seed), seed)
            await patient.play(host, patient.random_player("other"), seed + 1, turns=2)
            again = await patient.play(host, patient.random_player(seed), seed)
        if (difference := first.difference(again)) is not None:
            return "defect", f"the state of an episode leaks into the next: {difference}"
    return "pass", "an instance that has been played starts fresh"


async def snapshots(patient: Patient) -> Outcome:
    """`set_state(get_state())` continues exactly as before, in the same instance and in another."""
    try:
        differing = [seed for seed in range(patient.seeds) if await _continues_differently(patient, seed)]
    except EpisodeError as error:
        if str(error).startswith("NotImplementedError"):
            return "note", "no snapshots"
        raise
    if differing:
        return "defect", f"after set_state(get_state()) the episode continues differently: seeds {differing[:10]}"
    return "pass", "episodes continue exactly, in another instance too"


async def _continues_differently(patient: Patient, seed: int) -> bool:
    async with patient.instance() as host, patient.instance() as other:
        begun = await patient.play(host, patient.random_player(seed), seed, turns=1)
        if begun.moments[-1].over:
            await patient.reset(host, seed)
        state = await host.call(methodcaller("get_state"), deadline=patient.deadline)
        await patient.reset(other, seed + 1)
        continuations = [await patient.go_on(host, patient.random_player("on"))]
        for target in (host, other):
            await target.call(methodcaller("set_state", state), deadline=patient.deadline)
            continuations.append(await patient.go_on(target, patient.random_player("on")))
    return any(continuation != continuations[0] for continuation in continuations)


async def oracle(patient: Patient) -> Outcome:
    """The scripted expert succeeds or draws with itself on every seed, and calling it changes nothing."""
    if not await patient.ask(methodcaller("has_oracle")):
        return "note", "no oracle"
    played = [await patient.play_new(_expert(patient), seed, turns=_ORACLE_TURNS) for seed in range(patient.seeds)]
    failed = [str(transcript.seed) for transcript in played if not (transcript.success or transcript.drawn)]
    if failed:
        return "defect", f"the oracle fails on {len(failed)} of {len(played)} seeds: {', '.join(failed[:10])}"
    turns = statistics.mean(len(transcript.moments) for transcript in played)
    return "pass", f"success on {counted(len(played), 'seed')}, {turns:.1f} turns on average"


def _expert(patient: Patient) -> Choose:
    async def choose(host: Host) -> str:
        action, again = [await host.oracle(deadline=patient.deadline) for _ in range(2)]
        if action != again:
            raise EpisodeError(f"oracle() must change nothing, but two calls gave {action!r}, then {again!r}")
        return action

    return choose


async def zero_actions(patient: Patient) -> Outcome:
    """The action 0 is understood as well as 1: `if not number` is a common mistake."""
    found = [await _zero_is_lost(patient, seed) for seed in range(patient.seeds)] if patient.can_sample else []
    judged = [lost for lost in found if lost is not None]
    if judged and all(judged):
        return "defect", "the action 0 is answered like gibberish, others are not; test `is None`, not truth"
    return "pass", "0 is understood" if judged else "no action is 0"


async def _zero_is_lost(patient: Patient, seed: int) -> bool | None:
    """Whether every zero action fails and others do not; None if the first state offers no zero action."""
    async with patient.instance() as host:
        await patient.reset(host, seed)
        actions = sorted(await _sample(patient.random_player(f"zero {seed}"), host))
        zeros = [action for action in actions if _ZERO.search(action)][:3]
        others = [action for action in actions if not _ZERO.search(action)][:3]
        if not zeros or not others:
            return None
        gibberish = await _answer(patient, host, seed, _GIBBERISH)
        lost = {action: _lost(await _answer(patient, host, seed, action), gibberish) for action in zeros + others}
    return all(lost[action] for action in zeros) and not any(lost[action] for action in others)


async def _sample(choose: Choose, host: Host) -> set[str]:
    """Many different actions: enough to include a zero if there is one, as far as time allows."""
    actions, end = set[str](), time.perf_counter() + _SAMPLE_SECONDS
    for _ in range(_SAMPLES):
        actions.add(await choose(host))
        if time.perf_counter() > end:
            break
    return actions


async def _answer(patient: Patient, host: Host, seed: int, action: str) -> Moment:
    await patient.reset(host, seed)
    return await patient.step(host, action)


def _lost(answer: Moment, gibberish: Moment) -> bool:
    """Whether the action was not understood: the environment says so, or answers as it does gibberish."""
    return not answer.info.get("valid", True) or _shape(answer) == _shape(gibberish)


def _shape(answer: Moment) -> tuple[str, float, bool, bool]:
    observation = answer.observation.replace(answer.action, "...")  # some answers quote the action
    return observation, answer.reward, answer.terminated, answer.truncated


async def hostile_actions(patient: Patient) -> Outcome:
    """No text, however long or broken, raises or hangs."""
    longest = 0
    async with patient.instance() as host:
        for name, action in _HOSTILE.items():
            try:
                moment = await _answer(patient, host, 0, action)
            except EpisodeError as error:
                return "defect", f"{name}: {'hangs: ' if error.timed_out else ''}{error}"
            longest = max(longest, len(moment.observation))
    if longest > _HUGE_OBSERVATION:
        return "note", f"survives them, but echoes: an observation of {longest:,} characters"
    return "pass", f"{len(_HOSTILE)} texts, nothing raised"
