"""Bugs injected into real episodes of a small model: each must be caught, with trajectory, turn and likely cause."""

import asyncio
import copy
import re
from dataclasses import replace

import pytest
import torch

from tests.envs.broken import Sound
from tests.policy.tokenizers_for_chat import by_letters, chat_tokenizer
from tests.rollout.reference_engine import ReferenceEngine, score, tiny_llama
from turnwise.batch import Scores
from turnwise.engine.contract import SamplingParams
from turnwise.policy.rendering import Renderer
from turnwise.rollout.episode import EpisodeSpec, tries
from turnwise.rollout.packing import pack
from turnwise.rollout.policy_agent import PolicyAgent
from turnwise.rollout.scheduler import Scheduler
from turnwise.rollout.token_checks import check_batch, check_ledger, check_logprob_gap, verify
from turnwise.types import StopReason, Trajectory, Turn

TOKENIZER = chat_tokenizer("chatml")
MODEL = tiny_llama(len(TOKENIZER))
SAMPLING = SamplingParams(max_tokens=20, stop_strings=("e",))
NAMED = r"trajectory '[^']*Sound:3/\d', turn {turn}"


def collect(engine, sampling=SAMPLING):
    agent = PolicyAgent(engine=engine, renderer=Renderer(TOKENIZER), sampling=sampling)

    async def main():
        async with Scheduler() as scheduler:
            return await scheduler.run_groups(tries(EpisodeSpec(env=Sound, seed=3), 5), agent)

    return asyncio.run(main())


@pytest.fixture(scope="module")
def groups():
    return collect(ReferenceEngine(MODEL, tokenizer=TOKENIZER))


@pytest.fixture(scope="module")
def batch(groups):
    return pack(groups)


def verify_with(groups, **settings):
    return verify(groups, Renderer(TOKENIZER), lambda batch: score(MODEL, batch), **settings)


def edited(groups, number, index, **changes):
    """The groups with one turn of one trajectory changed."""
    group = groups[0]
    trajectory = group.trajectories[number]
    turns = [replace(turn, **changes) if place == index else turn for place, turn in enumerate(trajectory.turns)]
    trajectories = list(group.trajectories)
    trajectories[number] = replace(trajectory, turns=turns)
    return [replace(group, trajectories=trajectories)]


def long_trajectory(groups):
    """Number of a trajectory with a second turn that the tokenizer would spell differently."""
    for number, trajectory in enumerate(groups[0].trajectories):
        if (
            len(trajectory.turns) > 1
            and TOKENIZER.encode(trajectory.turns[1].action) != trajectory.turns[1].sampled_ids
        ):
            return number
    raise AssertionError("the fixed seeds must give such a trajectory")


def test_sound_episodes_pass_with_a_gap_near_rounding(groups):
    gap = verify_with(groups, tolerance=1e-4, version=0)
    assert gap.mean < 1e-6
    assert gap.worst < 1e-5
    ledgers = [check_ledger(trajectory, Renderer(TOKENIZER)) for trajectory in groups[0].trajectories]
    assert sum(ledger.respelt for ledger in ledgers) > 5


def test_a_history_that_the_sampler_saw_re_tokenised_is_caught():
    class Retokenising(ReferenceEngine):
        async def generate(self, session, new_ids, params):
            history = TOKENIZER.decode(self.sessions.get(session, []))
            self.sessions[session] = TOKENIZER.encode(history, add_special_tokens=False)
            return await super().generate(session, new_ids, params)

    broken = collect(Retokenising(MODEL, tokenizer=TOKENIZER))
    with pytest.raises(ValueError, match=NAMED.format(turn="[1-3]") + r".*re-tokenised history"):
        verify_with(broken)


