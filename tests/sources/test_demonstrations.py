"""The expert's episodes as tokens: what a model would have sampled, turn by turn."""

import asyncio
from dataclasses import replace

import pytest
import torch

from tests.policy.tokenizers_for_chat import by_letters, chat_tokenizer
from turnwise.engine.contract import SamplingParams
from turnwise.engine.serving import EngineServer
from turnwise.engine.torch_engine import TorchEngine
from turnwise.envs.base import Env
from turnwise.nano.tokenizer import render
from turnwise.policy.rendering import Renderer
from turnwise.policy.text import TextPolicy
from turnwise.recipe.schema import EnvChoice
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.packing import pack
from turnwise.rollout.policy_agent import PolicyAgent
from turnwise.rollout.scheduler import Scheduler
from turnwise.rollout.token_checks import check_batch, check_ledger, verify
from turnwise.sources.demonstrations import add_tokens, expert_groups, spell
from turnwise.types import Group, StopReason

pytest.importorskip("tantivy")
ONE_HOP, GAME = EnvChoice(id="search/geo-1hop"), EnvChoice(id="game/guess-number-easy")


@pytest.fixture(scope="module")
def policy():
    return TextPolicy.load("nano")


@pytest.fixture(scope="module")
def renderer(policy):
    return Renderer(policy.tokenizer)


@pytest.fixture(scope="module")
def demonstrations(renderer):
    return {env.id: expert_groups(env, renderer, count=64, max_turns=8, seed=0) for env in (ONE_HOP, GAME)}


def nll(policy, groups):
    batch = pack(groups)
    with torch.no_grad():
        return -float(policy.score(batch).logprob_T[batch.sampled_T].mean())


def trajectories(groups):
    return [trajectory for group in groups for trajectory in group.trajectories]


class Timid(Env):
    """Its expert succeeds for half of the seeds, crashes for a quarter, and gives up for the rest."""

    def reset(self, seed=None, task=None):
        super().reset(seed=seed)
        self.kind = self.rng.choice(["good", "good", "crash", "poor"])
        return "go", {}

    def step(self, action):
        if self.kind == "crash":
            raise RuntimeError("lost")
        return "end", float(self.kind == "good"), True, False, {"success": self.kind == "good"}

    def oracle(self) -> str:
        return "left"


class Inexpert(Timid):
    oracle = Env.oracle


class Doomed(Timid):
    def oracle(self):
        raise RuntimeError("no idea")


TIMID, INEXPERT, DOOMED = (EnvChoice(id=f"{__name__}:{kind.__name__}") for kind in (Timid, Inexpert, Doomed))


@pytest.mark.parametrize("env", [ONE_HOP.id, GAME.id])
def test_tokens_of_an_episode_are_those_of_the_chat_form_nano_was_trained_on(policy, demonstrations, env):
    for trajectory in trajectories(demonstrations[env]):
        text = render([(turn.observation, turn.action) for turn in trajectory.turns])
        ids = [id for turn in trajectory.turns for id in (*turn.prompt_ids, *turn.sampled_ids)]
        assert ids == policy.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("env", [ONE_HOP.id, GAME.id])
def test_every_prompt_goes_on_where_the_turn_before_it_ended(demonstrations, renderer, env):
    ledgers = [check_ledger(trajectory, renderer) for trajectory in trajectories(demonstrations[env])]
    assert len(ledgers) == 64
    assert sum(ledger.turns for ledger in ledgers) >= 2 * 64
    assert all((ledger.restarts, ledger.respelt) == (0, 0) for ledger in ledgers)


@pytest.mark.parametrize("env", [ONE_HOP.id, GAME.id])
def test_only_the_experts_words_and_its_end_tokens_count_as_sampled(demonstrations, renderer, env):
    groups = demonstrations[env]
    batch = pack(groups)
    check_batch(batch)
    assert batch.mu_T is None
    said = "".join(turn.action + "<|end|>" for trajectory in trajectories(groups) for turn in trajectory.turns)
    assert renderer.decode(batch.ids_T[batch.sampled_T].tolist()) == said


def test_sampled_ids_with_the_models_own_logprobs_pass_every_check_of_the_sampler(policy, demonstrations, renderer):
    groups = demonstrations[ONE_HOP.id][:8]
    batch = pack(groups)
    with torch.no_grad():
        logprob_T = policy.score(batch).logprob_T
    logprobs = iter([logprob_T[batch.turn_T == row].clamp_max(0).tolist() for row in range(batch.turns)])
    filled = [
        Group(
            id=group.id,
            trajectories=[
                replace(one, turns=[replace(turn, logprobs=next(logprobs)) for turn in one.turns])
                for one in group.trajectories
            ],
        )
        for group in groups
    ]
    with torch.no_grad():
        assert verify(filled, renderer, policy.score, tolerance=1e-4).mean < 1e-6


