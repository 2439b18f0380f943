"""Requests: the words of a tree read back to the tree, and what was synthesised has a plan."""

import re
from itertools import permutations
from random import Random

import pytest

from tests.torture import plans
from turnwise.envs.plans.activities import LETTERS, draw_names, draw_topic, professions
from turnwise.envs.plans.orderings import Constraints
from turnwise.envs.plans.plan_solvers import BuiltInSolver, Order, chance, conflict, count_plans
from turnwise.envs.plans.plan_task import PlanTask, change_topic, draw_task, restructure, reword
from turnwise.envs.plans.plan_tools import tool_name
from turnwise.envs.plans.sentence_parser import parse_request
from turnwise.envs.plans.sentence_words import JOINTS, SPELLINGS, SYNONYMS, readings
from turnwise.envs.plans.sentences import Form, Wording, constraints_of
from turnwise.envs.plans.synthesis import OPENS, draw_durations, synthesise
from turnwise.envs.plans.z3_solver import Z3Solver

NAMES = ("a", "b", "c", "d")


def orders(text: str) -> str:
    """The orders of a request, in letters: `ab cb`."""
    found = constraints_of(parse_request(text, NAMES), len(NAMES)).orders
    return " ".join(sorted(f"{NAMES[first]}{NAMES[second]}" for first, second in found))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A precedes b.", "ab"),
        ("A follows b.", "ba"),
        ("A happens before b.", "ab"),
        ("Before b, a happens.", "ab"),
        ("Before b occurs, a happens.", "ab"),
        ("A happens once b is completed.", "ba"),
        ("A, b and c precede d.", "ad bd cd"),
        ("After a, b and c happen.", "ab ac"),
        ("After a, b and c, d happens.", "ad bd cd"),
        ("A, which follows b, happens before c.", "ac ba"),
        ("Before a, which precedes b, c and d happen.", "ab ca da"),
        ("A precedes b, which follows c; d waits for a, and c is followed by d.", "ab ad cb cd"),
    ],
)
def test_sentences_mean_what_they_say(text: str, expected: str):
    assert orders(text) == expected


def test_times_bound_the_end_before_them_and_the_start_after_them():
    found = constraints_of(parse_request("A, which follows 09:30, precedes 14:00. B happens after 10:00.", NAMES), 4)
    assert (found.ends_by, found.starts_from) == (frozenset({(0, 840)}), frozenset({(0, 570), (1, 600)}))


