"""The command line, run as a user runs it: in a process of its own."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Column
from typer.testing import CliRunner

from tests.envs.broken import SoundGame
from turnwise import __version__
from turnwise.algorithm import PRESETS, preset
from turnwise.cli import app
from turnwise.cli.catalog import _needs
from turnwise.cli.common import bare_table, parse_settings
from turnwise.envs.play import play_in_terminal
from turnwise.nano import make

COMMAND = [sys.executable, "-c", "from turnwise.cli import app; app()"]
BROKEN = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tests.envs.broken import RewardTooLarge
from turnwise.cli import app
from turnwise.envs import register
register("my/broken", RewardTooLarge)
app(["check-env", "my/broken", "--seeds", "2"])
"""


COIN = """
from turnwise.envs import Env

class Coin(Env):
    def reset(self, seed=None, task=None):
        super().reset(seed=seed)
        return "Heads or tails?", {}

    def step(self, action):
        won = self.rng.choice(["heads", "tails"]) in action
        return "Thrown.", float(won), True, False, {"success": won}

    def sample_random_action(self):
        return self.rng.choice(["heads", "tails"])
"""


def turnwise(*arguments, typed="", command=COMMAND, cwd=None, **variables):
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | variables
    command = [*command, *arguments]
    return subprocess.run(
        command, input=typed, capture_output=True, text=True, timeout=60, check=False, cwd=cwd, env=env
    )


def test_version():
    assert turnwise("--version").stdout == f"turnwise {__version__}\n"


def test_envs_lists_what_matches():
    result = turnwise("envs", "hanoi")
    assert result.returncode == 0
    rows = result.stdout.splitlines()
    assert rows[0].split() == ["id", "what", "it", "is", "extra"]
    assert [row.split()[0] for row in rows[1:]] == ["game/hanoi-easy", "game/hanoi-hard"]
    nothing = turnwise("envs", "zzzz")
    assert (nothing.returncode, nothing.stderr) == (1, "no environment matches 'zzzz'\n")


def test_envs_keeps_to_the_width_it_is_given_and_shows_whole_ids():
    result = turnwise("envs", COLUMNS="60")
    assert max(map(len, result.stdout.splitlines())) <= 60
    assert "game/guess-number-easy" in result.stdout


def test_envs_lists_the_names_of_a_family():
    pytest.importorskip("gymnasium", reason="needs gymnasium: pip install turnwise[gymnasium]")
    listed = turnwise("envs", "gym/")
    assert listed.returncode == 0
    assert listed.stdout.splitlines()[:2] == ["gym/Blackjack-v1", "gym/CliffWalking-v1"]
    assert turnwise("envs", "gym/frozen").stdout.splitlines() == ["gym/FrozenLake-v1", "gym/FrozenLake8x8-v1"]
    nothing = turnwise("envs", "gym/zzz")
    assert (nothing.returncode, "turnwise envs gym/" in nothing.stderr) == (1, True)
    assert turnwise("envs", "toy-text").stdout.splitlines()[-1] == "List the names of a family: turnwise envs gym/"


def test_the_command_also_runs_as_a_module():
    assert turnwise("--version", command=[sys.executable, "-m", "turnwise"]).stdout == f"turnwise {__version__}\n"


def test_a_class_in_the_users_folder_can_be_checked_and_played(tmp_path):
    (tmp_path / "coins.py").write_text(COIN)
    checked = turnwise("check-env", "coins:Coin", "--seeds", "2", cwd=tmp_path)
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "coins:Coin: fit for training")
    assert "[reward 1]" in turnwise("play", "coins:Coin", cwd=tmp_path, typed="heads, no, tails\n").stdout
    wrong = turnwise("check-env", "coins:Dice", cwd=tmp_path)
    assert (wrong.returncode, "the module coins has no Dice" in wrong.stderr) == (2, True)
    assert "did you mean coins:Coin?" in turnwise("play", "coins:Coins", cwd=tmp_path).stderr
    assert "there is no module coin, which coin:Coin names; did you mean coins:Coin?" in (
        turnwise("play", "coin:Coin", cwd=tmp_path).stderr
    )


def test_kinds_and_options_meet_in_any_order():
    expected = {"sampling": {"kind": "group", "size": 4}}
    assert parse_settings(["sampling=group", "sampling.size=4"]) == expected
    assert parse_settings(["sampling.size=4", "sampling=group"]) == expected
    assert parse_settings(["sampling={kind: group, size: 4}"]) == expected
    assert parse_settings(["sampling={size: 2}", "sampling.size=4", "sampling.kind=group"]) == expected


