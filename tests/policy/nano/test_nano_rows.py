"""Packed rows and batches: what is learnt, what sees what, what is exchanged."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from turnwise.nano.copying import copy_batch
from turnwise.nano.fixed_rows import load_rows, pack_rows
from turnwise.nano.mixtures import copying_batches, mixed_batches, rename, spoken
from turnwise.nano.model import NanoShape, build_model
from turnwise.nano.tokenizer import AGENT_ID, BEGIN_ID, END_ID, PAD_ID, USER_ID
from turnwise.nano.train import forward

TINY = NanoShape(width=32, layers=2, heads=2, feed_forward=64)


def _sequences(*lengths: int) -> list[np.ndarray]:
    return [np.full(length, 10 + number, dtype=np.uint16) for number, length in enumerate(lengths)]


def test_sequences_share_rows_whole() -> None:
    packed = pack_rows(_sequences(5, 4, 3), 8)
    assert packed.ids.tolist() == [[11] * 4 + [PAD_ID] * 4, [10] * 5 + [12] * 3]
    assert packed.starts.nonzero()[1].tolist() == [0, 4, 0, 5]


def test_packing_keeps_every_token_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, size=500)
    packed = pack_rows(_sequences(*lengths), 64)
    counts = np.bincount(packed.ids.ravel(), minlength=510)[10:]
    assert counts.tolist() == lengths.tolist()
    assert (packed.ids != PAD_ID).mean() > 0.9


def test_too_long_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="use longer rows"):
        pack_rows(_sequences(9), 8)


def test_rows_survive_the_disk_and_missing_ones_name_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--stage data"):
        load_rows(tmp_path)
    packed = pack_rows(_sequences(5, 4, 3), 13, renamable=([20, 21], [30]))
    packed.save(tmp_path)
    loaded = load_rows(tmp_path)
    assert np.array_equal(loaded.ids, packed.ids)
    assert np.array_equal(loaded.starts, packed.starts)
    assert (loaded.word_starts.tolist(), loaded.word_parts.tolist()) == ([20, 21], [30])


def test_packed_sequences_score_as_if_alone() -> None:
    model = build_model(TINY, seed=0).eval()
    first, second = torch.arange(20, 29), torch.arange(40, 47)
    starts = torch.zeros(1, 16, dtype=torch.bool)
    starts[0, [0, 9]] = True
    with torch.no_grad():
        packed = forward(model, torch.cat([first, second])[None], starts)[0]
        alone = torch.cat([model(ids[None]).logits[0] for ids in (first, second)])
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)


def test_agent_says_everything_between_its_marker_and_the_end_of_its_turn() -> None:
    ids = torch.tensor([[USER_ID, 20, AGENT_ID, 30, 31, END_ID, USER_ID, 21, AGENT_ID, 32, END_ID, PAD_ID]])
    assert spoken(ids).int().tolist() == [[0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]]


def test_renaming_is_a_permutation_within_each_class_and_differs_by_row() -> None:
    classes = (torch.arange(100, 140), torch.arange(200, 240))
    ids = torch.cat([torch.arange(90, 240)])[None].repeat(2, 1)
    renamed = rename(ids, classes, torch.Generator().manual_seed(0))
    outside = ~torch.isin(ids, torch.cat(classes))
    assert torch.equal(renamed[outside], ids[outside])
    for tokens in classes:
        inside = torch.isin(ids[0], tokens)
        assert all(sorted(row[inside].tolist()) == tokens.tolist() for row in renamed)
    assert not torch.equal(renamed[0], renamed[1])


def test_foretold_tokens_follow_their_predecessor_as_in_the_source() -> None:
    generator = torch.Generator().manual_seed(0)
    ids, foretold = copy_batch(rows=20, length=64, source=9, tokens=torch.arange(50, 200), generator=generator)
    assert ids.shape == foretold.shape == (20, 64)
    assert (ids[:, 0] == BEGIN_ID).all()
    for row, known in zip(ids.tolist(), foretold.tolist(), strict=True):
        source = row[1:10]
        assert len(set(source)) == 9
        assert set(row[10:]) <= set(source)
        follows = set(pairwise(source))
        assert all((row[place - 1], row[place]) in follows for place in range(64) if known[place])
    assert 0.7 < foretold[:, 10:].float().mean() < 0.95


def test_batches_depend_on_the_seed_alone() -> None:
    packed = pack_rows(_sequences(*[30] * 40), 64, renamable=(range(10, 30), range(30, 50)))
    for make in (
        lambda: copying_batches(1_024, seed=3, device="cpu"),
        lambda: mixed_batches(packed, 512, seed=3, device="cpu"),
    ):
        first, second = next(make()), next(make())
        assert torch.equal(first.ids, second.ids)
        assert torch.equal(first.trained, second.trained)
        assert first.ids.shape == first.starts.shape == first.trained.shape