def test_recorded_ids_that_were_re_tokenised_are_caught(groups):
    number = long_trajectory(groups)
    turn = groups[0].trajectories[number].turns[1]
    respelt = TOKENIZER.encode(turn.action)
    with pytest.raises(ValueError, match=rf"Sound:3/{number}', turn 1: .* sampled ids but .* log-probs"):
        verify_with(edited(groups, number, 1, sampled_ids=respelt))
    as_many = [*respelt, *turn.sampled_ids][: len(turn.sampled_ids)]
    with pytest.raises(ValueError, match=rf"Sound:3/{number}', turn 1: the sampled ids spell"):
        verify_with(edited(groups, number, 1, sampled_ids=as_many))


def test_a_prompt_spelt_with_other_tokens_is_caught(groups):
    prompt = list(groups[0].trajectories[2].turns[1].prompt_ids)
    place = prompt.index(TOKENIZER.convert_tokens_to_ids("user"))
    respelt = prompt[:place] + by_letters(TOKENIZER, "user") + prompt[place + 1 :]
    assert TOKENIZER.decode(respelt) == TOKENIZER.decode(prompt)
    with pytest.raises(ValueError, match=rf"Sound:3/2', turn 1: prompt tokens differ .* at token {place}"):
        verify_with(edited(groups, 2, 1, prompt_ids=respelt))


def test_an_action_that_is_not_what_was_sampled_is_caught(groups):
    with pytest.raises(ValueError, match=r"Sound:3/1', turn 0: the sampled ids spell .* but the action is 'tidied'"):
        verify_with(edited(groups, 1, 0, action="tidied"))


def test_a_wrong_restart_and_wrong_final_ids_are_caught(groups):
    with pytest.raises(ValueError, match=r"turn 1: restarts is True, but the template says False"):
        verify_with(edited(groups, 0, 1, restarts=True))
    trajectory = next(one for one in groups[0].trajectories if one.final_ids)
    shorter = replace(trajectory, final_ids=list(trajectory.final_ids)[:-1])
    with pytest.raises(ValueError, match=r"after the last turn: prompt tokens differ"):
        check_ledger(shorter, Renderer(TOKENIZER))


@pytest.mark.parametrize("by", [1, -1])
def test_a_shifted_mask_is_caught_by_its_sources(batch, by):
    with pytest.raises(ValueError, match=r"mask and source disagree at trajectory '[^']*', .*mask is shifted"):
        check_batch(batch.with_(turn_T=batch.turn_T.roll(by)))


@pytest.mark.parametrize("by", [1, -1])
def test_a_mask_shifted_together_with_its_sources_is_caught_by_the_log_probs(batch, by):
    shifted = batch.with_(turn_T=batch.turn_T.roll(by), source_T=batch.source_T.roll(by))
    check_batch(shifted)
    with pytest.raises(ValueError, match=NAMED.format(turn=r"\d") + ".*Likely cause: shifted mask"):
        check_logprob_gap(shifted, score(MODEL, shifted))


@pytest.mark.parametrize("by", [1, -1])
def test_log_probs_shifted_by_one_are_caught(batch, by):
    scores = Scores(logprob_T=score(MODEL, batch).logprob_T.roll(by))
    with pytest.raises(ValueError, match=NAMED.format(turn=r"\d") + ".*Likely cause: shifted by one"):
        check_logprob_gap(batch, scores)


@pytest.mark.parametrize(("sampler", "trainer"), [(0.7, 1.0), (1.0, 0.7), (1.0, 1.3)])
def test_another_temperature_is_caught_and_estimated(sampler, trainer):
    broken = pack(collect(ReferenceEngine(MODEL, tokenizer=TOKENIZER), replace(SAMPLING, temperature=sampler)))
    assert check_logprob_gap(broken, score(MODEL, broken, temperature=sampler), tolerance=1e-4).worst < 1e-5
    scores = score(MODEL, broken, temperature=trainer)
    pattern = NAMED.format(turn=r"\d") + r".*Likely cause: another temperature: .* about (\d\.\d+)"
    with pytest.raises(ValueError, match=pattern) as caught:
        check_logprob_gap(broken, scores)
    found = re.search(pattern, str(caught.value))
    assert found is not None
    assert float(found[1]) == pytest.approx(sampler / trainer, rel=0.15)
    with pytest.raises(ValueError, match="Likely cause: another temperature"):
        check_logprob_gap(broken, replace(scores, entropy_T=None))


