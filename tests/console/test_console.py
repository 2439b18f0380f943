"""The screen of a run in its three forms, fed with the rows of a run and with hostile text."""

import json
from pathlib import Path

import pytest

from tests.console.console_rows import Screen, evaluation, row
from turnwise.console.screen import choose_form
from turnwise.guard.guard import Incident
from turnwise.recipe.loading import load_recipe
from turnwise.recipe.schema import Recipe
from turnwise.sources.imitation import sft_recipe
from turnwise.types import StopReason, Trajectory, Turn

HOSTILE = "\x1b[2J\x07[bold red]boo[/bold red]\r\x9b31m\u202e"
SHOWN = r"\x1b[2J\x07[bold red]boo[/bold red]\r\x9b31m\u202e"


INCIDENT = Incident(
    step=2,
    signal="ratio-tail",
    mode="act",
    action="shrink",
    text="largest ratio 31 after 2",
    evidence={"loss/ratio_max": 31.0},
    change="learning rate × 0.2",
)


LABELS = ["success", "reward", "turns", "clip", "KL", "entropy", "tokens/s", "seconds"]


def recipe(**sections) -> Recipe:
    return load_recipe(None, {"train": {"steps": 12}, **sections})


def run_twelve_steps(screen, folder, status="finished"):
    """A run as the loop tells it: evaluation, twelve steps with an incident and faults, evaluation, end."""
    with screen.console as console:
        console.started(recipe(), folder, ["the critic is new"])
        console.evaluated(evaluation(0, 0.4))
        for step in range(1, 13):
            console.phase("playing")
            screen.clock.now += 2.0
            faults = 3 / 128 if step in (3, 5) else 0.0
            console.step(row(step, **{"rollout/faults": faults}), guard="saw ratio-tail" if step == 2 else "healthy")
            if step == 2:
                console.incident(INCIDENT)
        console.evaluated(evaluation(12, 0.8))
        console.note("a note")
        console.finished({"status": status})


def test_plain_lines_have_every_number_in_its_own_place(tmp_path):
    screen = Screen("plain")
    run_twelve_steps(screen, tmp_path / "run")
    steps = [line for line in screen.lines if line.startswith("step ")]
    assert len(steps) == 12
    assert steps[2] == (
        "step  3/12  success 0.430  reward  0.500  turns  3.25  clip 0.012  KL 0.0034  entropy 0.875  "
        "tokens/s   5,123  seconds   2.0  faults  3  left    0:18  guard healthy"
    )
    assert len({line.index("guard") for line in steps}) == 1
    assert "a note" in screen.lines


def test_quiet_says_only_what_the_guard_saw_and_how_it_ended(tmp_path):
    screen = Screen("quiet")
    run_twelve_steps(screen, tmp_path / "run")
    assert screen.lines == [
        "guard  step 2  ratio-tail: largest ratio 31 after 2 → shrink, learning rate × 0.2",
        "Finished 12 steps. 6 episodes were lost to faults and entered no batch.",
        "held-out success 0.800 [0.750, 0.850] at step 12, 0.400 [0.350, 0.450] before",
        f"run folder     {tmp_path / 'run'}",
    ]


