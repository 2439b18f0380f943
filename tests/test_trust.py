"""Recipes and run folders are programs: what runs of them, when, and on whose word."""

from __future__ import annotations

import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.train.small_runs import Screen, small_recipe
from turnwise import outside
from turnwise.audit.recorded import Recording
from turnwise.audit.replay_episode import _play  # pyright: ignore[reportPrivateUsage]
from turnwise.cli import app
from turnwise.envs.registry import make
from turnwise.evaluate.comparison import compare_folders
from turnwise.recipe.loading import load_recipe
from turnwise.report import write_report
from turnwise.runs.folder import RunFolder
from turnwise.runs.settings import to_yaml
from turnwise.train.stages import resume, train
from turnwise.trust import SIGNATURE, outside_names, sign, trusting
from turnwise.types import StopReason, Trajectory

MODULE = """
from pathlib import Path
Path(__file__).with_suffix(".imported").touch()

from tests.train.small_envs import Say
from turnwise.ops.advantages import ADVANTAGES

class Mine(Say):
    def __init__(self, **kwargs):
        Path(__file__).with_suffix(".called").touch()
        super().__init__(**kwargs)

def credit(batch, *, gamma: float = 1.0):
    Path(__file__).with_suffix(".called").touch()
    return ADVANTAGES["return-to-go"](batch, gamma=gamma)

def plan(*, tries: int = 1):
    Path(__file__).with_suffix(".called").touch()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of the user's own, and the user in it."""
    (tmp_path / "own_code.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(outside, "_folders", [str(tmp_path)])
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("own_code", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of such code, by this user on this machine."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "own_code.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        recipe = small_recipe({"env": {"id": "own_code:Mine", "check": False}, "train": {"steps": 1}})
        train(recipe, folder / "run", console=Screen())
    sys.modules.pop("own_code", None)
    return folder / "run"


@pytest.fixture
def made(mine: Path, trained: Path) -> Path:
    """That run in the user's folder."""
    shutil.copytree(trained, mine / "run")
    return mine / "run"


def from_elsewhere(run: Path) -> Path:
    """The run as it arrives on another machine; its code was not imported there yet."""
    (run / SIGNATURE).unlink()
    _forget(run.parent)
    return run


def _forget(folder: Path) -> None:
    sys.modules.pop("own_code", None)
    for trace in ("imported", "called"):
        (folder / f"own_code.{trace}").unlink(missing_ok=True)


def traces(folder: Path) -> list[str]:
    """Whether the user's code was imported, and whether any of it was called."""
    return [trace for trace in ("imported", "called") if (folder / f"own_code.{trace}").exists()]


def turnwise(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_recipe_never_calls_what_is_not_an_environment(mine: Path) -> None:
    (mine / "evil.yaml").write_text("env: {id: 'os:system', kwargs: {command: touch owned}}\nmodel: pico\n")
    for options in ([], ["--dry-run"]):
        result = turnwise("train", "evil.yaml", *options)
        assert not (mine / "owned").exists(), options
        assert result.exit_code == (0 if options else 2)
    assert "os:system is not an environment; name a class with reset and step" in turnwise("train", "evil.yaml").stderr
    assert not (mine / "runs").exists()


@pytest.mark.parametrize(
    "settings",
    [
        ["env=own_code:Mine"],
        ["algorithm.advantage=own_code:credit"],
        ["algorithm.sampling=own_code:plan"],
        ["env={id: 'own_code:Mine', kwargs: {turns: 2}}", "sft={}"],
    ],
)
def test_a_dry_run_imports_and_calls_nothing_of_the_users(mine: Path, settings: list[str]) -> None:
    result = turnwise("train", "model=pico", "rollout.episodes=16", *settings, "--dry-run")
    assert result.exit_code == 0, result.output
    assert traces(mine) == []
    assert "own_code" not in sys.modules
    assert "was not imported; its arguments are checked when the run starts" in result.stdout


def test_a_dry_run_names_code_that_is_not_there(mine: Path) -> None:
    for setting in ("env=own_code:Yours", "algorithm.advantage=own_code:debit", "env=no_code_at_all:Mine"):
        result = turnwise("train", "model=pico", setting, "--dry-run")
        assert (result.exit_code, "there is no module" in result.stderr or "has no" in result.stderr) == (2, True)
    assert traces(mine) == []


def test_a_dry_run_still_asks_the_experts_of_our_own_environments(mine: Path) -> None:
    assert "as the expert" in turnwise("train", "model=pico", "env=lookup/2hop", "--dry-run").stdout


def test_the_users_own_code_trains_resumes_and_evaluates_without_further_ado(made: Path) -> None:
    assert resume(made, console=Screen(), overrides={"train": {"steps": 2}})["status"] == "finished"
    result = turnwise("eval", str(made), "--episodes", "4")
    assert result.exit_code == 0, result.output
    assert turnwise("verify", str(made)).exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "RUN", "--episodes", "4"],
        ["resume", "RUN", "train.steps=2", "--quiet"],
        ["verify", "RUN"],
        ["replay", "RUN", "--step", "1"],
        ["explain", "RUN/config.yaml"],
        ["train", "RUN/config.yaml", "--output", "again", "--quiet"],
    ],
)
def test_a_run_from_elsewhere_imports_its_code_only_with_trust(made: Path, command: list[str]) -> None:
    run = from_elsewhere(made)
    arguments = [word.replace("RUN", str(run)) for word in command]
    refused = turnwise(*arguments)
    assert refused.exit_code == 2, refused.output
    assert "names code outside turnwise (own_code:Mine), and you did not write it" in refused.stderr
    assert "--trust" in refused.stderr
    assert traces(run.parent) == []
    allowed = turnwise(*arguments, "--trust")
    assert allowed.exit_code == 0, allowed.output


