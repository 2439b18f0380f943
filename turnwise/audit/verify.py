"""Checks a run's recorded trajectories: training used what was sampled, by the policy that sampled it.

tokens     prompts are what the template gives and continue what was there; the sampled ids spell the action
masks      the tokens that the step trained on are those that the policy wrote, by the recorded texts
versions   no turn is staler than the recipe allows
gap        sampler and learner agree on log-probs, under the weights that sampled (where these are kept)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.algorithm import Need
from turnwise.audit.masks import Trained, check_masks, trained_by_batch, trained_by_rows
from turnwise.audit.recorded import Recording
from turnwise.batch import Scores
from turnwise.envs.check import Finding
from turnwise.learn.batches import score_in_parts
from turnwise.learn.scoring import replay
from turnwise.policy.text import TextPolicy
from turnwise.recipe.seating import recipe_of, trained_policies
from turnwise.rollout.packing import pack
from turnwise.rollout.token_checks import Gap, check_ledger, check_logprob_gap
from turnwise.runs.checkpoints import policy_folder
from turnwise.runs.disk import RunFolderError
from turnwise.runs.ledger import read_rows
from turnwise.train.setup import load_policy, make_renderer
from turnwise.types import POLICY, Group, Trajectory

CHECKS = ("tokens", "masks", "versions", "gap")
TOLERANCE = {"fp32": 1e-3, "bf16": 0.05}
"""Mean |mu − logprob| that a turn may have: rounding gives about 1e-6 and 1e-2, stale weights more than this."""


@dataclass(frozen=True, kw_only=True)
class StepCheck:
    """What the checks found in one step."""

    step: int
    episodes: int = 0
    tokens: int = 0
    """Sampled tokens."""
    context: int = 0
    """The others, which are only read."""
    findings: tuple[Finding, ...] = ()
    gap: Gap | None = None

    @property
    def defects(self) -> list[Finding]:
        """The findings that are defects."""
        return [finding for finding in self.findings if finding.verdict == "defect"]

    @property
    def ok(self) -> bool:
        """Whether there is no defect."""
        return not self.defects

    def as_row(self) -> dict[str, Any]:
        """The same as plain JSON."""
        findings = {finding.check: {"verdict": finding.verdict, "text": finding.text} for finding in self.findings}
        counts = {"step": self.step, "ok": self.ok, "episodes": self.episodes, "tokens": self.tokens}
        return {**counts, "checks": findings, "gap": None if self.gap is None else asdict(self.gap)}


def verify_run(folder: Path, *, steps: Sequence[int] = (), last: int | None = None) -> Iterator[StepCheck]:
    """Check the recorded steps: those named, the last `last`, or all; a folder without any is refused."""
    recording = Recording.open(folder)
    recording.require_ledgers(steps)
    chosen = list(steps) or recording.run.rollout_steps()[-(last or 0) :]
    verifiers = {name: Verifier(recording, name) for name in trained_policies(recording.recipe)}
    return (_check_all(verifiers, step) for step in chosen)


def _check_all(verifiers: Mapping[str, Verifier], step: int) -> StepCheck:
    """The checks of every learning policy; with several, each finding names its policy."""
    checks = {name: verifier.check(step) for name, verifier in verifiers.items()}
    if len(checks) == 1:
        return next(iter(checks.values()))
    findings = [
        replace(each, check=f"{name}/{each.check}") for name, check in checks.items() for each in check.findings
    ]
    gaps = [check.gap for check in checks.values() if check.gap is not None]
    return StepCheck(
        step=step,
        episodes=sum(check.episodes for check in checks.values()),
        tokens=sum(check.tokens for check in checks.values()),
        context=sum(check.context for check in checks.values()),
        findings=tuple(findings),
        gap=max(gaps, key=lambda gap: gap.worst, default=None),
    )


class Verifier:
    """Checks steps of one policy of a recording; holds one version of the policy at a time."""

    def __init__(self, recording: Recording, name: str = POLICY) -> None:
        self._recording, self._name, self._recipe = recording, name, recipe_of(recording.recipe, name)
        self._version, self._policy = 0, self._load(recording.origin(name))
        self._renderer = make_renderer(self._recipe, self._policy)

    def check(self, step: int) -> StepCheck:
        """All checks on one step."""
        try:
            groups = self._recording.groups_of(self._name, step)
        except RunFolderError as error:
            return StepCheck(step=step, findings=(Finding(check="tokens", verdict="defect", text=str(error)),))
        sound, played = _sound(groups), [trajectory for group in groups for trajectory in group.trajectories]
        gap, finding = self._gap(sound, step)
        findings = (
            _judged("tokens", lambda: self._check_tokens(groups)),
            _judged("masks", lambda: check_masks(played, self._renderer, self._trained(sound, step))),
            _judged("versions", lambda: self._check_versions(groups, step)),
            finding,
        )
        turns = [turn for trajectory in played for turn in trajectory.turns]
        return StepCheck(
            step=step,
            episodes=len(played),
            tokens=sum(len(turn.sampled_ids) for turn in turns),
            context=sum(len(turn.prompt_ids) for turn in turns),
            findings=findings,
            gap=gap,
        )

    def _check_tokens(self, groups: Sequence[Group]) -> None:
        for group in groups:
            for trajectory in group.trajectories:
                if trajectory.seed is not None:  # files may contain more than observations
                    check_ledger(trajectory, self._renderer)

    def _trained(self, sound: Sequence[Group], step: int) -> list[Trained]:
        """What was trained on: by the step's token ledger if kept, and by packing its episodes again."""
        trained = [trained_by_batch(pack(sound, policy=self._name))] if sound else []
        file = self._recording.run.tokens_file(step)
        if not file.exists():
            return trained
        others = self._of_others(step)
        written = trained_by_rows(row for row in read_rows(file) if row.get("id") not in others)
        return trained if written is None else [*trained, written]

    def _of_others(self, step: int) -> set[str]:
        """The trajectories from which other policies learn."""
        names = [name for name in trained_policies(self._recording.recipe) if name != self._name]
        groups = [group for name in names for group in self._recording.groups_of(name, step)]
        return {trajectory.id for group in groups for trajectory in group.trajectories}

    def _check_versions(self, groups: Sequence[Group], step: int) -> None:
        newest = step - 1
        oldest = max(newest - self._recipe.algorithm.max_lag, 0)
        for group in groups:
            for trajectory in group.trajectories:
                for version in sorted(_versions(trajectory)):
                    if not oldest <= version <= newest:
                        raise ValueError(
                            f"trajectory {trajectory.id!r} has a turn of version {version}, but step {step} may learn "
                            f"from versions {oldest} to {newest} (algorithm.max_lag)"
                        )

    def _gap(self, sound: Sequence[Group], step: int) -> tuple[Gap | None, Finding]:
        if Need.PREVIOUS_POLICY in self._recipe.algorithm.needs:
            return None, Finding(check="gap", verdict="note", text="not judged: the sampler mixes two policies")
        by_version = _by_version(sound)
        if not by_version:
            return None, Finding(check="gap", verdict="note", text="no episode has log-probs of a sampler")
        gaps: list[Gap] = []
        for version, groups in sorted(by_version.items()):
            if not self._find_weights(version):
                continue
            try:
                gaps.append(self._measure(groups, version, step))
            except ValueError as error:
                return None, Finding(check="gap", verdict="defect", text=str(error))
        if not gaps:
            return None, Finding(check="gap", verdict="note", text="the weights that sampled are not kept")
        worst = max(gaps, key=lambda gap: gap.worst)
        return worst, self._describe(worst)

    def _describe(self, gap: Gap) -> Finding:
        text = f"mean |mu − logprob| is {gap.mean:.2g}, at worst {gap.worst:.2g} ({gap.place})"
        if reason := self._unlike:
            return Finding(check="gap", verdict="note", text=f"{text}; not judged: {reason}")
        return Finding(check="gap", verdict="pass", text=text)

    @property
    def _unlike(self) -> str:
        """Why sampler and learner may differ by more than rounding; empty if they may not."""
        if self._recipe.algorithm.max_lag > 0:  # a turn may be sampled by weights between two versions
            return "weights change during a turn"
        precision = self._recipe.engine.precision
        return "" if precision == "same" else f"the sampler's weights are rounded (engine.precision={precision})"

    def _measure(self, groups: Sequence[Group], version: int, step: int) -> Gap:
        batch = pack(groups, policy=self._name).to(self._policy.model.device)
        tolerance = math.inf if self._unlike else TOLERANCE[self._recipe.model.dtype]
        row, score = self._recipe.algorithm, partial(self._policy.score, temperature=self._recording.temperature(step))
        logprob_T = score_in_parts(
            lambda part: score(part, routing=replay(row, part)), batch, tokens=self._recipe.train.micro_tokens
        )
        return check_logprob_gap(batch, Scores(logprob_T=logprob_T), tolerance=tolerance, version=version)

    def _find_weights(self, version: int) -> bool:
        """Load the policy of a version; False if it is not kept."""
        if version == self._version:
            return True
        checkpoint = self._recording.checkpoint(version)
        if checkpoint is None and version:
            return False
        source = self._recording.origin(self._name) if checkpoint is None else policy_folder(checkpoint, self._name)
        self._version, self._policy = version, self._load(source)
        return True

    def _load(self, source: str | Path) -> TextPolicy:
        """Load a checkpoint, with any adapter merged in."""
        return load_policy(self._recipe, source, frozen=True)


def _judged(check: str, run: Callable[[], None]) -> Finding:
    try:
        run()
    except ValueError as error:
        return Finding(check=check, verdict="defect", text=str(error))
    return Finding(check=check, verdict="pass", text="")


def _sound(groups: Sequence[Group]) -> list[Group]:
    """The groups without failed episodes, which are never trained on."""
    kept = [
        Group(id=group.id, trajectories=[t for t in group.trajectories if not t.stop.is_failure]) for group in groups
    ]
    return [group for group in kept if group.trajectories]


def _versions(trajectory: Trajectory) -> set[int]:
    return {turn.policy_version for turn in trajectory.turns if turn.logprobs is not None and turn.sampled_ids}


def _by_version(groups: Sequence[Group]) -> dict[int, list[Group]]:
    """Trajectories that one version sampled from beginning to end, by that version."""
    found: defaultdict[int, list[Group]] = defaultdict(list)
    for group in groups:
        for trajectory in group.trajectories:
            versions = _versions(trajectory)
            if len(versions) == 1:
                found[versions.pop()].append(Group(id=trajectory.id, trajectories=[trajectory]))
    return dict(found)