@pytest.mark.parametrize("form", ["live", "plain"])
def test_everything_but_commands_keeps_to_sixty_columns(form, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    screen = Screen(form, width=60)
    run_twelve_steps(screen, tmp_path / "run")
    lines = [line.rsplit("\x1b[2K", 1)[-1] for line in screen.lines]
    commands = lines.index(f"run folder     {tmp_path / 'run'}")
    before = [line for line in lines[:commands] if str(tmp_path) not in line]  # a path is not broken
    assert max(map(len, before)) <= 60
    assert "…" not in screen.text
    if form == "plain":
        assert "step  3/12  success 0.430  left    0:18  guard healthy" in lines
    else:
        last = screen.text[screen.text.rindex("step success") :].splitlines()
        assert last[0].split() == ["step", "success", "reward", "turns", "clip", "KL", "entropy", "faults"]


@pytest.mark.parametrize("form", ["live", "plain"])
def test_the_share_of_episodes_that_a_limit_ended_is_shown_unless_it_is_zero(form, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen(form, width=80)
    with screen.console as console:
        console.started(recipe(), Path("run"))
        for step, cut in enumerate((0.0, 0.25, 0.0), 1):
            assert "cut" not in screen.text or step == 3
            screen.clock.now += 2.0
            console.step(row(step, **{"rollout/cut": cut}))
    lines = [line.rsplit("\x1b[2K", 1)[-1] for line in screen.lines]
    assert max(map(len, lines)) <= 80
    if form == "plain":
        assert "step  2/12  success 0.420  cut 0.250  reward  0.500  left    0:20  guard healthy" in lines
        assert "step  3/12  success 0.430  cut 0.000  reward  0.500  left    0:18  guard healthy" in lines
    else:
        last = screen.text[screen.text.rindex("step success") :].splitlines()
        assert last[0].split() == ["step", "success", "cut", *LABELS[1:], "faults"]
        assert last[3].split()[:4] == ["2", "0.420", "0.250", "0.500"]


def test_a_caveat_and_an_episode_are_shown_once(tmp_path):
    screen = Screen("plain")
    episode = Trajectory(id="a", turns=[Turn(observation="Guess.", action="4")], stop=StopReason.DONE)
    other = Trajectory(id="b", turns=[Turn(observation="Guess.", action="5")], stop=StopReason.DONE)
    for title in ("before, task 1", "after, task 1"):
        screen.console.started(recipe(), tmp_path, ["the critic is new"])
        screen.console.sample(title, episode)
    screen.console.sample("after, task 2", other)
    assert screen.text.count("the critic is new") == 1
    assert screen.text.count("   > 4") == 1
    assert screen.lines[-5:-3] == ["after, task 1: played as above", "after, task 2"]


def test_one_of_anything_is_spoken_of_as_one(tmp_path):
    screen = Screen("plain")
    screen.console.started(recipe(train={"steps": 1}, rollout={"episodes": 1}), tmp_path)
    screen.console.step(row(1, **{"rollout/episodes": 1, "rollout/faults": 1.0}))
    screen.console.finished({"status": "finished"})
    assert "1 step of 1 episode" in screen.text
    assert "Finished 1 step. 1 episode was lost to faults and entered no batch." in screen.text


def test_the_live_table_has_the_last_eight_steps_the_best_and_what_happens_now(tmp_path):
    screen = Screen("live", width=120)
    with screen.console as console:
        console.started(recipe(), tmp_path / "run")
        for step in range(1, 12):
            screen.clock.now += 30.0
            success = 0.9 if step == 2 else 0.5
            console.step(row(step, **{"rollout/success": success, "rollout/faults": 1 / 128}), guard="saw clip-surge")
        console.phase("learning")
        frame = screen.text[screen.text.rindex("step success") :].splitlines()
    assert frame[0].split() == ["step", *LABELS, "faults"]
    assert frame[1].split()[:3] == ["best", "2", "0.900"]
    assert [line.split()[0] for line in frame[2:10]] == [str(step) for step in range(4, 12)]
    assert "learning · step 12 of 12 · 0:27 left · 11 episodes lost to faults · guard saw clip-surge" in frame[10]


def test_the_live_table_fits_a_narrow_terminal(tmp_path):
    screen = Screen("live", width=80)
    run_twelve_steps(screen, tmp_path / "run")
    last = screen.text[screen.text.rindex("step success") :].splitlines()
    assert last[0].split() == ["step", *LABELS, "faults"]
    assert "playing" not in last  # once the run is over nothing turns any more


def fail_in_the_middle(console, folder):
    console.started(recipe(), folder)
    raise RuntimeError


def test_the_live_screen_gives_the_terminal_back_after_an_error(tmp_path):
    screen = Screen("live")
    with pytest.raises(RuntimeError), screen.console as console:
        fail_in_the_middle(console, tmp_path / "run")
    assert screen.text.index("\x1b[?25l") < screen.text.rindex("\x1b[?25h")  # the cursor was hidden, and is back


@pytest.mark.parametrize(
    ("environment", "form"),
    [({"CI": "true"}, "quiet"), ({"CI": "1"}, "quiet"), ({"CI": "false"}, "plain"), ({}, "plain")],
)
def test_ci_is_quiet_and_what_is_no_terminal_gets_plain_lines(environment, form, capsys):
    assert choose_form(environment) == form


def test_the_end_shows_before_and_after_with_intervals_and_how_to_go_on(tmp_path):
    screen = Screen("plain", width=80)
    run_twelve_steps(screen, tmp_path / "run")
    run, end = tmp_path / "run", screen.lines[screen.lines.index("success") :]
    assert max(map(len, end[1:9])) <= 80
    assert [line.split() for line in end if line.startswith(("held-out ", "success "))] == [
        ["held-out", "before", "(step", "0)", "after", "(step", "12)"],
        ["success", "0.400", "[0.350,", "0.450]", "0.800", "[0.750,", "0.850]"],
    ]
    assert end[-4:] == [
        f"run folder     {run}",
        f"evaluate       turnwise eval {run} --episodes 1000",
        f"train further  turnwise resume {run} train.steps=24",
        f"try next       turnwise train {run}/config.yaml algorithm=ppo --output {run}-ppo",
    ]


def test_a_run_that_was_cut_says_how_to_resume_it(tmp_path):
    screen = Screen("quiet")
    screen.console.started(recipe(), tmp_path / "my run")
    screen.console.step(row(1))
    screen.console.finished({"status": "interrupted"})
    assert "Interrupted: step 1 is finished and saved." in screen.lines
    assert screen.lines[-1] == f"continue       turnwise resume '{tmp_path / 'my run'}'"


def test_an_imitation_stage_shows_its_loss_and_names_the_run_around_it(tmp_path):
    (tmp_path / "run" / "sft").mkdir(parents=True)
    (tmp_path / "run" / "meta.json").write_text("{}")
    screen, stage = Screen("plain"), sft_recipe(recipe(sft={}), steps=4)
    screen.console.started(stage, tmp_path / "run" / "sft")
    screen.console.step(
        {"step": 1, "rollout/success": 1.0, "loss/policy": 0.25, "train/gradient_norm": 1.5, "time/step": 1.0}
    )
    screen.console.finished({"status": "interrupted"})
    assert (
        "step 1/4  loss 0.2500  gradient 1.500  seconds   1.0  faults  0  left    0:03  guard healthy" in screen.lines
    )
    assert screen.lines[-1] == f"continue       turnwise resume {tmp_path / 'run'}"


def test_a_resumed_run_draws_its_whole_curve(tmp_path):
    rows = [json.dumps(row(step, **{"rollout/success": 0.0})) for step in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "evals.jsonl").write_text(json.dumps(evaluation(0, 0.1)) + "\n")
    screen = Screen("plain", width=27)
    screen.console.started(recipe(train={"steps": 5}), tmp_path, done=4)
    screen.console.step(row(5, **{"rollout/success": 1.0}))
    screen.console.finished({"status": "finished"})
    told = f"run folder {tmp_path} · seed 0 · continues after step 4"
    assert "".join(told.split()) in "".join("".join(screen.lines).split())  # wrapped, where depends on the path
    assert " 1.0 ┤" + " " * 16 + "████" in screen.lines
    assert any(line.startswith("success   0.100 [0.050") for line in screen.lines)


def test_a_step_without_a_sound_episode_keeps_its_numbers_in_place(tmp_path):
    screen = Screen("plain")
    screen.console.started(recipe(), tmp_path)
    screen.console.step(row(1))
    screen.console.step({"step": 2, "rollout/episodes": 128, "rollout/faults": 1.0, "time/step": 2.0})
    first, second = screen.lines[-2:]
    assert [first.index(label) for label in LABELS] == [second.index(label) for label in LABELS]
    assert "faults 128" in second


def test_numbers_that_are_missing_or_not_finite_are_a_dash(tmp_path):
    screen = Screen("plain")
    screen.console.started(recipe(), tmp_path)
    screen.console.step({"step": 1, "rollout/success": None, "rollout/reward": float("nan"), "loss/sampler_kl": -1e-9})
    assert "success     –  reward      –  KL 0.0000" in screen.lines[-1]


@pytest.mark.parametrize("form", ["plain", "live", "quiet"])
def test_text_of_models_and_environments_cannot_steer_the_terminal(form, tmp_path):
    screen = Screen(form, width=300)
    with screen.console as console:
        console.started(recipe(), tmp_path, [HOSTILE])
        console.phase(HOSTILE)
        console.step(row(1), guard=HOSTILE)
        console.incident(Incident(step=1, signal="validity", mode="warn", action="none", text=HOSTILE, evidence={}))
        console.note(HOSTILE)
        console.sample(
            HOSTILE, Trajectory(id="a", turns=[Turn(observation=HOSTILE, action=HOSTILE)], stop=StopReason.DONE)
        )
    own = ("\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[1A")  # how rich draws over its own lines
    written = screen.text
    for code in own:
        written = written.replace(code, "")
    assert SHOWN in written
    assert {character for character in written if not character.isprintable()} <= {"\n", "\r"}
    assert written.count("\r") == screen.text.count("\r\x1b[2K")


def test_a_resumed_run_says_where_its_checkpoint_is_and_not_where_its_journal_ends(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row(step)) + "\n" for step in range(1, 6)))
    screen = Screen("plain")
    screen.console.started(recipe(), tmp_path, done=4)
    assert f"run folder {tmp_path} · seed 0 · continues after step 4" in screen.lines


def test_a_run_that_had_nothing_to_learn_from_says_so(tmp_path):
    screen = Screen("plain")
    screen.console.started(recipe(), tmp_path)
    for step in (1, 2):
        screen.console.step(row(step, **{"rollout/success": 0.0, "rollout/reward": 0.0, "rollout/cut": 0.9}))
    screen.console.finished({"status": "finished"})
    [line] = [line for line in screen.lines if "nothing to learn from" in line]
    assert (
        "90% of a step's episodes ran into a limit (rollout.max_turns, rollout.max_tokens or rollout.context)" in line
    )


@pytest.mark.parametrize(
    ("sft", "hint"), [(None, "imitation first (sft)"), ({}, "longer imitation (sft.demonstrations, sft.epochs)")]
)
def test_imitation_is_not_advised_to_who_had_it(sft, hint, tmp_path):
    screen = Screen("plain")
    screen.console.started(recipe(sft=sft), tmp_path)
    screen.console.step(row(1, **{"rollout/success": 0.0, "rollout/reward": 0.0}))
    screen.console.finished({"status": "finished"})
    assert any(line.endswith(f"Try an easier task, or {hint}.") for line in screen.lines)