@pytest.mark.parametrize("timed", [False, True])
def test_words_read_back_to_the_same_tree(timed: bool):
    for seed in range(1000):
        rng = Random(f"{timed}:{seed}")
        count = rng.randint(2, 9)
        names = draw_names(rng, draw_topic(rng), count)
        durations = draw_durations(rng, count) if timed else None
        tree = synthesise(rng, count, sentences=4, durations=durations)
        wording = Wording(names, rng)
        for text in (wording.prose(tree), wording.spaced(tree)):
            assert parse_request(text, names) == tree
            closure = constraints_of(parse_request(text, names), count).closure()
            assert closure == constraints_of(tree, count).closure()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must consist of sentences"),
        ("A precedes b", "must consist of sentences"),
        ("A precedes z.", "cannot read the request from ' z.'"),
        ("A b.", "not a sentence"),
        ("a " * 20_000, "shorten it"),
    ],
)
def test_what_is_not_a_request_is_refused(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_request(text, NAMES)


def test_every_terminal_has_seven_different_spellings():
    for spellings in SPELLINGS.values():
        assert len(set(spellings)) == SYNONYMS


def test_fifty_professions_have_twenty_activities_that_no_phrase_can_be_mistaken_for():
    assert len(professions()) == 50
    fixed = {word for phrase in (*readings(), *JOINTS, "which") for word in re.findall(r"\w+", phrase)}
    for activities in professions().values():
        assert len({tool_name(each) for each in activities}) == 20
        assert not fixed & {word for each in activities for word in each.split()}
        assert all(re.fullmatch(r"[\w-]{1,64}", tool_name(each)) for each in activities)


def test_a_drawn_request_has_a_plan_and_is_a_function_of_the_generator():
    for seed in range(60):
        options = {"sentences": None, "timed": seed % 2 == 1, "letters": seed % 3 == 0}
        task = draw_task(Random(seed), 2 + seed % 6, **options)
        assert task == draw_task(Random(seed), 2 + seed % 6, **options)
        assert PlanTask.from_dict(task.as_dict()) == task
        assert BuiltInSolver().solve(task.constraints, task.durations, start=OPENS) is not None


@pytest.mark.parametrize("letters", [True, False])
def test_variants_keep_what_is_asked_for(letters: bool):
    for seed in range(20):
        rng = Random(seed)
        task = draw_task(rng, 5, sentences=3, timed=seed % 2 == 0, letters=letters)
        closure = task.constraints.closure()
        for vary in (reword, change_topic, restructure):
            assert vary(task, rng).constraints.closure() == closure
        assert reword(task, rng).paragraph == task.paragraph
        assert letters or change_topic(task, rng).topic != task.topic


def test_a_request_without_a_plan_is_refused_with_what_is_in_conflict():
    task = {"topic": "", "actions": ["a", "b", "c"], "text": "A precedes b. B precedes a. C follows a."}
    with pytest.raises(ValueError, match="no plan: it asks for a before b and b before a; change one"):
        PlanTask.from_dict(task)


def test_a_conflict_has_nothing_superfluous():
    wanted = Constraints(actions=frozenset(range(4)), orders=frozenset({(0, 1), (1, 2), (2, 0), (0, 3), (3, 2)}))
    assert len(conflict(wanted, BuiltInSolver()).orders) == 3


def test_built_in_solver_and_all_permutations_agree():
    tally = plans.campaign(count=300, seed=1)
    assert (tally.attempts, tally.failures) == (300, [])
    assert len(tally.outcomes) == 4


def test_a_campaign_without_z3_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    without = plans.campaign(count=4, seed=1).outcomes
    assert without.total() == 4
    assert all(outcome.endswith("z3 not installed") for outcome in without)


class Careless(BuiltInSolver):
    """Does not look at durations."""

    def solve(self, constraints: Constraints, durations: object = None, *, start: int = 0) -> Order | None:
        return super().solve(constraints)


def test_a_solver_that_is_wrong_is_found():
    assert plans.campaign(count=60, seed=1, solver=Careless()).failures


def test_z3_agrees_on_what_the_campaign_draws():
    pytest.importorskip("z3")
    rng, solver = Random(5), Z3Solver()
    for number in range(60):
        constraints, durations = plans.draw_constraints(rng, timed=number % 2 == 1)
        built_in = BuiltInSolver().solve(constraints, durations)
        assert (solver.solve(constraints, durations) is None) == (built_in is None)


def test_plans_are_counted_as_permutations_count_them():
    rng = Random(3)
    for _ in range(100):
        constraints, _ = plans.draw_constraints(rng, timed=False)
        every = [*permutations(sorted(constraints.actions))]
        right = sum(not constraints.broken_orders(order) for order in every)
        assert (count_plans(constraints), chance(constraints)) == (right, right / len(every))


def test_the_simple_grammar_has_one_clause_with_a_verb_a_sentence():
    task = draw_task(Random(2), 5, sentences=4, timed=True, letters=True, grammar="simple")
    clauses = [clause for sentence in task.paragraph for clause in sentence.clauses]
    assert len(clauses) == len(task.paragraph)
    assert {clause.form for clause in clauses} == {Form.VERB}
    assert all(len(clause.subject.actions) == 1 and clause.subject.relative is None for clause in clauses)


def test_letters_stand_in_order_and_no_more_than_there_are():
    assert draw_names(Random(1), "", 4) == tuple(sorted(draw_names(Random(1), "", 4)))
    with pytest.raises(ValueError, match="too many"):
        draw_names(Random(1), "", len(LETTERS) + 1)