def test_values_are_yaml_and_small_numbers_are_numbers():
    settings = ["regularizers=[kl]", "rate=1e-5", "whole=true", "name=[unclosed", "split=test"]
    assert parse_settings(settings) == {
        "regularizers": ["kl"],
        "rate": 1e-5,
        "whole": True,
        "name": "[unclosed",
        "split": "test",
    }


def test_make_nano_runs_the_stages_it_is_told(monkeypatch):
    calls = []
    monkeypatch.setattr(make, "make_nano", lambda output, **options: calls.append((str(output), options)))
    given = ["make-nano", "--output", "nano", "--seed", "3", "--minutes", "6", "--stage", "data", "--stage", "train"]
    assert CliRunner().invoke(app, given).exit_code == 0
    [(output, options)] = calls
    assert output == "nano"
    assert options["settings"].minutes == 6.0
    assert (options["seed"], options["device"], options["stages"]) == (3, "cpu", ("data", "train"))
    refused = CliRunner().invoke(app, ["make-nano", "--output", "nano", "--stage", "trian"])
    assert (refused.exit_code, refused.stderr) == (
        2,
        "turnwise: unknown stage 'trian'; choose from data, train, evaluate\n",
    )
    assert len(calls) == 1


def test_commands_about_environments_never_import_torch():
    program = "import sys; from turnwise.cli import app; app(sys.argv[1:], standalone_mode=False); "
    for arguments in (["envs"], ["check-env", "game/hanoi-easy", "--seeds", "1"]):
        command = [sys.executable, "-c", program + "print('torch' in sys.modules)", *arguments]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["algorithms"], 0),
        (["trian"], 2),
        (["explain", "stppo"], 2),
        (["train", "algorithm=stppo"], 2),
        (["train", "env=serch/geo-2hop"], 2),
        (["compare", "stppo", "ppo"], 2),
        (["train", "trian.steps=3"], 2),
        (["train", "train.setps=3"], 2),
        (["train", "recipes/serch-nano.yaml"], 2),
        (["report", "runs/nowhere"], 2),
        (["eval", "runs/nowhere"], 2),
        (["eval", "oracle"], 2),
    ],
)
def test_lists_and_answers_to_typos_wait_for_neither_torch_nor_transformers(arguments, code):
    program = (
        "import sys; from turnwise.cli import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: print(end.code, sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{code} []"


def test_a_report_of_saved_evaluations_names_the_option_for_them(tmp_path):
    (tmp_path / "before.json").write_text("{}")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "before.json")])
    assert result.exit_code == 2
    assert f"turnwise report RUN --eval {tmp_path / 'before.json'}" in result.stderr
    assert "turnwise compare-evals" in result.stderr


def test_the_needs_that_are_listed_are_those_of_the_whole_rows():
    for name, (_, said) in PRESETS.items():
        row = preset(name)
        kinds = ["" if kind == "none" else kind for kind in (row.critic.level, row.ratio.kind, row.scale.kind)]
        assert _needs(said) == [*kinds, str(row.updates_per_rollout), str(row.sampling.options.get("size", 1))]


def test_check_env_says_fit_or_names_the_defect_and_exits_with_one():
    good = turnwise("check-env", "game/hanoi-easy", "--seeds", "2", "env.kwargs.split=test", "env.wrappers=[history]")
    assert (good.returncode, good.stdout.splitlines()[-1]) == (0, "game/hanoi-easy: fit for training")
    bad = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout.splitlines()[-1]) == (1, "my/broken: 1 defect")
    assert "rewards in [0, 10]" in bad.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check-env", "game/hanoy-easy"], "unknown environment 'game/hanoy-easy': did you mean game/hanoi-easy"),
        (["check-env", "game/hanoi-easy", "env.kwargs.split=x"], "unknown split 'x'; choose one of train, validation"),
        (["check-env", "game/hanoi-easy", "env.reward=[]"], "unknown key env.reward; did you mean env.rewards?"),
        (["check-env", "game/hanoi-easy", "split"], "cannot read 'split'; write arguments as key=value"),
        (["check-env", "game/hanoi-easy", "split=x"], "unknown split 'x'; choose one of train, validation, test"),
        (["play", "game/hanoy-easy"], "unknown environment 'game/hanoy-easy': did you mean game/hanoi-easy"),
        (["play", "game/hanoi-easy", "colour=red"], "unknown option 'colour'; it takes disks"),
        (["explain", "stppo"], "unknown algorithm 'stppo'; did you mean 'st-ppo'?"),
        (["explain", "st-ppo", "surrogate.hihg=1"], "surrogate.ppo-clip: unknown option 'hihg'; did you mean 'high'?"),
        (["explain", "grpo", "sampling=plain"], "advantage=group-mean compares tries at the same task"),
        (["check-env", "nothing"], "Name your own environment module:Class"),
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