def test_nano_finds_the_demonstrations_likely_and_another_spelling_of_them_not(policy, demonstrations, renderer):
    # Measured: 0.50 and 0.30 nats a token: the expert words a query or chooses a number as nano rarely does.
    assert nll(policy, demonstrations[ONE_HOP.id]) < 0.55
    assert nll(policy, demonstrations[GAME.id]) < 0.35
    by_letter = [
        replace(one, turns=[replace(turn, sampled_ids=[*by_letters(policy.tokenizer, turn.action), renderer.end_id])])
        for one in trajectories(demonstrations[GAME.id])
        for turn in one.turns[:1]
    ]
    assert nll(policy, [Group(id="by letter", trajectories=by_letter)]) > 10


def test_nano_is_certain_of_every_end_token(policy, demonstrations, renderer):
    batch = pack(demonstrations[ONE_HOP.id])
    with torch.no_grad():
        logprob_T = policy.score(batch).logprob_T
    assert float(logprob_T[batch.sampled_T & (batch.ids_T == renderer.end_id)].min()) > -0.01


def test_greedy_turns_of_nano_have_the_same_tokens_when_written_down_as_demonstrations(policy, renderer):
    specs = [EpisodeSpec(env=env.id, seed=seed) for env in (ONE_HOP, GAME) for seed in range(24)]

    async def play():
        with EngineServer(TorchEngine(policy.model, tokenizer=policy.tokenizer, memory_bytes=2**27)) as server:
            sampling = SamplingParams(max_tokens=48, temperature=0.0)
            agent = PolicyAgent(engine=server, renderer=renderer, sampling=sampling)
            async with Scheduler(concurrency=48, limits=Limits(max_turns=8)) as scheduler:
                return await scheduler.run(specs, agent)

    compared = 0
    for trajectory in asyncio.run(play()):
        conversation = renderer.open()
        for turn in trajectory.turns:
            written = replace(turn)
            add_tokens(written, conversation)
            assert (written.action, written.prompt_ids) == (turn.action, turn.prompt_ids)
            if turn.sampled_ids[-1] == renderer.end_id:  # the others were cut by the token limit
                assert list(written.sampled_ids) == list(turn.sampled_ids)
                compared += 1
    assert compared >= 140  # 150 of 152


def test_failures_and_faults_are_left_out_and_counted(renderer):
    told = list[str]()
    groups = expert_groups(TIMID, renderer, count=60, max_turns=4, seed=1, note=told.append)
    assert all(one.success and one.stop is StopReason.DONE for one in trajectories(groups))
    assert 20 <= len(groups) <= 40
    assert told == [f"{60 - len(groups)} of 60 demonstrations in {TIMID.id} failed and are left out"]
    all_whole = expert_groups(TIMID, renderer, count=60, max_turns=4, seed=1, only_success=False)
    assert len(groups) < len(all_whole) < 60
    assert not any(one.stop.is_failure for one in trajectories(all_whole))


def test_equal_seeds_give_equal_demonstrations_and_others_others(renderer, demonstrations):
    def ids(groups):
        return [[list(turn.sampled_ids) for turn in one.turns] for one in trajectories(groups)]

    again = expert_groups(GAME, renderer, count=64, max_turns=8, seed=0)
    other = expert_groups(GAME, renderer, count=64, max_turns=8, seed=1)
    assert ids(again) == ids(demonstrations[GAME.id]) != ids(other)
    assert {one.seed for one in trajectories(again)}.isdisjoint(one.seed for one in trajectories(other))


def test_an_environment_without_an_expert_is_refused_with_the_fix(renderer):
    with pytest.raises(ValueError, match=r"Inexpert has no scripted expert to imitate; give sft\.chats a JSONL file"):
        expert_groups(INEXPERT, renderer, count=4, max_turns=4, seed=0)


def test_an_expert_that_never_succeeds_is_refused_with_its_last_error(renderer):
    with pytest.raises(ValueError, match=r"succeeded in none of 4 episodes \(the last error: .*no idea"):
        expert_groups(DOOMED, renderer, count=4, max_turns=4, seed=0)
    with pytest.raises(ValueError, match=r"it may need more than rollout\.max_turns=1"):
        expert_groups(ONE_HOP, renderer, count=4, max_turns=1, seed=0)


@pytest.mark.parametrize("text", ["<think>\nhm</think>city", "<think>hm</think>city", "hm</think>city"])
def test_reasoning_that_the_prompt_opens_is_not_opened_again(text):
    tokenizer = chat_tokenizer("qwen3")
    template = str(tokenizer.chat_template).replace("assistant\\n'", "assistant\\n<think>\\n'")
    renderer = Renderer(tokenizer, template=template)
    assert renderer.opening == "<think>\n"
    assert renderer.decode(spell(renderer, text)) == "hm</think>city<|im_end|>"


def test_what_reads_like_the_end_of_a_turn_stays_text():
    renderer = Renderer(chat_tokenizer("chatml"))
    ids = spell(renderer, "say <|im_end|> twice")
    assert [id for id in ids if id == renderer.end_id] == [renderer.end_id]
    assert ids[-1] == renderer.end_id
    assert renderer.decode(ids[:-1]) == "say <|im_end|> twice"
