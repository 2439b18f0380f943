"""The tokens that are trained are those that were sampled, whatever a program and its client do to the messages."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.gateway import lossy_clients
from tests.gateway.lossy_clients import defect_of, play, trained_tokens
from turnwise.dialects.dialect import Said, canonical
from turnwise.gateway.agent_session import AgentSession
from turnwise.policy.rendering import Conversation
from turnwise.rollout import call_tree
from turnwise.rollout.policy_agent import PolicyAgent


def test_random_conversations_train_exactly_what_was_sampled():
    played = [play(seed) for seed in range(120)]
    assert {seed: defect for seed, each in enumerate(played) if (defect := defect_of(each))} == {}
    turns = sum(len(each.trajectory.turns) for each in played)
    sequences = sum(trained_tokens(each.trajectory)[1] for each in played)
    assert turns > 400
    assert sequences / turns < 0.75  # most calls go on with what is there


def test_calls_wait_for_each_other_and_retries_come_before_and_after_the_answer(monkeypatch):
    true_ask, waiting, repeated = AgentSession.ask, [], Counter()

    def ask(self, asked, *, body_key, again):
        known = self._known.get(body_key)
        repeated["late" if known and known.done() else "waiting" if known else "new"] += again
        answer = true_ask(self, asked, body_key=body_key, again=again)
        waiting.append(len(self._waiting))
        return answer

    monkeypatch.setattr(AgentSession, "ask", ask)
    played = [play(seed) for seed in range(60)]
    assert max(waiting) >= 3
    assert min(repeated["late"], repeated["waiting"]) > 20
    retried = sum(each.trajectory.info["retried_calls"] for each in played)
    assert retried == repeated["late"] + repeated["waiting"]
    assert [play(seed).sampled for seed in range(12)] == [each.sampled for each in played[:12]]


def test_a_session_that_samples_retries_anew_is_found(monkeypatch):
    true_ask = AgentSession.ask
    monkeypatch.setattr(
        AgentSession, "ask", lambda self, asked, **about: true_ask(self, asked, **{**about, "again": False})
    )
    defects = [defect_of(play(seed)) for seed in range(24)]
    assert any("a retry got" in defect for defect in defects)
    assert any("answers were sampled for" in defect for defect in defects)


def test_a_session_that_answers_retries_with_another_calls_answer_is_found(monkeypatch):
    def ask(self, asked, *, body_key, again):
        return true_ask(self, asked, body_key="" if again else body_key, again=again)

    true_ask = AgentSession.ask
    monkeypatch.setattr(AgentSession, "ask", ask)
    assert any("a retry got" in defect_of(play(seed)) for seed in range(24))


def test_a_tree_that_takes_echoes_literally_opens_needless_sequences_and_is_found(monkeypatch):
    def literal(message: Said):
        return message.role, message.text, tuple(repr(call) for call in message.calls), message.reasoning

    monkeypatch.setattr(call_tree, "canonical", literal)
    defects = [defect_of(play(seed)) for seed in range(24)]
    assert any("are enough" in defect for defect in defects)
    assert canonical(Said(role="user", text=" a ")) == canonical(Said(role="user", text="a"))


def test_a_template_that_drops_reasoning_from_a_sequence_is_found(monkeypatch):
    monkeypatch.setattr(Conversation, "_after_last_turn", lambda *_: None)
    assert any("are enough" in defect_of(play(seed)) for seed in range(48))


def test_tokens_that_are_spelt_again_are_found(monkeypatch):
    true_action = PolicyAgent._action

    def spelt_again(self, text, prompt, completion):
        ids = self._renderer.encode(self._renderer.shield(self._renderer.decode(completion.ids)))
        return true_action(self, text, prompt, replace(completion, ids=ids, logprobs=[-1.0] * len(ids)))

    monkeypatch.setattr(PolicyAgent, "_action", spelt_again)
    assert any("other tokens are trained" in defect_of(play(seed)) for seed in range(24))


@pytest.mark.parametrize("order", ["calls", "reversed"])
def test_turns_in_another_order_than_their_sequences_are_found(monkeypatch, order):
    def wrong(self, turns):
        if order == "reversed":
            turns.reverse()

    monkeypatch.setattr("turnwise.rollout.called_seat.CalledSeat.arrange", wrong)
    found = [defect_of(play(seed)) for seed in range(48)]
    assert any("other tokens are trained" in defect or "not on the last turn" in defect for defect in found)


def test_every_format_and_every_template_is_played():
    kinds = {(seed % 3, (seed // 3) % len(lossy_clients.KINDS)) for seed in range(300)}
    assert len(kinds) == 3 * len(lossy_clients.KINDS)
