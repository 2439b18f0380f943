"""Random requests that have a plan (PDoctor's Algorithm 1), and others that ask for the same."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from turnwise.envs.plans.orderings import Constraints
from turnwise.envs.plans.plan_solvers import BuiltInSolver, Durations, Solver
from turnwise.envs.plans.sentence_words import JOINTS
from turnwise.envs.plans.sentences import (
    RELATIVE_FORMS,
    TIME_FORMS,
    Clause,
    Form,
    Paragraph,
    Relative,
    Sentence,
    Things,
    TimeOfDay,
    constraints_of,
)

OPENS, CLOSES, GRID = 8 * 60, 22 * 60, 30
"""Requests with times are about one day, in steps of half an hour."""
_TRIES = 8
_TIMED = 0.25
"""How often an object is a time of day, in requests with times."""


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """How rich sentences are: the forms of clauses, and how often there is more than the simplest."""

    forms: tuple[Form, ...] = tuple(Form)
    relative: float = 0.25
    """How often things have a relative clause."""
    lists: float = 0.3
    """How often another action joins a list."""
    longer: float = 0.3
    """How often another clause joins a sentence."""

    @property
    def time_forms(self) -> tuple[Form, ...]:
        """The forms whose object may be a time."""
        return tuple(form for form in self.forms if form in TIME_FORMS)


GRAMMARS = {"full": Grammar(), "simple": Grammar(forms=(Form.VERB,), relative=0.0, lists=0.0, longer=0.0)}
"""All of the grammar, or only sentences such as `a precedes b`."""


def draw_durations(rng: Random, count: int) -> dict[int, int]:
    """Half an hour to an hour and a half for each action."""
    return {action: rng.choice((30, 60, 90)) for action in range(count)}


def synthesise(
    rng: Random,
    count: int,
    *,
    sentences: int,
    durations: Durations | None = None,
    grammar: Grammar = GRAMMARS["full"],
    solver: Solver | None = None,
) -> Paragraph:
    """Up to `sentences` sentences about `count` actions; with durations some of them have times.

    A sentence joins if the request still has a plan; after some failures the request is complete. There is at least
    one sentence, unless every try at the first one failed.
    """
    solver, paragraph = solver or BuiltInSolver(), Paragraph()
    for _ in range(sentences):
        drafts = (Sentences(rng, grammar, timed=durations is not None).draw(count) for _ in range(_TRIES))
        longer = ((*paragraph, draft) for draft in drafts)
        found = next((each for each in longer if _has_plan(each, count, durations, solver)), None)
        if found is None:
            break
        paragraph = found
    return paragraph


def same_demands(rng: Random, wanted: Constraints) -> Paragraph:
    """Another request with the same closure: each constraint that follows from no others, as a clause, in any order."""
    clauses = [_clause_of(rng, Things(actions=pair[:1]), Things(actions=pair[1:])) for pair in _direct(wanted)]
    for bounds, earlier in ((wanted.ends_by, True), (wanted.starts_from, False)):
        clauses += [
            Clause(
                form=rng.choice(TIME_FORMS),
                earlier=earlier,
                subject=Things(actions=(action,)),
                object=TimeOfDay(minute=minute),
            )
            for action, minute in sorted(bounds)
        ]
    rng.shuffle(clauses)
    return tuple(Sentence(clauses=(clause,)) for clause in clauses)


def _clause_of(rng: Random, first: Things, second: Things) -> Clause:
    earlier = rng.random() < 0.5
    subject, other = (first, second) if earlier else (second, first)
    return Clause(form=rng.choice(tuple(Form)), earlier=earlier, subject=subject, object=other)


def _direct(wanted: Constraints) -> list[tuple[int, int]]:
    """The orders with nothing between them."""
    orders = wanted.closure().orders
    return sorted(
        (first, second)
        for first, second in orders
        if not any((first, middle) in orders and (middle, second) in orders for middle in wanted.actions)
    )


def _has_plan(paragraph: Paragraph, count: int, durations: Durations | None, solver: Solver) -> bool:
    limits = constraints_of(paragraph, count) | day(count) if durations else constraints_of(paragraph, count)
    return solver.solve(limits, durations, start=OPENS) is not None


def day(count: int) -> Constraints:
    """Every action ends before the day does."""
    actions = frozenset(range(count))
    return Constraints(actions=actions, ends_by=frozenset((action, CLOSES) for action in actions))


class Sentences:
    """Draws random sentences of the grammar."""

    def __init__(self, rng: Random, grammar: Grammar, *, timed: bool) -> None:
        self.rng, self.grammar, self.timed = rng, grammar, timed

    def draw(self, count: int) -> Sentence:
        """One clause, or several with joints."""
        clauses = [self._clause(count)]
        while self.rng.random() < self.grammar.longer:
            clauses.append(self._clause(count))
        joints = tuple(self.rng.choice(JOINTS) for _ in clauses[1:])
        return Sentence(clauses=tuple(clauses), joints=joints)

    def _clause(self, count: int) -> Clause:
        """The actions of a clause are all different."""
        left = self.rng.sample(range(count), count)
        subject = self._things(left, spare=1)
        earlier = self.rng.random() < 0.5
        if self._meets_time():
            form = self.rng.choice(self.grammar.time_forms)
            return Clause(form=form, earlier=earlier, subject=subject, object=self._time())
        other = self._things(left)
        return Clause(form=self.rng.choice(self.grammar.forms), earlier=earlier, subject=subject, object=other)

    def _things(self, left: list[int], *, spare: int = 0) -> Things:
        """Takes actions from `left`, and leaves at least `spare`."""
        actions = self._take(left, spare)
        if self.rng.random() >= self.grammar.relative or (len(left) <= spare and not self.timed):
            return Things(actions=actions)
        form, earlier = self.rng.choice(RELATIVE_FORMS), self.rng.random() < 0.5
        is_time = self._meets_time() or len(left) <= spare
        other = self._time() if is_time else Things(actions=self._take(left, spare))
        return Things(actions=actions, relative=Relative(form=form, earlier=earlier, object=other))

    def _take(self, left: list[int], spare: int) -> tuple[int, ...]:
        taken = [left.pop()]
        while len(left) > spare and self.rng.random() < self.grammar.lists:
            taken.append(left.pop())
        return tuple(taken)

    def _meets_time(self) -> bool:
        return self.timed and self.rng.random() < _TIMED

    def _time(self) -> TimeOfDay:
        return TimeOfDay(minute=self.rng.randrange(OPENS + GRID, CLOSES, GRID))
