import subprocess
import sys

import pytest

from turnwise.envs import find, make
from turnwise.envs.adapters import SPECS
from turnwise.envs.registry import family_ids

PACKAGES = {
    "rg/{name}": "reasoning_gym",
    "textarena/{name}": "textarena",
    "textworld/w{rooms:int}-o{objects:int}-q{quest:int}": "textworld",
    "textworld/cooking": "textworld",
    "gym/{name}": "gymnasium",
    "minigrid/{name}": "minigrid",
    "gem/{name}": "gem",
    "verifiers/{name}": "verifiers",
    "openenv/{address}": "websockets",
}


def test_listing_the_adapters_imports_none_of_their_packages():
    check = f"import sys, turnwise.envs as e; e.specs(); print(sorted(set(sys.modules) & {set(PACKAGES.values())!r}))"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stderr


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_a_missing_package_is_answered_with_the_pip_command(spec, monkeypatch):
    module = spec.entry_point.partition(":")[0]
    package = PACKAGES[spec.id]
    for name in [name for name in sys.modules if name in (module, package) or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"needs the package '{package}.*pip install 'turnwise\[{spec.extra}\]'"):
        make(spec.example or spec.id)


def test_the_size_of_a_textworld_game_comes_from_its_id():
    spec, fields = find("textworld/w8-o12-q4")
    assert spec.extra == "textworld"
    assert fields == {"rooms": 8, "objects": 12, "quest": 4}


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.names], ids=lambda spec: spec.id)
def test_a_family_lists_its_ids_and_its_example_is_among_them(spec):
    pytest.importorskip(PACKAGES[spec.id], reason=f"needs {spec.extra}: pip install 'turnwise[{spec.extra}]'")
    ids = family_ids(spec)
    assert spec.example in ids
    assert ids == sorted(ids)
    assert all(find(each)[0] == spec for each in ids)
