"""The env doctor: plays an environment in many ways and reports what would spoil a training run.

`check_env("game/hanoi-easy")` returns a Diagnosis; the command is `turnwise check-env game/hanoi-easy`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from turnwise.envs import check_measures, check_probes, check_seats
from turnwise.envs.base import Env
from turnwise.envs.check_play import Outcome, OutOfTimeError, Patient, Verdict
from turnwise.envs.faults import EpisodeError
from turnwise.envs.process import EnvSource
from turnwise.envs.workers import Workers
from turnwise.envs.wrappers.named import Choice, check_wrappers
from turnwise.waiting import finish
from turnwise.words import counted

_SECONDS, _PROGRAM_SECONDS = 10.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found: `Finding(check="reward range", verdict="defect", text="seed 0: reward 2.0 ...")`."""

    check: str
    verdict: Verdict
    text: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """All findings about one environment. Notes are informative; only defects make it unfit."""

    env: str
    findings: list[Finding]

    @property
    def defects(self) -> list[Finding]:
        """The findings that must be fixed."""
        return [finding for finding in self.findings if finding.verdict == "defect"]

    @property
    def ok(self) -> bool:
        """Whether there are no defects."""
        return not self.defects

    @property
    def conclusion(self) -> str:
        """The report in one line."""
        count = len(self.defects)
        return f"{self.env}: " + (counted(count, "defect") if count else "fit for training")

    def __str__(self) -> str:
        width = max(len(finding.check) for finding in self.findings)
        lines = [f"{finding.check:{width}}  {finding.verdict:6}  {finding.text}" for finding in self.findings]
        return "\n".join([*lines, self.conclusion])


def check_env(
    env: str | Callable[..., Env],
    *,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Choice] = (),
    seeds: int = 5,
    turns: int = 30,
    deadline: float | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Check an environment on `seeds` seeds; no reset or step may take longer than `deadline` seconds.

    Without a deadline that is 10 s; a program of the user's has 60 s, because it may import and load a lot first.

    `seconds` limits the check itself: a slow environment is played less, and a note says so. `progress`
    receives the name of each check before it starts.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    source = EnvSource(env=env, kwargs=kwargs or {}, wrappers=wrappers)
    check_wrappers(wrappers)
    spec = source.spec  # an unknown id raises before anything is played
    deadline = deadline or (_PROGRAM_SECONDS if spec is not None and spec.runs_program else _SECONDS)
    with check_probes.keep_global_generators():
        return finish(_examine(source, seeds, turns, deadline, seconds, progress))


async def _examine(
    source: EnvSource,
    seeds: int,
    turns: int,
    deadline: float,
    seconds: float | None,
    progress: Callable[[str], None] | None,
) -> Diagnosis:
    # Always in a thread, whatever the environment asks for: a hang must not stop the doctor, and changes to the
    # global generators of this process must be visible.
    workers = Workers(execution="thread")
    patient = Patient(source=source, workers=workers, seeds=seeds, turns=turns, deadline=deadline)
    if seconds is not None:
        patient.ends = time.perf_counter() + seconds
    await _build_once(patient)
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        if progress is not None:
            progress(name)
        patient.grant_time()
        try:
            verdict, text = await check(patient)
        except OutOfTimeError:
            verdict, text = "note", "not finished in time; nothing wrong so far"
        except EpisodeError as error:
            verdict, text = "defect", f"hangs: {error}" if error.timed_out else str(error)
        findings.append(Finding(check=name, verdict=verdict, text=text))
        if name == "returns" and verdict == "defect":
            break  # nothing else can be learned from an environment that cannot be played
    if patient.hurried:
        findings.append(Finding(check="time", verdict="note", text=_hurry(patient, seconds, findings)))
    return Diagnosis(env=source.name, findings=findings)


def _hurry(patient: Patient, seconds: float | None, findings: list[Finding]) -> str:
    unfinished = [each.check for each in findings if each.text.startswith("not finished")]
    left = f"; not finished: {', '.join(unfinished)}" if unfinished else ""
    pace = f", because a step takes {patient.seconds / patient.calls:.2g} s" if patient.calls else ""
    return f"cut short after {seconds:g} s{pace}: fewer seeds and turns were played{left}"


async def _build_once(patient: Patient) -> None:
    """An environment that rejects its arguments, or lacks a package, is not defective: the caller must fix that."""
    try:
        host = await patient.workers.open(patient.source, deadline=patient.deadline)
    except EpisodeError as error:
        raise ValueError(f"{patient.source.name} cannot be built: {error}") from error
    with suppress(EpisodeError):  # the first check closes another one, and reports it
        await host.close(deadline=patient.deadline)


CHECKS: dict[str, Callable[[Patient], Awaitable[Outcome]]] = {
    "returns": check_probes.returns,
    "determinism": check_probes.determinism,
    "global generators": check_probes.global_generators,
    "reset leaks": check_probes.reset_leaks,
    "snapshots": check_probes.snapshots,
    "oracle": check_probes.oracle,
    "zero actions": check_probes.zero_actions,
    "hostile actions": check_probes.hostile_actions,
    "seats": check_seats.seats,
    "endings": check_measures.endings,
    "reward range": check_measures.reward_range,
    "group variance": check_measures.group_variance,
    "latency": check_measures.latency,
    "growth": check_measures.growth,
}
"""In the order in which they run and are shown; measurements come last, when much has been played."""
