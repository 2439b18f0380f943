import pytest

from turnwise.guard.collapse import find_collapse


def rows(*successes: float, valid: float | list[float] = 1.0):
    shares = valid if isinstance(valid, list) else [valid] * len(successes)
    return [
        {"step": 10 * place, "eval/success": success, "eval/valid": share}
        for place, (success, share) in enumerate(zip(successes, shares, strict=True))
    ]


@pytest.mark.parametrize(
    ("successes", "step"),
    [
        ((0.2, 0.5, 0.8, 0.9), None),
        ((0.2, 0.8, 0.41, 0.41), None),  # worse, but not by half
        ((0.2, 0.8, 0.3), 20),  # down at the end
        ((0.2, 0.8, 0.3, 0.3, 0.8), None),  # two bad evaluations, then well again
        ((0.2, 0.8, 0.3, 0.3, 0.3, 0.8), 20),  # three in a row count, whatever comes later
        ((0.2, 0.8, 0.3, 0.5, 0.3, 0.3), 40),  # it began where it did not come back
        ((0.3, 0.1), 10),  # dead before it ever improved: the start is the best
        ((0.0, 0.0, 0.0, 0.0), None),  # never learned, which is another matter
        ((0.5,), None),
        ((), None),
    ],
)
def test_success_that_is_lost(successes: tuple[float, ...], step: int | None):
    collapse = find_collapse(rows(*successes))
    assert (collapse and collapse.step) == step


def test_reason_names_the_numbers():
    collapse = find_collapse(rows(0.2, 0.8, 0.1))
    assert collapse is not None
    assert collapse.reason == "success 0.10 after a best of 0.80"


def test_valid_turns_must_be_gone_for_good():
    good = (0.5, 0.5, 0.5, 0.5, 0.5)
    assert find_collapse(rows(*good, valid=[1.0, 0.04, 0.04, 1.0, 1.0])) is None
    for shares, step in (([1.0, 0.04, 0.04, 0.04, 1.0], 10), ([1.0, 1.0, 1.0, 1.0, 0.0], 40)):
        collapse = find_collapse(rows(*good, valid=shares))
        assert collapse is not None
        assert collapse.step == step
        assert "valid" in collapse.reason


def test_turns_that_never_were_valid_are_no_collapse():
    assert find_collapse(rows(0.0, 0.0, 0.0, 0.1, 0.5, valid=[0.0, 0.01, 0.02, 0.6, 0.9])) is None
    assert find_collapse(rows(0.0, 0.0, 0.0, 0.0, valid=0.0)) is None


def test_evaluations_without_a_number_are_passed_over():
    broken = [{"step": 5, "eval/success": None, "eval/valid": None}, {"step": 6}]
    assert find_collapse([*rows(0.2, 0.8), *broken]) is None


def test_a_run_that_the_guard_stopped_has_collapsed():
    stop = {"kind": "guard", "step": 7, "action": "stop", "text": "non-finite loss"}
    skip = {"kind": "guard", "step": 3, "action": "skip", "text": "one bad gradient"}
    assert find_collapse(rows(0.2, 0.8), [skip]) is None
    collapse = find_collapse(rows(0.2, 0.8), [skip, stop])
    assert collapse is not None
    assert (collapse.step, collapse.reason) == (7, "the guard stopped it: non-finite loss")