@pytest.mark.parametrize("length", [1, 9])
def test_too_few_tokens_or_equal_ones_are_no_evidence_of_another_temperature(groups, length):
    trajectory = groups[0].trajectories[3]
    turn = trajectory.turns[0]
    short = replace(turn, sampled_ids=turn.sampled_ids[:length], logprobs=[-1.0] * length)
    batch = pack([replace(groups[0], trajectories=[replace(trajectory, turns=[short], final_ids=())])])
    with pytest.raises(ValueError, match="Likely cause: stale weights"):
        check_logprob_gap(batch, Scores(logprob_T=torch.full(batch.ids_T.shape, -2.0)))


def test_a_turn_that_the_tokenizers_own_end_token_ended_is_not_respelt():
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.eos_token = "<|endoftext|>"
    renderer = Renderer(tokenizer)
    assert renderer.end_id != tokenizer.eos_token_id
    prompt = renderer.open().observe("Where?")
    sampled = [*renderer.encode("the city"), tokenizer.eos_token_id]
    turn = Turn(prompt_ids=prompt.ids, sampled_ids=sampled, observation="Where?", action="the city")
    trajectory = Trajectory(id="t", turns=[turn], stop=StopReason.DONE, terminated=True)
    assert check_ledger(trajectory, renderer).respelt == 0


def updated(model, size):
    """The model after an update of about this relative size."""
    newer = tiny_llama(len(TOKENIZER))
    newer.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(1)
    for parameter in newer.parameters():
        parameter.data += size * parameter.data.std() * torch.randn(parameter.shape, generator=generator)
    return newer


def test_stale_weights_are_caught_and_the_gap_grows_with_the_update(batch):
    gaps = [
        check_logprob_gap(batch, score(updated(MODEL, size), batch), tolerance=100.0).mean
        for size in (0.0, 0.01, 0.03, 0.1)
    ]
    assert gaps == sorted(gaps)
    assert gaps[0] < 1e-6
    assert gaps[1] > 1e-3
    for size in (0.03, 0.1, 0.3):
        with pytest.raises(ValueError, match=NAMED.format(turn=r"\d") + ".*Likely cause: stale weights"):
            check_logprob_gap(batch, score(updated(MODEL, size), batch))
    with pytest.raises(ValueError, match=r"stale weights: the turn was sampled by version 0, and .* at version 4"):
        check_logprob_gap(batch, score(updated(MODEL, 0.1), batch), version=4)


def test_log_probs_that_are_no_numbers_are_caught_on_either_side(groups, batch):
    turn = groups[0].trajectories[1].turns[0]
    logprobs = [*turn.logprobs[:-1], float("nan")]
    with pytest.raises(ValueError, match=r"Sound:3/1', turn 0: log-prob of sampled token \d+ is nan"):
        verify_with(edited(groups, 1, 0, logprobs=logprobs))
    token = int(batch.sampled_T.nonzero()[7])
    logprob_T = score(MODEL, batch).logprob_T
    logprob_T[token] = float("nan")
    with pytest.raises(ValueError, match=r"logprob_T is nan at " + NAMED.format(turn=r"\d")):
        check_logprob_gap(batch, Scores(logprob_T=logprob_T))


def test_a_batch_without_sampler_log_probs_is_refused(batch):
    with pytest.raises(ValueError, match="no sampler log-probs"):
        check_logprob_gap(batch.with_(mu_T=None), score(MODEL, batch))


def test_turns_without_tokens_are_no_trouble(groups):
    silent = replace(groups[0].trajectories[0].turns[0], prompt_ids=(), sampled_ids=(), logprobs=None, reward=0.0)
    trajectory = replace(groups[0].trajectories[0], turns=[silent], final_ids=())
    batch = pack([replace(groups[0], trajectories=[trajectory])]).with_(mu_T=torch.zeros(0))
    assert check_logprob_gap(batch, Scores(logprob_T=torch.zeros(0))).worst == 0.0
