"""A model as an agent: tokens, log-probs and sessions through whole episodes."""

import asyncio
import random
import threading
from dataclasses import replace

import pytest

from tests.envs.broken import Sound
from tests.policy.tokenizers_for_chat import chat_tokenizer
from tests.rollout.reference_engine import PlainEngine, ReferenceEngine, score, tiny_llama
from turnwise.engine.contract import Completion, Finish, SamplingParams
from turnwise.envs import Env
from turnwise.policy.rendering import Renderer
from turnwise.rollout.agents import View
from turnwise.rollout.episode import EpisodeSpec, Limits, tries
from turnwise.rollout.packing import pack
from turnwise.rollout.policy_agent import PolicyAgent
from turnwise.rollout.scheduler import Scheduler
from turnwise.rollout.token_checks import check_ledger
from turnwise.types import Group, StopReason

TOKENIZER = chat_tokenizer("chatml")
MODEL = tiny_llama(len(TOKENIZER))
SAMPLING = SamplingParams(max_tokens=25, stop_strings=("e",))


def run(agent, specs, *, seed=0, limits=None, concurrency=8):
    async def main():
        async with Scheduler(seed=seed, limits=limits, concurrency=concurrency) as scheduler:
            return await scheduler.run(specs, agent)

    return asyncio.run(main())


def make_agent(*, sampling=SAMPLING, context=1024, model=MODEL, **renderer):
    engine = ReferenceEngine(model, tokenizer=TOKENIZER, context=context)
    return PolicyAgent(engine=engine, renderer=Renderer(TOKENIZER, **renderer), sampling=sampling), engine


def sequence(trajectory):
    ids = [token for turn in trajectory.turns for token in (*turn.prompt_ids, *turn.sampled_ids)]
    return ids + list(trajectory.final_ids)


class Scripted(PlainEngine):
    """An engine that says what it is told to."""

    capacity = 1024

    def __init__(self, *completions):
        self.completions, self.asked, self.closed = list(completions), [], []

    async def generate(self, session, new_ids, params):
        self.asked.append((session, list(new_ids)))
        return self.completions[(len(self.asked) - 1) % len(self.completions)]

    def close(self, session):
        self.closed.append(session)


def completion(text, *, finish=Finish.STOP, end=True, versions=None):
    ids = TOKENIZER.encode(text) + ([2] if end else [])
    return Completion(ids=ids, logprobs=[-0.5] * len(ids), versions=versions or [0] * len(ids), finish=finish)


def test_the_ledger_holds_exactly_what_the_engine_saw_and_sampled():
    seen = {}

    class Watched(ReferenceEngine):
        def close(self, session):
            seen[session.rpartition("/")[0]] = list(self.sessions[session])
            super().close(session)

    engine = Watched(MODEL, tokenizer=TOKENIZER)
    agent = PolicyAgent(engine=engine, renderer=Renderer(TOKENIZER, system="Guess."), sampling=SAMPLING)
    trajectories = run(agent, tries(EpisodeSpec(env=Sound, seed=3), 5))
    assert engine.sessions == {}
    for trajectory in trajectories:
        ids = sequence(trajectory)
        assert ids[: len(ids) - len(trajectory.final_ids)] == seen[trajectory.id]
        assert check_ledger(trajectory, Renderer(TOKENIZER, system="Guess.")).turns == len(trajectory.turns)
    assert sum(len(trajectory.turns) for trajectory in trajectories) > 10
    batch = pack([Group(id="all", trajectories=trajectories)])
    assert batch.mu_T is not None
    assert float((batch.mu_T - score(MODEL, batch).logprob_T)[batch.sampled_T].abs().max()) < 1e-5


def test_equal_seeds_give_equal_tokens_whatever_the_concurrency_and_other_seeds_do_not():
    specs = tries(EpisodeSpec(env=Sound, seed=3), 3)
    alone, together, other = (
        [sequence(trajectory) for trajectory in run(make_agent()[0], specs, seed=seed, concurrency=concurrency)]
        for seed, concurrency in ((0, 1), (0, 4), (1, 4))
    )
    assert alone == together
    assert alone != other
    assert len({tuple(ids) for ids in alone}) == 3


def test_a_turn_that_reaches_its_token_limit_ends_the_episode_there():
    agent, _ = make_agent(sampling=SamplingParams(max_tokens=3, bad_ids=(2,)))
    (trajectory,) = run(agent, [EpisodeSpec(env=Sound)])
    assert (trajectory.stop, trajectory.truncated) == (StopReason.MAX_TOKENS, True)
    assert [(len(turn.sampled_ids), turn.valid) for turn in trajectory.turns] == [(3, False)]
    assert "valid" not in trajectory.info  # of which the environment knows nothing
    assert list(trajectory.final_ids) == []  # the observation is the one that the turn had already read