def test_a_run_whose_config_was_exchanged_is_not_this_users_any_more(made: Path) -> None:
    config = yaml.safe_load((made / "config.yaml").read_text())
    config["env"] = {"id": "os:system", "kwargs": {"command": f"touch {made / 'owned'}"}, "check": False}
    (made / "config.yaml").write_bytes(to_yaml(config))
    for arguments in (["eval", str(made)], ["resume", str(made), "train.steps=2"]):
        for trust in ([], ["--trust"]):
            assert turnwise(*arguments, *trust).exit_code == 2
            assert not (made / "owned").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": {"advantage": {"kind": "own_code:credit"}}},
        {"algorithm": {"critic": {"level": "none", "loss": {"kind": "own_code:credit"}}}},
        {"algorithm": {"regularizers": [{"kind": "own_code:credit"}]}},
        {"algorithm": {"preset": "other.yaml"}},
        {"env": "own_code:Mine"},
        {"extends": "other.yaml"},
    ],
)
def test_no_way_leads_from_a_config_from_elsewhere_to_code(mine: Path, change: dict[str, Any]) -> None:
    (mine / "meta.json").write_text("{}")
    (mine / "other.yaml").write_text("algorithm: {preset: rebn, advantage: 'own_code:credit'}\n")
    (mine / "config.yaml").write_text(yaml.safe_dump(change))
    with pytest.raises(ValueError, match="names code outside turnwise"):
        load_recipe(mine / "config.yaml")
    assert traces(mine) == []


def test_runs_of_turnwise_alone_need_no_trust_no_key_and_no_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    scale = {"kind": "turnwise.reproduce.replayed_scales:RecordedScale"}
    assert outside_names({"env": "gem/game:Sudoku-v0", "algorithm": {"scale": scale, "name": "st-ppo"}}) == []
    small = {"env": {"id": "lookup/2hop", "check": False}, "train": {"steps": 1}}
    train(small_recipe(small), tmp_path / "run", console=Screen())
    assert not (tmp_path / "run" / SIGNATURE).exists()
    assert not (tmp_path / "state").exists()
    Recording.open(tmp_path / "run")


def test_a_scoring_function_among_the_arguments_of_an_environment_is_outside_code() -> None:
    user = {"url": "http://127.0.0.1:8000/v1", "model": "m"}
    env = {"id": "chat/prompts", "kwargs": {"path": "p.jsonl", "score": "own_code:points", "user": user}}
    assert outside_names({"env": env}) == ["own_code:points"]
    assert outside_names({"env": {"id": "chat/prompts", "held_out": {"score": "own-code:points"}}}) == [
        "own-code:points"
    ]


def test_an_address_is_no_scoring_function(mine: Path) -> None:
    (mine / "prompts.jsonl").write_text("".join(f'{{"prompt": "who is {n}?"}}\n' for n in range(20)))
    with pytest.raises(ValueError, match="unknown score"):
        make("chat/prompts", path=str(mine / "prompts.jsonl"), score="own_code://x")
    assert not (mine / "own_code.imported").exists()


