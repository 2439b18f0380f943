"""A name in the package stands for one idea."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "turnwise"
EVERYWHERE = ("__init__.py", "__main__.py")
SAME_IDEA = {
    "Document": "what a search finds, for environments and for the tool",
    "Retriever": "what searches, for environments and for the tool",
    "Problem": "a question of a search environment, of either kind",
    "Said": "what one speaker said, in a test of memories and on the wire",
    "Critic": "the section of a row, and the module that it asks for",
}
"""Class names that occur twice, and why they may."""


def test_no_file_name_twice_for_two_ideas():
    files: defaultdict[str, list[str]] = defaultdict(list)
    for file in PACKAGE.rglob("*.py"):
        if file.name not in EVERYWHERE:
            files[file.name].append(str(file.relative_to(PACKAGE)))
    assert {name: places for name, places in files.items() if len(places) > 1} == {}


def test_no_class_name_twice_for_two_ideas():
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(PACKAGE)))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in SAME_IDEA} == {}
    assert twice.keys() == SAME_IDEA.keys()
