"""Segment sums, means and maxima, and the reverse scan, against loops and by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.ops import reference
from tests.ops.batches import Case, cases, close, ragged
from turnwise.ops.segments import reverse_scan, segment_count, segment_max, segment_mean, segment_sum, spread

VALUES = torch.tensor([1.0, 4.0, -2.0, 8.0, 0.5], dtype=torch.float64)
SEGMENT = torch.tensor([0, 0, 2, -1, 2])  # segment 1 is empty, the fourth entry belongs to none


def test_segments_by_hand():
    close(segment_sum(VALUES, SEGMENT, 3), [5.0, 0.0, -1.5])  # 1 + 4; nothing; −2 + 0.5
    close(segment_mean(VALUES, SEGMENT, 3), [2.5, 0.0, -0.75])
    close(segment_max(VALUES, SEGMENT, 3), [4.0, 0.0, 0.5])
    assert segment_count(SEGMENT, 3).tolist() == [2, 0, 2]
    close(spread(torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64), SEGMENT), [10, 10, 30, 0, 30])


def test_maximum_of_negative_values_is_not_lifted_to_zero():
    close(segment_max(torch.tensor([-3.0, -1.0], dtype=torch.float64), torch.tensor([0, 0]), 1), [-1.0])


def test_reverse_scan_by_hand():
    # y_3 = 4; y_2 = 3 + 0·4 (chain ends); y_1 = 2 + 0.5·3 = 3.5; y_0 = 1 + 0.5·3.5 = 2.75
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    close(reverse_scan(values, torch.tensor([0.5, 0.5, 0.0, 0.9], dtype=torch.float64)), [2.75, 3.5, 3.0, 4.0])


def test_reverse_scan_leaves_its_arguments_alone():
    values, decay = torch.ones(5, dtype=torch.float64), torch.full((5,), 0.5, dtype=torch.float64)
    reverse_scan(values, decay)
    close(values, [1.0] * 5)
    close(decay, [0.5] * 5)


@ragged
@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([0.0, 0.5, 0.95, 1.0])), max_size=40))
def test_reverse_scan_agrees_with_a_loop(links: list[tuple[float, float]]):
    expected, carried = [0.0] * len(links), 0.0
    for place in range(len(links) - 1, -1, -1):
        carried = links[place][0] + links[place][1] * carried
        expected[place] = carried
    values = torch.tensor([value for value, _ in links], dtype=torch.float64)
    close(reverse_scan(values, torch.tensor([decay for _, decay in links], dtype=torch.float64)), expected)


@ragged
@given(cases)
def test_segments_over_turns_agree_with_loops(case: Case):
    batch, values_T = case.batch, torch.nan_to_num(case.logprob_T)
    of_turns = reference.segment_values(values_T.tolist(), batch.turn_T.tolist(), batch.turns)
    close(segment_sum(values_T, batch.turn_T, batch.turns), [sum(values) for values in of_turns])
    close(segment_mean(values_T, batch.turn_T, batch.turns), [reference.mean(values) for values in of_turns])
    close(segment_max(values_T, batch.turn_T, batch.turns), [max(values, default=0.0) for values in of_turns])
    assert segment_count(batch.turn_T, batch.turns).tolist() == [len(values) for values in of_turns]


@pytest.mark.parametrize("operation", [segment_sum, segment_mean, segment_max])
def test_segment_gradients_by_finite_differences(operation):
    values = VALUES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: operation(x, SEGMENT, 3), (values,))