@pytest.mark.parametrize("kwargs", [{"score": "own_code:points"}, {"program": "", "command": "touch owned"}])
def test_a_ledger_names_no_code_that_the_config_does_not(kwargs: dict[str, Any]) -> None:
    recipe = small_recipe({"env": {"id": "lookup/2hop", "check": False}})
    said = Trajectory(id="a/0", turns=[], stop=StopReason.DONE, seed=1, kwargs=kwargs)
    with pytest.raises(ValueError, match=r"(own_code:points|touch owned).*--trust"):
        _play(recipe, {"agent": said})


@pytest.mark.parametrize("place", ["own_code.a/b:credit", "own_code:a/b", "own_code:a b"])
def test_a_name_that_counts_as_nobodys_code_imports_nothing(mine: Path, place: str) -> None:
    outside.extend_path()
    with pytest.raises(ImportError, match="is neither"):
        outside.load(place)
    assert traces(mine) == []


def test_reports_and_comparisons_read_a_run_from_elsewhere_and_import_nothing(made: Path) -> None:
    run = from_elsewhere(made)
    write_report([run], run.parent / "report.html")
    with pytest.raises(ValueError, match="no evaluation to compare"):
        compare_folders({"theirs": [run]})
    assert traces(run.parent) == []


def test_resuming_with_trust_makes_a_run_ones_own(made: Path) -> None:
    run = from_elsewhere(made)
    with trusting():
        resume(run, console=Screen(), overrides={"train": {"steps": 2}})
    Recording.open(run)


def test_the_key_is_this_users_alone_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config, choices = tmp_path / "config.yaml", {"env": "own_code:Mine"}
    config.write_text("env: own_code:Mine\n")
    (tmp_path / "meta.json").write_text("{}")
    runs = [tmp_path / str(number) for number in range(8)]
    signers = [threading.Thread(target=sign, args=(run / "config.yaml", b"", choices)) for run in runs]
    for run, signer in zip(runs, signers, strict=True):
        run.mkdir()
        signer.start()
    for signer in signers:
        signer.join()
    key = tmp_path / "state" / "turnwise" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32
    assert [file.name for file in key.parent.iterdir()] == ["key"]
    sign(config, config.read_bytes(), choices)
    assert load_recipe(config).env.id == "own_code:Mine"
    key.chmod(0o644)
    with pytest.raises(ValueError, match="--trust"):
        load_recipe(config)


def test_a_kill_between_signature_and_config_leaves_a_run_that_is_trusted(made: Path) -> None:
    config = made / "config.yaml"
    for number in range(20):
        sign(config, b"a config that was never written %d" % number, {"env": "own_code:Mine"})
        if number == 3:
            Recording.open(made)
    sign(config, config.read_bytes(), {"env": "own_code:Mine"})
    Recording.open(made)
    assert (made / SIGNATURE).stat().st_size < 4096


def test_the_history_of_a_run_names_no_code_of_its_own(made: Path) -> None:
    history = made / "history.jsonl"
    history.write_text(
        history.read_text().replace("own_code:Mine", "own_code:credit").replace("return-to-go", "own_code:x")
    )
    recording = Recording(run=RunFolder.open(made), recipe=load_recipe(made / "config.yaml"))
    assert recording.recipe_at(1).algorithm == recording.recipe.algorithm


def test_a_signature_that_is_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("env: own_code:Mine\n")
    (tmp_path / "precious").write_text("precious")
    (tmp_path / SIGNATURE).symlink_to(tmp_path / "precious")
    sign(tmp_path / "config.yaml", b"", {"env": "own_code:Mine"})
    assert (tmp_path / "precious").read_text() == "precious"


def test_where_no_key_can_be_kept_a_run_trains_and_says_what_follows(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mine / "occupied").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(mine / "occupied"))
    screen = Screen()
    train(
        small_recipe({"env": {"id": "own_code:Mine", "check": False}, "train": {"steps": 1}}),
        mine / "run",
        console=screen,
    )
    assert "set XDG_STATE_HOME to a folder; so this run looks like one from elsewhere" in " ".join(screen.text.split())
    with pytest.raises(ValueError, match="--trust"):
        Recording.open(mine / "run")


def test_a_folder_is_searched_for_modules_only_when_a_recipe_names_one(mine: Path) -> None:
    (mine / "numpy.py").write_text(MODULE)  # a file that bears the name of a package must not take its place
    assert turnwise("report", str(mine)).exit_code == 2
    assert str(mine) not in sys.path
    assert outside.load("own_code:Mine") is not None
    assert sys.path[-1] == str(mine)
    assert not (mine / "numpy.imported").exists()