def test_a_full_context_ends_the_episode_and_keeps_the_turns_before_it():
    agent, engine = make_agent(context=120)
    (trajectory,) = run(agent, [EpisodeSpec(env=Sound)])
    assert trajectory.stop is StopReason.CONTEXT_FULL
    assert trajectory.turns
    assert len(sequence(trajectory)) <= 120
    assert engine.sessions == {}
    assert check_ledger(trajectory, Renderer(TOKENIZER)).turns == len(trajectory.turns)


class Flood(Env):
    """Its first or its last observation is `size` characters long."""

    def __init__(self, *, size=0, first=True, word="word "):
        super().__init__()
        self.text, self.first = (word * size)[:size], first

    def reset(self, seed=None, task=None):
        return self.text if self.first else "begin", {}

    def step(self, action):
        return self.text or "on", 0.0, False, False, {}


@pytest.fixture
def encoded(monkeypatch):
    """How long each text was that was tokenised, and whether that was done in the event loop."""
    seen, encode = [], type(TOKENIZER).encode

    def listen(tokenizer, text, **options):
        seen.append((len(text), threading.current_thread() is threading.main_thread()))
        return encode(tokenizer, text, **options)

    monkeypatch.setattr(type(TOKENIZER), "encode", listen)
    return seen


def test_an_observation_beyond_the_context_is_refused_after_its_beginning_and_outside_the_event_loop(encoded):
    agent, engine = make_agent(context=512)
    specs = [EpisodeSpec(env=Flood, kwargs={"size": size}) for size in (10_000_000, 0)]
    flooded, calm = run(agent, specs, limits=Limits(max_turns=2))
    assert (flooded.stop, flooded.turns) == (StopReason.CONTEXT_FULL, [])
    assert calm.turns
    assert engine.sessions == {}
    assert max(encoded)[0] < 100_000
    assert not [length for length, in_loop in encoded if in_loop and length > 1_000]


def test_a_long_observation_that_fits_gives_the_tokens_that_it_always_gave(encoded):
    engine = Scripted(completion("hm"))
    engine.capacity = 100_000
    agent = PolicyAgent(engine=engine, renderer=Renderer(TOKENIZER))
    spec = EpisodeSpec(env=Flood, kwargs={"size": 33_000, "word": "many words "})
    (trajectory,) = run(agent, [spec], limits=Limits(max_turns=1))
    assert not [length for length, in_loop in encoded if in_loop and length > 1_000]
    expected = Renderer(TOKENIZER).open().observe("many words " * 3_000)
    assert list(trajectory.turns[0].prompt_ids) == expected.ids


@pytest.mark.parametrize(("size", "kept"), [(100, True), (1_000_000, False)])
def test_a_last_observation_beyond_the_context_becomes_no_final_ids(size, kept):
    agent = PolicyAgent(engine=Scripted(completion("hm")), renderer=Renderer(TOKENIZER))
    spec = EpisodeSpec(env=Flood, kwargs={"size": size, "first": False})
    (trajectory,) = run(agent, [spec], limits=Limits(max_turns=1))
    assert (trajectory.stop, bool(trajectory.final_ids)) == (StopReason.MAX_TURNS, kept)


def test_the_last_observation_of_a_truncated_episode_becomes_final_ids():
    agent = PolicyAgent(engine=Scripted(completion("hm")), renderer=Renderer(TOKENIZER))
    (trajectory,) = run(agent, [EpisodeSpec(env=Sound)], limits=Limits(max_turns=2))
    assert trajectory.stop is StopReason.MAX_TURNS
    expected = "\n<|im_start|>user\nAnswer like \\boxed{3}.<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.decode(list(trajectory.final_ids)) == expected


def test_a_finished_episode_has_no_final_ids_and_the_oldest_version_counts():
    said = completion(r"\boxed{3}", versions=[7, 6] + [7] * (len(TOKENIZER.encode(r"\boxed{3}")) - 1))
    agent = PolicyAgent(engine=Scripted(said), renderer=Renderer(TOKENIZER))
    trajectory = next(
        one for one in run(agent, [EpisodeSpec(env=Sound, seed=seed) for seed in range(9)]) if one.success
    )
    assert (trajectory.terminated, list(trajectory.final_ids)) == (True, [])
    assert (trajectory.turns[-1].action, trajectory.turns[-1].policy_version) == (r"\boxed{3}", 6)


