"""The doctor of the machine, on this machine."""

from importlib.metadata import metadata, version

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from turnwise import doctor
from turnwise.cli import app
from turnwise.tools.sandbox import check_sandbox


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    return {finding.check: finding for finding in doctor.examine(tmp_path_factory.mktemp("here") / "runs")}


def test_what_training_needs_works_here(findings):
    needed = ["machine", "run folder", "python", "dependencies", "torch", "nano model"]
    assert {check: findings[check].verdict for check in needed} == dict.fromkeys(needed, "pass")
    assert f"torch {version('torch')}" in findings["dependencies"].text
    assert "loads and samples on" in findings["nano model"].text


def test_every_extra_is_named_with_what_it_gives(findings):
    extras = metadata("turnwise").get_all("Provides-Extra") or []
    assert [check for check in findings if check.startswith("extra ")] == [f"extra {extra}" for extra in extras]
    assert "environments search/geo-1hop" in findings["extra search"].text
    assert "adapter" in findings["extra lora"].text


def test_the_sandbox_is_tried_and_a_missing_one_is_no_defect(findings, monkeypatch):
    try:
        check_sandbox()
        assert "6 * 7 = 42" in findings["sandbox"].text
    except ValueError:
        assert findings["sandbox"].verdict == "note"
    check_sandbox.cache_clear()
    monkeypatch.setenv("PATH", "")
    without = doctor._tried("sandbox", doctor._sandbox, failure="note")
    assert without.verdict == "note"
    assert "apt install bubblewrap" in without.text


def test_what_is_missing_or_too_old_is_named_with_the_command_that_mends_it(monkeypatch):
    wanted = [Requirement("no-such-package>=1"), Requirement("rich>=999")]
    assert [doctor._fault(need) for need in wanted] == [
        "no-such-package is missing",
        f"rich is {version('rich')}, not >=999",
    ]
    needs = ["rich>=999", "typer>=0.1", 'no-such-package>=1; extra == "lora"']
    monkeypatch.setattr(doctor, "requires", lambda _: needs)
    dependencies, lora = doctor._dependencies(), doctor._extra("lora")
    assert (dependencies.verdict, lora.verdict) == ("defect", "note")
    assert dependencies.text.endswith(": pip install 'rich>=999'")
    assert "no-such-package is missing: pip install 'turnwise[lora]' for training a small adapter" in lora.text


def test_an_extra_of_extras_needs_what_they_need():
    names = {need.name for need in doctor._needs_of("worlds")}
    assert {"gymnasium", "textarena", "minigrid"} <= names
    assert "turnwise" not in names


@pytest.mark.parametrize("broken", ["/proc/runs", "a-file/runs"])
def test_a_place_where_no_run_can_be_written_is_a_defect_and_exit_code_one(broken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "_nano", lambda: "not looked at here")
    (tmp_path / "a-file").write_text("")
    result = CliRunner().invoke(app, ["doctor", "--runs", broken])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "1 to fix: run folder"
    assert "cannot write in" in result.stdout


def test_a_library_that_fails_becomes_a_finding():
    def fail():
        raise RuntimeError("CUDA driver is too old")

    finding = doctor._tried("torch", fail)
    assert (finding.verdict, finding.text) == ("defect", "RuntimeError: CUDA driver is too old")


def test_memory_is_that_of_the_machine_or_less():
    assert 2**28 < doctor.memory_bytes() < 2**50
