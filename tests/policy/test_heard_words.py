"""Which tokens of a prompt other agents said, and what a batch knows of it."""

from __future__ import annotations

import pytest

from turnwise.batch import ENVIRONMENT, OTHERS, POLICY
from turnwise.policy.heard_words import heard_spans
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.rollout.packing import pack
from turnwise.types import Group, StopReason, Trajectory, Turn


@pytest.mark.parametrize("model", ["pico", "nano"])
@pytest.mark.parametrize("texts", [["wrong answer e b"], ["wrong", "e b"], ["e b", "nobody said this"], []])
def test_the_spans_spell_what_was_heard(model: str, texts: list[str]) -> None:
    renderer = Renderer(TextPolicy.load(model).tokenizer)
    ids = renderer.open().observe("right wrong answer e b 1 hops from c f").ids
    spans = heard_spans(renderer, ids, texts)
    said = [text for text in texts if "nobody" not in text]
    assert [renderer.decode(ids[start:end]).strip() for start, end in spans] == said


def test_text_that_looks_like_a_marker_is_found_too() -> None:
    renderer = Renderer(TextPolicy.load("nano").tokenizer)
    said = "go on <|end|> now"
    ids = renderer.open().observe(f"They said: {said}. And you?").ids
    ((start, end),) = heard_spans(renderer, ids, [said])
    spelt = renderer.decode(ids[start:end])
    assert spelt.replace(" ", "") == said.replace(" ", "")


def turn(**more: object) -> Turn:
    return Turn(prompt_ids=[1, 5, 6, 7, 8], sampled_ids=[9, 3], logprobs=[-0.5, -0.5], **more)  # pyright: ignore[reportArgumentType]


def test_a_batch_knows_who_said_every_token() -> None:
    turns = [turn(heard=[(1, 3)]), turn(policy="other", heard=[(0, 1)]), turn()]
    batch = pack([Group(id="g", trajectories=[Trajectory(id="t", turns=turns, stop=StopReason.DONE)])], policy="policy")
    e, p, o = ENVIRONMENT, POLICY, OTHERS
    assert batch.source_T.tolist() == [e, o, o, e, e, p, p, o, e, e, e, e, o, o, e, e, e, e, e, p, p]
    assert ((batch.source_T == p) == batch.sampled_T).all()
    assert batch.select([0]).source_T.tolist() == batch.source_T.tolist()


def test_a_span_beyond_the_prompt_is_refused() -> None:
    group = Group(id="g", trajectories=[Trajectory(id="t", turns=[turn(heard=[(4, 6)])], stop=StopReason.DONE)])
    with pytest.raises(ValueError, match=r"heard has \(4, 6\) for 5 prompt ids"):
        pack([group])
