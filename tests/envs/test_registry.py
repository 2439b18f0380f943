"""Names for environments: registration, families, helpful errors, other people's packages."""

import os
import subprocess
import sys

import pytest

import turnwise.envs
import turnwise.rollout
from turnwise.envs import Env, EnvSpec, find, make, register, registry, specs


class Room(Env):
    def __init__(self, *, split: str = "train", name: str = "hall", rooms: int = 1) -> None:
        super().__init__(split=split)
        self.name, self.rooms = name, rooms


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """What a test registers is forgotten after it."""
    specs()
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))


def test_make_builds_what_was_registered_and_arguments_override():
    register("test/room", Room, kwargs={"rooms": 3})
    assert (make("test/room").rooms, make("test/room", rooms=5, split="test").rooms) == (3, 5)  # type: ignore[attr-defined]


def test_families_take_their_arguments_from_the_id():
    register("test/{name}-r{rooms:int}", Room)
    env = make("test/big.hall-r12")
    assert (env.name, env.rooms) == ("big.hall", 12)  # type: ignore[attr-defined]


@pytest.mark.parametrize("env_id", ["test/x-r", "test/x-rtwo", "test/-r1", "test/x-r1/more", "other/x-r1"])
def test_ids_outside_a_family_do_not_match(env_id):
    assert EnvSpec(id="test/{name}-r{rooms:int}", entry_point=Room, summary="").match(env_id) is None


def test_an_exact_id_goes_before_a_family():
    register("test/{name}", Room, kwargs={"rooms": 1})
    register("test/cellar", Room, kwargs={"rooms": 2})
    assert make("test/cellar").rooms == 2  # type: ignore[attr-defined]


def test_an_unknown_id_names_the_closest_ones():
    register("test/room", Room)
    with pytest.raises(ValueError, match=r"unknown environment 'test/rom': did you mean test/room"):
        make("test/rom")
    with pytest.raises(ValueError, match="`turnwise envs` lists them all"):
        find("qqqqqqqqqqqq")


def test_a_taken_id_is_refused_but_the_same_registration_may_repeat():
    register("test/room", Room)
    register("test/room", Room)
    with pytest.raises(ValueError, match="'test/room' is already registered"):
        register("test/room", Room, kwargs={"rooms": 2})


def test_a_missing_package_names_the_extra():
    register("test/missing", "no_such_package_at_all:Env", extra="games")
    with pytest.raises(ValueError, match=r"pip install 'turnwise\[games\]'"):
        make("test/missing")


@pytest.mark.parametrize("entry_point", [3, None, "my_package.coin", "my package:Coin", "coin:"])
def test_what_cannot_build_an_environment_is_refused(entry_point):
    with pytest.raises(ValueError, match="test/coin needs an Env class, a function or 'module:name' to build it"):
        register("test/coin", entry_point)


@pytest.mark.parametrize("env_id", ["", "my coin", " coin", "coin\n"])
def test_ids_are_one_word(env_id):
    with pytest.raises(ValueError, match="an environment id is one word"):
        register(env_id, Room)


def test_wrong_arguments_are_answered_with_the_right_ones():
    register("test/room", Room)
    with pytest.raises(
        ValueError, match=r"cannot build test/room: .*'room'; did you mean rooms[?] It takes split, name, rooms"
    ):
        make("test/room", room=3)


def test_what_is_no_environment_is_refused_with_what_it_lacks():
    register("test/plain", "builtins:dict")
    with pytest.raises(ValueError, match=r"builtins:dict is not an environment; name a class with reset and step"):
        make("test/plain")
    register("test/called", dict)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        ValueError, match=r"test/called is not an environment: it has no reset; derive it from turnwise"
    ):
        make("test/called")


def annotated(*, split: str = "train") -> Env:
    return Room(split=split)


def unannotated(*, command: str = ""):
    raise AssertionError("this function does not say that it makes environments")


class Duck:
    """An environment by its methods alone."""

    def reset(self, seed=None, task=None):
        return "quack?", {}

    def step(self, action):
        return "", 1.0, True, False, {}

    def close(self):
        pass


@pytest.mark.parametrize("place", ["os:system", "subprocess:run", "builtins:eval", "shutil:rmtree", "pathlib:Path"])
def test_what_is_not_an_environment_is_never_called(place):
    with pytest.raises(ValueError, match=f"{place} is not an environment; name a class"):
        find(place)
    with pytest.raises(ValueError, match=f"{place} is not an environment; name a class"):
        make(place, command="touch /tmp/never")


def test_a_function_of_the_users_own_makes_environments_when_its_annotation_says_so():
    assert isinstance(make(f"{__name__}:annotated"), Room)
    assert isinstance(make(f"{__name__}:Duck"), Duck)
    with pytest.raises(ValueError, match=r"unannotated is not an environment; .*annotated to return one"):
        make(f"{__name__}:unannotated")


def test_every_environment_of_ours_is_one_before_it_is_called():
    for spec in specs():
        if spec.extra is None:
            assert callable(registry.entry_of(spec))


def test_specs_are_sorted_complete_and_each_has_a_summary():
    listed = specs()
    assert [spec.id for spec in listed] == sorted(spec.id for spec in listed)
    assert [spec.id for spec in listed if not spec.summary] == []
    assert [spec.id for spec in listed if spec.example and spec.match(spec.example) is None] == []


def test_installed_packages_register_through_their_entry_point(tmp_path):
    metadata = tmp_path / "other_games-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other-games\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[turnwise.envs]\nother = other_games\n")
    (tmp_path / "other_games.py").write_text(
        "from turnwise.envs import Env, register\n"
        "class Coin(Env):\n    def reset(self, seed=None, task=None): return 'heads?', {}\n"
        "register('other/coin', Coin)\n"
    )
    program = "from turnwise.envs import make; print(make('other/coin').reset(seed=0))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert result.stdout == "('heads?', {})\n"


def test_the_first_names_of_every_package_load_on_use():
    for package in (turnwise, turnwise.envs, turnwise.rollout):
        assert [name for name in package.__all__ if getattr(package, name, None) is None] == []
        with pytest.raises(AttributeError, match="has no attribute 'nothing_of_ours'"):
            _ = package.nothing_of_ours


def test_listing_all_environments_imports_neither_torch_nor_numpy():
    program = (
        "import sys, turnwise.rollout; from turnwise.envs import specs; specs(); "
        "print({'torch', 'numpy'} & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output == "set()\n"