def test_play_puts_a_bare_line_into_the_box_that_the_game_asks_for():
    result = turnwise("play", "game/guess-number-easy", "--seed", "4", typed="1\n2\n3\n4\n")
    assert r"[sent as \boxed{1}]" in result.stdout
    assert result.stdout.splitlines()[-2:] == ["4 is right!", "Won (terminated), total reward 1."]


def test_play_adds_up_the_rewards_of_every_seat():
    lines, said = iter(["2", "2", "1"]), []
    play_in_terminal(SoundGame, {}, seed=0, read=lambda prompt: said.append(prompt) or next(lines), write=said.append)
    assert [text for text in said if text.endswith("> ")] == ["first> ", "second> ", "first> "]
    assert said[-1] == "Over (terminated), total reward: first 1, second -1."


def test_play_starts_with_the_task_that_is_named_or_counted(tmp_path: Path):
    rows = [{"name": f"sum-{n}", "question": f"{n} + 1", "answer": str(n + 1), "split": "train"} for n in range(3)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ["play", "tasks/own", f"tasks={tmp_path / 'sums.jsonl'}", "env.rewards=[exact]", "--task"]
    for task in ("sum-2", "2"):
        result = turnwise(*command, task, typed="3\n")
        assert result.stdout.splitlines()[0] == "2 + 1", result.stderr
        assert "[reward 1]" in result.stdout
    for task in ("sum-9", "3"):
        assert f"there is no task {task} in this split; " in (refused := turnwise(*command, task).stderr)
        assert "a number from 0 to 2" in refused
    assert "did you mean sum-" in turnwise(*command, "sum-9").stderr
    assert "has no list of them" in turnwise("play", "game/hanoi-easy", "--task", "1").stderr


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


def test_algorithms_lists_every_preset_and_what_it_needs():
    header, *rows, _, _ = turnwise("algorithms").stdout.splitlines()
    assert [line.split()[0] for line in rows] == list(PRESETS)
    cells = {line.split()[0]: line.split() for line in rows}
    assert header.split()[:3] == ["name", "critic", "ratio"]
    assert cells["st-ppo"][1:6] == ["token", "turn", "clip-bias", "4", "1"]
    assert cells["grpo"][1:4] == ["token", "1", "8"]  # no critic: its cell is empty


def test_algorithms_fits_a_narrow_terminal():
    lines = CliRunner().invoke(app, ["algorithms"], env={"COLUMNS": "96"}).output.splitlines()
    assert len(lines) == 2 * (1 + len(PRESETS)) + 3
    assert [line.split()[0] for line in lines[1 : len(PRESETS) + 1]] == list(PRESETS)


def test_explain_prints_the_row_with_the_changes_made_on_the_command_line():
    result = turnwise("explain", "st-ppo", "ratio=token", "surrogate.high=0.28", "epochs=2")
    assert result.returncode == 0
    assert "min( w_t Â_t , clip(w_t, 0.8, 1.28) Â_t )" in result.stdout
    assert "2 epoch(s) × 4 minibatch(es) = 8 updates per rollout" in result.stdout


def test_explain_takes_a_kind_and_its_options_in_any_order():
    orders = [[], ["sampling=group", "sampling.size=4"], ["sampling.size=4", "sampling=group"]]
    plain, first, second = [CliRunner().invoke(app, ["explain", "st-ppo", *changes]) for changes in orders]
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout != plain.stdout


def test_explain_reads_a_row_from_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("preset: gspo\nname: mine\nsurrogate: {high: 0.01}\n")
    assert "clip(s_i, 0.9997, 1.01)" in turnwise("explain", str(file)).stdout


def test_explain_takes_a_recipe_too():
    row, recipe = [CliRunner().invoke(app, ["explain", name]) for name in ("st-ppo", "recipes/search-nano.yaml")]
    assert (recipe.exit_code, recipe.stdout) == (0, row.stdout)


def test_tables_hide_nothing_on_a_narrow_screen():
    output = io.StringIO()
    table = bare_table("metric", Column("recorded", justify="right"), Column("replayed", justify="right"), "")
    table.add_row("loss/advantage_mean", "1.1299285888671875", "1.1299285888671876", "differs by 1e-16")
    Console(width=40, file=output).print(table)
    assert max(map(len, output.getvalue().splitlines())) <= 40
    assert "…" not in output.getvalue()
