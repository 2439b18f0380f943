"""A recipe chooses what samples its tokens."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.small_runs import Screen, played, rows, small_recipe, trajectories
from turnwise.audit.verify import verify_run
from turnwise.engine.contract import Completion, EngineSetup, Finish, SamplingParams, Weights
from turnwise.engine.kinds import check_engine
from turnwise.train.stages import train
from turnwise.trust import outside_names

HERE = "tests.train.test_engine_choice"


class Apart:
    """Samples from its own copy of the weights, as an engine in another process would."""

    lockstep = False
    made: list[Apart] = []  # noqa: RUF012

    def __init__(self, setup: EngineSetup, *, busy: float = 0.0) -> None:
        self.setup, self.model, self.capacity = setup, copy.deepcopy(setup.model), setup.capacity
        self.model.set_attn_implementation("sdpa")
        self.busy_seconds, self.busy = 0.0, busy
        self.versions: list[int] = []
        self.sessions: dict[str, list[int]] = {}
        self.ended = False
        Apart.made.append(self)

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        ids = self.sessions.setdefault(session, [])
        ids += new_ids
        sampled, logprobs = list[int](), list[float]()
        while len(sampled) < params.max_tokens and not (sampled and sampled[-1] in params.stop_ids):
            with torch.no_grad():
                logprob = self.model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)
            drawn = random.Random(f"{session}:{len(ids)}").random()
            sampled.append(min(int(torch.searchsorted(logprob.exp().cumsum(0), drawn)), len(logprob) - 1))
            logprobs.append(float(logprob[sampled[-1]]))
            ids.append(sampled[-1])
        self.busy_seconds += self.busy
        finish = Finish.STOP if sampled[-1] in params.stop_ids else Finish.MAX_TOKENS
        return Completion(ids=sampled, logprobs=logprobs, versions=[self.versions[-1]] * len(sampled), finish=finish)

    def publish(self, weights: Weights | None, version: int) -> None:
        assert weights is not None
        self.versions.append(version)
        self.model.load_state_dict(dict(weights.named()))

    def close(self, session: str) -> None:
        self.sessions.pop(session, None)

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()

    def expect(self, requests: int | None) -> None:
        raise AssertionError("it said that it cannot")

    def shutdown(self) -> None:
        self.ended = True


@pytest.fixture(autouse=True)
def _forget() -> None:
    Apart.made.clear()


def test_an_engine_of_the_users_own_gets_the_weights_and_its_tokens_are_trained_on(tmp_path: Path) -> None:
    engine = {"kind": f"{HERE}:Apart", "options": {"busy": 2.5}}
    recipe = small_recipe({"engine": engine, "train": {"steps": 2}, "checkpoint": {"every": 1, "keep": 3}})
    assert train(recipe, tmp_path / "run", console=Screen())["status"] == "finished"
    (engine,) = Apart.made
    assert engine.versions == [0, 1, 2]
    assert engine.ended
    assert not engine.sessions
    saved = load_file(tmp_path / "run" / "checkpoints" / "step_000002" / "model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in engine.model.state_dict().items() if name in saved)
    turns = [turn for one in trajectories(played(tmp_path / "run", 2)) for turn in one.turns]
    assert {turn.policy_version for turn in turns} == {1}
    checks = list(verify_run(tmp_path / "run"))
    assert all(check.ok and check.gap is not None for check in checks)
    assert all(row["time/model"] > 2.5 * 16 for row in rows(tmp_path / "run"))  # what the engine says of itself


def test_a_step_that_must_be_in_lockstep_refuses_an_engine_that_cannot(tmp_path: Path) -> None:
    recipe = small_recipe({"engine": f"{HERE}:Apart", "rollout": {"lockstep": True}})
    with pytest.raises(ValueError, match=r"rollout.lockstep is true, but the engine \(engine.kind\) cannot"):
        train(recipe, tmp_path / "run", console=Screen())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            "os:system",
            {},
            "os:system is not a class with generate and publish and shutdown, and nothing else is called",
        ),
        ("no_such_module:Engine", {}, "engine.kind: no_such_module:Engine does not load"),
        (
            f"{HERE}:Apart",
            {"bussy": 1},
            "is made as Class\\(setup, \\*\\*options\\): unknown option 'bussy'; did you mean",
        ),
        ("torch", {"batch": 1}, "torch has no option 'batch'; it takes max_batch, chunk_tokens"),
    ],
)
def test_an_engine_that_cannot_be_made_is_refused(kind: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_engine(kind, options)


def test_an_engine_outside_of_turnwise_needs_trust() -> None:
    assert outside_names({"engine": "mine:Engine"}) == ["mine:Engine"]
    assert outside_names({"engine": {"kind": "mine:Engine"}, "env": "mine:Env"}) == ["mine:Env", "mine:Engine"]
    assert outside_names({"engine": "torch"}) == []


def test_dropping_keys_and_values_is_an_option_of_the_built_in_engine(tmp_path: Path) -> None:
    ahead = {"preset": "rebn", "max_lag": 1, "mismatch": "truncated"}
    recipe = small_recipe({"algorithm": ahead, "engine": {"options": {"recompute": True}}, "train": {"steps": 2}})
    started = time.monotonic()
    assert train(recipe, tmp_path / "run", console=Screen())["status"] == "finished"
    assert time.monotonic() - started < 300
