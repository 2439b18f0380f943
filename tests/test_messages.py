"""What messages tell a user to set, pass or run exists: keys of a recipe, options and commands."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from pydantic import BaseModel

import turnwise
from turnwise.cli import app
from turnwise.recipe.checks import section_of
from turnwise.recipe.schema import Recipe

PACKAGE = Path(turnwise.__file__).parent
OTHER_PROGRAMS = ("tools/sandbox.py", "nano/__main__.py", "plugins/verl.py", "envs/terminals/")
"""They start other commands, or name settings of other programs."""
OPTIONS_OF_OTHERS = {"--no-deps", "--nproc-per-node"}
SECTIONS = {name: section for name, field in Recipe.model_fields.items() if (section := section_of(field.annotation))}
KEY = re.compile(rf"(?<![\w./-])({'|'.join(SECTIONS)})\.([a-z_]+)(?:\.([a-z_]+))?(?![\w(])")
NOT_KEYS = {"jsonl", "json", "yaml", "html", "safetensors", "save_pretrained"}
"""What follows a dot in names of files and in calls of Python."""


def sentences(file: Path) -> Iterator[str]:
    """Texts of a source file that are no docstrings and have more than one word; `{}` stands for what is filled in."""
    tree = ast.parse(file.read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


@cache
def all_sentences() -> list[str]:
    files = [
        file for file in PACKAGE.rglob("*.py") if not file.relative_to(PACKAGE).as_posix().startswith(OTHER_PROGRAMS)
    ]
    return [text for file in files for text in sentences(file) if " " in text.strip()]


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return group.commands


def all_options() -> Iterator[Any]:
    """Of every command, and of those below groups such as `turnwise engine`."""
    for command in commands().values():
        for each in (command, *getattr(command, "commands", {}).values()):
            yield from each.params


def has_key(section: type[BaseModel], names: list[str]) -> bool:
    first, *rest = names
    if first not in section.model_fields:
        return False
    inner = section_of(section.model_fields[first].annotation)
    return not rest or inner is None or has_key(inner, rest)


def mentioned_keys() -> set[tuple[str, ...]]:
    found = {match.groups() for text in all_sentences() for match in KEY.finditer(text)}
    return {tuple(filter(None, groups)) for groups in found if groups[1] not in NOT_KEYS}


def test_every_key_that_a_message_names_is_one_of_the_recipe() -> None:
    keys = mentioned_keys()
    assert len(keys) > 25  # or the search has lost its eyes
    unknown = {".".join(key) for key in keys if not has_key(SECTIONS[key[0]], list(key[1:]))}
    assert unknown == set()


def test_every_option_that_a_message_names_belongs_to_a_command() -> None:
    known = {name for option in all_options() for name in (*option.opts, *option.secondary_opts)}
    named = {name for text in all_sentences() for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    assert len(named) > 8
    assert named - known - OPTIONS_OF_OTHERS == set()


def test_every_command_that_a_message_names_exists() -> None:
    named = {name for text in all_sentences() for name in re.findall(r"\bturnwise ([a-z][a-z-]+)\b", text)}
    assert {"resume", "train", "eval"} <= named
    assert named - set(commands()) - {"reads", "itself"} == set()  # which follow the name in plain sentences


@pytest.mark.parametrize("words", ["template=", "observation_role", "token budget"])
def test_no_message_names_an_argument_that_a_recipe_cannot_give(words: str) -> None:
    assert [text for text in all_sentences() if words in text] == []


def test_arguments_of_the_engine_are_named_with_their_keys() -> None:
    for argument, key in (("memory_bytes", "engine.memory_gib"), ("capacity", "rollout.context")):
        texts = [text for text in all_sentences() if re.search(rf"\b{argument}\b", text)]
        assert texts
        assert all(key in text for text in texts)
