"""Checks of a recipe's data sources that need only the recipe."""

from __future__ import annotations

from collections.abc import Iterator

from turnwise.judges.judge_kinds import check_judge, gives_of, only_compares
from turnwise.ops.facts import Need
from turnwise.outside import is_unread
from turnwise.recipe.ingredients import SourceChoice
from turnwise.recipe.schema import Recipe
from turnwise.sources.cursor import sampling_plan
from turnwise.sources.making import shares
from turnwise.sources.samplers import make_sampler


def check_source(recipe: Recipe) -> None:
    """Refuse unknown or incompatible sources; the message names the keys and the fix."""
    if not is_unread(recipe.source.tasks.kind):
        make_sampler(recipe.source.tasks.kind, recipe.source.tasks.options)
    if recipe.judge is not None and not is_unread(recipe.judge.kind):
        check_judge(recipe.judge.kind, recipe.judge.options)
    if is_unread(recipe.algorithm.sampling.kind):
        return
    if refusal := next(_refusals(recipe), None):
        raise ValueError(refusal)
    shares(recipe)


def _refusals(recipe: Recipe) -> Iterator[str]:
    source, row, plan = recipe.source, recipe.algorithm, sampling_plan(recipe.algorithm)
    plays = [part.plays for part in source.mix]
    if (plan.refill or plan.extra) and row.max_lag:
        what, fix = ("", "=group") if plan.extra else (".refill", ".refill=null")
        yield (
            f"sampling{what} looks at a step's episodes before it plays more, and algorithm.max_lag={row.max_lag} "
            f"plays ahead; set algorithm.max_lag=0 or algorithm.sampling{fix}"
        )
    judge = recipe.judge
    paid = judge is not None and not is_unread(judge.kind) and gives_of(judge.options) != "wins"
    if judge is not None and paid and plan.tries + source.expert < 2 and only_compares(judge.kind):
        yield (
            f"judge={judge.kind} only compares answers, and {row.name} makes one try at each task, so every reward "
            "would be 0.5; use judge.kind=chat-score, which grades answers one by one, or several tries: algorithm=grpo"
        )
    if recipe.stage == "preference" and not source.prefers:
        yield "stage is preference, but source.mix has more than preferences; leave stage out: the source decides it"
    if plays.count(True) > 1:
        yield "source.mix has played more than once; give one the weight of all"
    if plays and not any(plays) and (source.tasks != SourceChoice().tasks or source.expert):
        key = "expert" if source.expert else "tasks"
        yield f"source.{key} is about tasks that are played, but source.mix plays none; add played to it"
    is_mixed, imitates = (
        any(plays) and not all(plays),
        [part.kind for part in row.text_losses if Need.TEXTS in row.needs],
    )
    if imitates and not is_mixed:
        yield (
            f"regularizers={imitates[0]} learns from text beside what is played; add some: "
            "source.mix=[played, {kind: demonstrations, count: 16}], or {kind: text, path: FILE}"
        )
    if imitates and any(part.compares for part in source.mix):
        yield f"regularizers={imitates[0]} would imitate the worse answers of preferences too; use chats or text"
    unknown = "source.expert" if source.expert else "source.mix" if is_mixed and not imitates else ""
    if unknown and Need.SAMPLER in row.needs:
        yield (
            f"{unknown} adds tokens whose sampler is unknown, and {row.name} compares every token with its sampler; "
            "set ratio.against=old and mismatch=none, or leave them out"
        )
