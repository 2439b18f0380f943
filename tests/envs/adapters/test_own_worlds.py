"""Environments that a user wrote for Gymnasium, GEM or TextWorld, named `module:Class` like any other of their own."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.envs.adapters.play import assert_snapshot_continues, assert_survives_hostile_actions, make, play_oracle
from turnwise.envs import check_env
from turnwise.envs.check import Diagnosis
from turnwise.envs.play import play_in_terminal

CORRIDOR = '''
import gymnasium
from gymnasium import spaces

class Corridor(gymnasium.Env):
    """Walk right to the end of the corridor; a step to the left of its start is lost."""

    action_names = ("Left", "Right")
    reward_range = (-1.0, 1.0)

    def __init__(self, length=4):
        self.length = length
        self.observation_space, self.action_space = spaces.Text(200), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(1, self.length)) if not options else options["task"]
        self.turns = 0
        return f"You stand at {self.place} of {self.length}.", {}

    def step(self, action):
        assert action in (0, 1) and isinstance(action, int)
        self.place += 1 if action else -1
        self.turns += 1
        won, lost = self.place >= self.length, self.place < 0
        reward = 1.0 if won else -1.0 if lost else 0.0
        return f"You stand at {self.place}.", reward, won or lost, self.turns >= 9, {"is_success": won}

    def oracle(self):
        return 1

class Numbered(Corridor):
    action_names = ()

class Echo(Corridor):
    """Text in, text out."""

    def __init__(self):
        self.observation_space, self.action_space = spaces.Text(200), spaces.Text(20, charset="abc")

    def reset(self, *, seed=None, options=None):
        gymnasium.Env.reset(self, seed=seed)
        return "Say abc.", {}

    def step(self, action):
        return f"You said {len(action)} letters.", float(action == "abc"), True, False, {}

    oracle = None

def limited(length=4) -> gymnasium.Env:
    """A function that makes one, with a wrapper around it."""
    return gymnasium.wrappers.TimeLimit(Numbered(length), max_episode_steps=3)

class Continuous(Corridor):
    def __init__(self):
        self.observation_space, self.action_space = spaces.Text(200), spaces.Box(0, 1)

class Misnamed(Corridor):
    action_names = ("left",)
'''
TALLY = '''
import random
import gem

class Tally(gem.Env):
    """Say a number above the one that is drawn from the global generator, as GEM's own games do."""

    def reset(self, seed=None):
        super().reset(seed)
        self.number = random.randint(0, 4)
        return "Say a number.", {"suffix": f"Above {self.number}."}

    def step(self, action):
        said = int(action) if action.strip().isdecimal() and len(action) < 9 else -1
        return "", float(said > self.number), True, False, {"success": said > self.number}

    def sample_random_action(self):
        return str(random.randint(0, 9))
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Puts a module of the user's into the working folder."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    written = []

    def module(source):
        name = f"own_world_{tmp_path.name.replace('-', '_')}_{len(written)}"
        (tmp_path / f"{name}.py").write_text(source)
        written.append(name)
        return name

    yield module
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def corridor(write):
    pytest.importorskip("gymnasium", reason="needs turnwise[gymnasium]")
    return write(CORRIDOR)


def defects(report: Diagnosis) -> list[str]:
    return [f"{finding.check}: {finding.text}" for finding in report.defects]


def test_a_gymnasium_class_takes_its_actions_by_name_or_number_and_gets_its_seed(corridor):
    env = make(f"{corridor}:Corridor", length=9)
    first, _ = env.reset(seed=3)
    assert first == env.reset(seed=3)[0]
    assert len({env.reset(seed=seed)[0] for seed in range(20)}) > 3
    assert first.endswith("of 9.\n\nActions: left, right.")
    env.reset(seed=3, task=5)
    assert env.step("not left, RIGHT")[0] == "You stand at 6."
    assert env.step("0")[0] == "You stand at 5."
    observation, reward, terminated, truncated, info = env.step("hmm")
    assert (observation, reward, terminated, truncated) == ("Actions: left, right.", 0.0, False, False)
    assert info["valid"] is False
    assert env.step("1")[4]["parsed_action"] == "1"


