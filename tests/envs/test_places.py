"""`module:Class` is looked up in the source, and no line of it is run."""

from pathlib import Path

import pytest

from turnwise.envs.places import require_place

SOURCE = """
raise SystemExit("it was run")

if True:
    class Coin:
        pass

Dice = Card = Coin
from elsewhere import Wheel as Roulette
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "placed").mkdir()
    (tmp_path / "placed/__init__.py").write_text("raise SystemExit")
    (tmp_path / "placed/chance.py").write_text(SOURCE)
    (tmp_path / "placed/open.py").write_text("from elsewhere import *")
    (tmp_path / "placed/broken.py").write_text("class Coin(:")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    "place",
    [
        "placed.chance:Coin",
        "placed.chance:Card",
        "placed.chance:Roulette",
        "placed.open:Anything",
        "sys:path",
        "turnwise.envs.games.hanoi:Hanoi",
    ],
)
def test_what_the_source_defines_exists(place: str) -> None:
    require_place(place)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("placed.chance:Coyn", "the module placed.chance has no Coyn; did you mean placed.chance:Coin"),
        ("placed.chance:Wheel", "has no Wheel"),
        ("placed.luck:Coin", "there is no module placed.luck"),
        ("placed_elsewhere:Coin", "there is no module placed_elsewhere"),
        ("placed.chance.py:Coin", "write placed.chance:Coin"),
        ("placed.broken:Coin", "broken.py is not valid Python"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest_name(place: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        require_place(place)