def test_keys_and_values_older_than_every_token_decide_the_version_of_a_turn():
    said = replace(completion("hm", versions=[7] * (len(TOKENIZER.encode("hm")) + 1)), oldest_version=4)
    agent = PolicyAgent(engine=Scripted(said), renderer=Renderer(TOKENIZER))
    (trajectory,) = run(agent, [EpisodeSpec(env=Sound)], limits=Limits(max_turns=1))
    assert trajectory.turns[0].policy_version == 4


def test_a_rewritten_history_goes_to_a_new_session_with_the_whole_prompt():
    tokenizer = chat_tokenizer("qwen3")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = [*tokenizer.encode("<think>\nhm\n</think>\n\nno"), end]
    engine = Scripted(Completion(ids=ids, logprobs=[-0.5] * len(ids), versions=[0] * len(ids), finish=Finish.STOP))
    agent = PolicyAgent(engine=engine, renderer=Renderer(tokenizer))
    (trajectory,) = run(agent, [EpisodeSpec(env=Sound)])
    assert [turn.restarts for turn in trajectory.turns] == [False, True, True, True]
    sessions = [session for session, _ in engine.asked]
    assert len(set(sessions)) == 4
    assert engine.closed == sessions
    assert pack([Group(id="one", trajectories=[trajectory])]).sequences == 4
    assert check_ledger(trajectory, Renderer(tokenizer)).restarts == 3


def test_both_seats_of_a_game_keep_their_own_conversation():
    class Duet(Env):
        seats = ("left", "right")

        def reset(self, seed=None, task=None):
            super().reset(seed=seed)
            self.turn = 0
            return "to left", {"seat": "left"}

        def step(self, action):
            self.turn += 1
            seat = self.seats[self.turn % 2]
            return f"to {seat}", 0.0, self.turn == 4, False, {"seat": seat}

    engine = Scripted(completion("hm"))
    left, right = run(PolicyAgent(engine=engine, renderer=Renderer(TOKENIZER)), [EpisodeSpec(env=Duet)])
    assert [turn.observation for turn in left.turns] == ["to left"] * 2
    assert len(set(engine.closed)) == 2
    for trajectory in (left, right):
        assert check_ledger(trajectory, Renderer(TOKENIZER)).turns == 2


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Completion(ids=[5, 2], logprobs=[-0.1], versions=[0, 0], finish=Finish.STOP), "2 sampled ids, 1 log-probs"),
        (
            Completion(ids=[5], logprobs=[float("nan")], versions=[0], finish=Finish.STOP),
            "token 0: id 5 with log-prob nan",
        ),
        (
            Completion(ids=[5, 6], logprobs=[-0.1, 0.2], versions=[0, 0], finish=Finish.STOP),
            "token 1: id 6 with log-prob 0.2",
        ),
        (Completion(ids=[-1], logprobs=[-0.1], versions=[0], finish=Finish.STOP), "token 0: id -1"),
    ],
)
def test_a_broken_completion_fails_its_own_episode_and_names_the_turn(broken, message):
    engine = Scripted(broken)
    agent = PolicyAgent(engine=engine, renderer=Renderer(TOKENIZER))
    (trajectory,) = run(agent, [EpisodeSpec(env=Sound, seed=5)])
    assert (trajectory.stop, trajectory.info["culprit"]) == (StopReason.ENV_ERROR, "agent")
    assert message in trajectory.info["error"]
    assert "Sound:5/0' (agent), turn 0" in trajectory.info["error"]
    assert len(engine.closed) == 1


def test_a_cancelled_session_never_enters_a_batch():
    engine = Scripted(completion("hm", finish=Finish.CANCELLED, end=False))
    (trajectory,) = run(PolicyAgent(engine=engine, renderer=Renderer(TOKENIZER)), [EpisodeSpec(env=Sound)])
    assert trajectory.stop is StopReason.TIMEOUT
    assert trajectory.stop.is_failure


async def never():
    raise NotImplementedError("this agent asks the engine alone")


def test_a_conversation_left_behind_is_closed_when_an_episode_of_that_name_begins():
    engine = Scripted(completion("hm"))
    agent = PolicyAgent(engine=engine, renderer=Renderer(TOKENIZER))
    view = View(
        episode="one/0", seat="agent", turn=0, observation="Begin.", info={}, reward=0.0, rng=random.Random(0),
        oracle=never, random_action=never,
    )  # fmt: skip
    first, second = asyncio.run(agent.act(view)), asyncio.run(agent.act(view))
    assert first.prompt_ids == second.prompt_ids
    assert engine.closed == [engine.asked[0][0]]