def test_success_truncation_and_an_expert_of_a_gymnasium_class_arrive(corridor):
    env = make(f"{corridor}:Corridor")
    rewards, info = play_oracle(env, seed=0)
    assert (rewards[-1], info["success"], env.has_oracle(), env.reward_range) == (1.0, True, True, (-1.0, 1.0))
    limited = make(f"{corridor}:limited", length=40)
    assert limited.reset(seed=0)[0].endswith("Actions: 0, 1.")
    assert [limited.step("1")[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    env.close()


def test_texts_go_to_a_gymnasium_class_that_takes_texts_as_they_are(corridor):
    env = make(f"{corridor}:Echo")
    assert env.reset(seed=0)[0] == "Say abc."
    assert env.step("abc")[:2] == ("You said 3 letters.", 1.0)
    assert not env.has_oracle()
    env.reset(seed=0)
    assert set(env.sample_random_action()) <= set("abc")


@pytest.mark.parametrize("name", ["Corridor", "Numbered", "Echo", "limited"])
def test_the_doctor_finds_nothing_wrong_with_a_sound_gymnasium_class(corridor, name):
    env = make(f"{corridor}:{name}")
    env.reset(seed=0)
    assert_survives_hostile_actions(env)
    assert_snapshot_continues(env)
    assert defects(check_env(f"{corridor}:{name}", seeds=2)) == []


def test_a_gymnasium_class_that_cannot_be_told_in_words_is_refused_with_the_fix(corridor):
    with pytest.raises(
        ValueError, match=r"Continuous has the action space Box.*; give it spaces\.Text or spaces\.Disc"
    ):
        make(f"{corridor}:Continuous")
    with pytest.raises(ValueError, match="Misnamed has 2 actions but 1 action_names; name each one"):
        make(f"{corridor}:Misnamed")


def test_observations_that_are_not_text_are_told_as_numbers_and_images_are_refused():
    pytest.importorskip("gymnasium", reason="needs turnwise[gymnasium]")
    import numpy as np

    from turnwise.envs.adapters.own_gymnasium import tell

    assert tell({"here": np.int64(3), "there": (1, np.array([0.5, 2.0]))}) == "here: 3\nthere: 1, [0.5, 2.0]"
    with pytest.raises(ValueError, match=r"an observation of 300 numbers is not text; put a gymnasium\.Observation"):
        tell(np.zeros((10, 30)))


def test_a_person_can_play_a_gymnasium_class(corridor):
    lines, shown = iter(["right"] * 9), []
    play_in_terminal(f"{corridor}:Corridor", {}, seed=1, read=lambda prompt: next(lines), write=shown.append)
    assert shown[0].endswith("Actions: left, right.")
    assert any(text.startswith("You stand at") for text in shown[1:])


def test_a_gymnasium_class_is_trained_and_evaluated_by_its_name(corridor, tmp_path):
    from tests.train.small_runs import small_recipe
    from turnwise.train import evaluate_model, train

    changes = {"env": {"id": f"{corridor}:Corridor", "check": True}, "train": {"steps": 1}, "eval": {"episodes": 2}}
    recipe = small_recipe(changes)
    train(recipe, tmp_path / "run")
    assert 0.0 <= evaluate_model(recipe, tmp_path / "run/checkpoints/step_000001")["eval/success"] <= 1.0


def test_gymnasium_is_not_imported_to_recognise_its_classes():
    program = (
        "import sys; from turnwise.envs import make; make('game/hanoi-easy'); "
        "print({'gymnasium', 'gem', 'textworld'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_gem_class_keeps_to_itself_and_shows_its_suffix(write):
    pytest.importorskip("gem.core", reason="needs turnwise[gem]")
    name = write(TALLY)
    random.seed(5)
    state = random.getstate()
    env, other = make(f"{name}:Tally"), make(f"{name}:Tally")
    shown = [env.reset(seed=seed)[0] for seed in range(12)]
    assert shown == [other.reset(seed=seed)[0] for seed in range(12)]
    assert shown[0].startswith("Say a number.\nAbove ")
    assert len(set(shown)) > 2
    assert env.step("9")[1:4] == (1.0, True, False)
    assert env.step("9")[4]["success"] is True
    env.close()
    assert random.getstate() == state
    assert defects(check_env(f"{name}:Tally", seeds=2)) == []


GAME = """
import textworld
import textworld.gym

PATH = {path!r}
INFOS = textworld.EnvInfos(won=True, lost=True, admissible_commands=True, policy_commands=True)

def plain() -> textworld.core.Environment:
    return textworld.start(PATH, INFOS)

def pool() -> textworld.gym.envs.TextworldGymEnv:
    return textworld.gym.make(textworld.gym.register_game(PATH, INFOS, max_episode_steps=3))
"""


@pytest.fixture(scope="module")
def game_path(tmp_path_factory) -> Path:
    pytest.importorskip("textworld", reason="needs turnwise[textworld]")
    from turnwise.envs.adapters.textworld_cache import GameSettings, game_file

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return game_file(GameSettings(rooms=2, objects=3, quest=2), 30_001)


@pytest.fixture
def game(write, game_path):
    return write(GAME.format(path=str(game_path)))


@pytest.mark.parametrize("name", ["plain", "pool"])
def test_a_textworld_game_of_ones_own_is_won_by_its_own_way(game, name):
    env = make(f"{game}:{name}")
    rewards, info = play_oracle(env, seed=0)
    assert (sum(rewards), info["success"]) == (1.0, True)
    assert env.has_oracle()
    first, _ = env.reset(seed=0)
    assert env.step("quit")[4]["valid"] is False
    assert env.step("look\x00")[4]["valid"] is False
    assert "Unknown" not in first
    assert_snapshot_continues(env)
    env.close()


def test_a_limit_on_steps_of_a_textworld_game_truncates(game):
    env = make(f"{game}:pool")
    env.reset(seed=0)
    assert [env.step("look")[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    env.close()
