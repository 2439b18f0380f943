"""The command line, run as a user runs it: in a process of its own."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnwise import __version__
from turnwise.algorithm import PRESETS

COMMAND = [sys.executable, "-c", "from turnwise.cli import app; app()"]
BROKEN = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tests.envs.broken import RewardTooLarge
from turnwise.cli import app
from turnwise.envs import register
register("my/broken", RewardTooLarge)
app(["check-env", "my/broken", "--seeds", "2"])
"""


def turnwise(*arguments, typed=""):
    return subprocess.run([*COMMAND, *arguments], input=typed, capture_output=True, text=True, timeout=60, check=False)


def test_version():
    assert turnwise("--version").stdout == f"turnwise {__version__}\n"


def test_envs_lists_what_matches():
    result = turnwise("envs", "hanoi")
    assert result.returncode == 0
    rows = result.stdout.splitlines()
    assert rows[0].split() == ["id", "what", "it", "is", "extra"]
    assert [row.split()[0] for row in rows[1:]] == ["game/hanoi-easy", "game/hanoi-hard"]
    assert turnwise("envs", "zzzz").stdout == "no environment matches 'zzzz'\n"


def test_commands_about_environments_never_import_torch():
    program = "import sys; from turnwise.cli import app; app(sys.argv[1:], standalone_mode=False); "
    for arguments in (["envs"], ["check-env", "game/hanoi-easy", "--seeds", "1"]):
        command = [sys.executable, "-c", program + "print('torch' in sys.modules)", *arguments]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith("False\n")


def test_check_env_says_fit_or_names_the_defect_and_exits_with_one():
    good = turnwise("check-env", "game/hanoi-easy", "--seeds", "2", "split=test")
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "game/hanoi-easy: fit for training")
    bad = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout.splitlines()[-1]) == (1, "my/broken: 1 defects")
    assert "rewards in [0, 10]" in bad.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check-env", "game/hanoy-easy"], "unknown environment 'game/hanoy-easy': did you mean game/hanoi-easy"),
        (["check-env", "game/hanoi-easy", "split"], "cannot read 'split'; write arguments as key=value"),
        (["check-env", "game/hanoi-easy", "split=x"], "unknown split 'x'; choose one of train, validation, test"),
        (["play", "game/hanoy-easy"], "unknown environment 'game/hanoy-easy': did you mean game/hanoi-easy"),
        (["play", "game/hanoi-easy", "colour=red"], "unexpected keyword argument 'colour'"),
        (["explain", "stppo"], "unknown algorithm 'stppo'; did you mean 'st-ppo'?"),
        (["explain", "st-ppo", "surrogate.hihg=1"], "surrogate.ppo-clip: unknown option 'hihg'; did you mean 'high'?"),
        (["explain", "grpo", "sampling=plain"], "advantage=group-mean compares tries at the same task"),
        (["explain", "mine.yaml"], "there is no file 'mine.yaml'"),
    ],
)
def test_mistakes_get_one_line_on_stderr_and_exit_code_two(arguments, message):
    result = turnwise(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_play_shows_rewards_and_the_end_with_piped_input():
    guesses = "".join(rf"\boxed{{{number}}}" + "\n" for number in (1, 2, 3, 4))
    result = turnwise("play", "game/guess-number-easy", "--seed", "4", typed=guesses)
    assert result.returncode == 0
    assert "[reward 0]" in result.stdout
    assert result.stdout.splitlines()[-1].startswith(("Won (terminated), total reward", "Over ("))


def test_play_ends_cleanly_at_the_end_of_input():
    result = turnwise("play", "game/hanoi-easy")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("You left the game.\n")


def test_play_ends_cleanly_on_control_c():
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "play", "game/hanoi-easy"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()  # the first observation: now it waits for a line
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, errors) == (0, "")
    assert output.endswith("You left the game.\n")


def test_algorithms_lists_every_preset():
    result = turnwise("algorithms")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(PRESETS)


def test_explain_prints_the_row_with_the_changes_made_on_the_command_line():
    result = turnwise("explain", "st-ppo", "ratio=token", "surrogate.high=0.28", "epochs=2")
    assert result.returncode == 0
    assert "min( w_t Â_t , clip(w_t, 0.8, 1.28) Â_t )" in result.stdout
    assert "2 epoch(s) × 4 minibatch(es) = 8 updates per rollout" in result.stdout


def test_explain_reads_a_row_from_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("preset: gspo\nname: mine\nsurrogate: {high: 0.01}\n")
    assert "clip(s_i, 0.9997, 1.01)" in turnwise("explain", str(file)).stdout
