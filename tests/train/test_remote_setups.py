"""Servers in every set-up of a run: several, shared by ranks, one for each policy, and played ahead on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.local_servers import Local, local_server
from tests.train.small_runs import ENVS, Screen, played, rows, run, small_recipe, timeless, trajectories
from tests.train.test_ranked_runs import run_on
from turnwise.audit.verify import verify_run
from turnwise.policy.text import TextPolicy
from turnwise.recipe.machines import EngineChoice
from turnwise.train.stages import train


@contextmanager
def pico_servers(root: Path, *, count: int = 1) -> Iterator[list[Local]]:
    """Servers of pico in this process, as `turnwise engine serve pico` would be in another."""
    with ExitStack() as stack:
        models = [TextPolicy.load("pico", train=[]) for _ in range(count)]
        options = {"capacity": models[0].room, "memory": 0.05}
        yield [stack.enter_context(local_server(root, each.model, **options)) for each in models]


def engine(*servers: Local) -> dict[str, Any]:
    return {"engine": {"kind": "turnwise", "urls": [server.url for server in servers]}}


def test_an_episode_that_its_server_cannot_serve_is_a_fault_and_enters_no_batch(tmp_path: Path) -> None:
    with pico_servers(tmp_path) as (server,):
        server.unruly.spoil = lambda content: 400 if content["choices"][0]["token_ids"][0] % 7 == 0 else None
        assert run(tmp_path / "run", {**engine(server), "train": {"steps": 3}})["status"] == "finished"
    failed = [
        each for step in (1, 2, 3) for each in trajectories(played(tmp_path / "run", step)) if each.stop.is_failure
    ]
    assert failed
    assert {each.info["culprit"] for each in failed} == {"engine"}
    assert all(f"{server.url}: /inference/v1/generate answered 400" in str(each.info["error"]) for each in failed)
    metrics = rows(tmp_path / "run")
    assert sum(row["rollout/faults"] * 16 for row in metrics) == pytest.approx(len(failed))
    assert {row["rollout/episodes"] for row in metrics} == {16}


def test_two_ranks_with_a_server_each_go_in_lockstep_and_equal_two_ranks_without(tmp_path: Path) -> None:
    alone, one, _ = run_on(2, tmp_path / "alone", {})
    with pico_servers(tmp_path, count=2) as servers:
        outcomes, several, _ = run_on(2, tmp_path / "run", engine(*servers))
        assert all(len(server.unruly.requests) > 20 for server in servers)
    assert timeless(one.path) == timeless(several.path)
    for (_, expected, _), (_, found, _) in zip(alone, outcomes, strict=True):
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_two_ranks_share_one_server(tmp_path: Path) -> None:
    with pico_servers(tmp_path) as servers:
        outcomes, several, screens = run_on(2, tmp_path / "run", engine(*servers))
        assert servers[0].unruly.paths.count("/collective_rpc") == 4  # by rank 0 alone
    assert [summary["status"] for summary, _, _ in outcomes] == ["finished", "finished"]
    assert all(row["rollout/faults"] == 0 for row in rows(several.path))
    assert not [line for screen in screens for line in screen.text.splitlines() if "engine server" in line]


def test_a_refused_server_ends_all_ranks_with_the_same_message(tmp_path: Path) -> None:
    with pico_servers(tmp_path) as (server,):
        server.served._reloader.load = lambda folder: None  # it keeps other weights than the learner's
        torch.nn.init.zeros_(next(iter(server.served._model.parameters())).data)
        with pytest.raises(ValueError, match=r"no engine server can be used: .* its log-probs differ"):
            run_on(2, tmp_path / "run", engine(server))


def test_every_policy_has_its_own_servers(tmp_path: Path) -> None:
    duel = {
        "env": {"id": f"{ENVS}:Duel", "kwargs": {"rounds": 2}, "check": False},
        "policies": {"one": {}, "two": {}},
        "seats": {"left": "one", "right": "two"},
        "rollout": {"max_tokens": 40},
        "train": {"steps": 2},
    }
    with pico_servers(tmp_path, count=2) as (first, second):
        urls = {"one": [first.url], "two": [second.url]}
        recipe = {**duel, "engine": {"kind": "turnwise", "urls": urls}}
        assert run(tmp_path / "run", recipe)["status"] == "finished"
        assert all(len(server.unruly.requests) > 10 for server in (first, second))
        assert all(row[f"{name}/rollout/faults"] == 0 for row in rows(tmp_path / "run") for name in urls)
        shared = small_recipe({**duel, "engine": {"kind": "turnwise", "urls": [first.url]}})
        with pytest.raises(ValueError, match=r"engine.urls names no server for one; with one policy write"):
            train(shared, tmp_path / "other", console=Screen())
    assert all(check.ok for check in verify_run(tmp_path / "run"))


def test_playing_ahead_on_a_server_keeps_versions_and_logprobs_exact(tmp_path: Path) -> None:
    ahead = {"preset": "rebn", "max_lag": 1, "mismatch": "truncated"}
    changes = {"algorithm": ahead, "train": {"steps": 4}, "rollout": {"episodes": 32, "max_tokens": 8}}
    with pico_servers(tmp_path) as servers:
        assert run(tmp_path / "run", {**changes, **engine(*servers)})["status"] == "finished"
    for step in range(1, 5):
        versions = {turn.policy_version for one in trajectories(played(tmp_path / "run", step)) for turn in one.turns}
        assert versions <= {step - 2, step - 1}
    assert all(row["rollout/faults"] == 0 for row in rows(tmp_path / "run"))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"kind": "vllm"}, "engine.urls names no server for policy"),
        ({"urls": ["http://127.0.0.1:1"]}, "torch samples in this process; set engine.kind to one of turnwise, vllm"),
        (
            {"kind": "vllm", "urls": {"rival": ["http://127.0.0.1:1"]}},
            "rival plays nothing; those that play are policy",
        ),
        ({"kind": "sglang", "urls": ["http://a"], "options": {"batch": 1}}, "has no option 'batch'; it takes seconds"),
    ],
)
def test_servers_that_do_not_fit_the_recipe_are_one_message(
    tmp_path: Path, choice: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(small_recipe({"engine": choice}), tmp_path / "run", console=Screen())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("urls", "message"),
    [(["127.0.0.1:8100"], "is not an address such as http"), (["http://a", "http://a"], "is named twice")],
)
def test_addresses_are_checked(urls: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineChoice.model_validate({"kind": "vllm", "urls": urls})
