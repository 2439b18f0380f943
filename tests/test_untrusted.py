"""Files and settings that are nested without end get one message."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnwise.cli import app
from turnwise.untrusted import DEEPEST, parse_shallow

DEEP = {depth: "[" * depth + "]" * depth for depth in (DEEPEST, DEEPEST + 2, 20_000)}
MESSAGE = f"lists or mappings are nested more than {DEEPEST} levels deep"


def test_what_is_nested_too_deeply_is_refused() -> None:
    assert parse_shallow(json.loads, DEEP[DEEPEST])
    assert parse_shallow(json.loads, '{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    for depth in (DEEPEST + 2, 20_000):
        with pytest.raises(ValueError, match=MESSAGE):
            parse_shallow(json.loads, DEEP[depth])


@pytest.mark.parametrize("depth", [DEEPEST + 2, 20_000])
def test_a_deep_recipe_setting_or_comparison_is_one_message(depth: int, tmp_path: Path) -> None:
    recipe, comparison = tmp_path / "deep.yaml", tmp_path / "comparison.json"
    recipe.write_text("train: " + DEEP[depth])
    comparison.write_text(DEEP[depth])
    for command in (
        ["train", str(recipe), "--dry-run"],
        ["train", f"train.steps={DEEP[depth]}", "--dry-run"],
        ["report", str(tmp_path), "--comparison", str(comparison)],
    ):
        result = CliRunner().invoke(app, command)
        assert (result.exit_code, MESSAGE in result.stderr) == (2, True), result.output
