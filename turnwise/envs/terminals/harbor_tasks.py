"""Task folders of Harbor and Terminal-Bench, as they are, where their image is plain.

The agent is not root here, and nothing has a network. Tests are run by `harbor_runner`.
"""

from __future__ import annotations

import ast
import shlex
import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from turnwise.envs.terminals.harbor_image import PlainImage
from turnwise.envs.terminals.terminal_task import TerminalTask
from turnwise.strict_yaml import parse

CANARY = "terminal-bench-canary"
"""Tasks with this word in one of their files are for evaluation alone."""
_RUNNER = Path(__file__).parent / "harbor_runner.py"
_NO_FILES = "FILES: dict[str, str] = {}"
_PYTEST = {"pytest.fail", "pytest.mark", "pytest.mark.parametrize"}
_THIRD_PARTY = {
    *("PIL", "bs4", "cv2", "flask", "matplotlib", "networkx", "numpy", "pandas", "psutil", "requests", "scipy"),
    *("sklearn", "sympy", "torch", "transformers", "yaml"),
}
"""Other names that no library has are modules that the agent is asked to write."""
_EXTRAS = ("steps", "mcp_servers", "skills_dir", "gpus", "healthcheck", "env")
"""Settings of a task that ask for more than a shell."""


def is_harbor(folder: Path) -> bool:
    """Whether a folder holds one task of Harbor or Terminal-Bench."""
    return (folder / "task.toml").is_file() or (folder / "task.yaml").is_file()


def read_harbor_tasks(path: Path) -> list[TerminalTask]:
    """The plain tasks of a folder of folders. One warning names the others; ValueError if none is plain."""
    tasks, refused = list[TerminalTask](), list[str]()
    for folder in sorted(filter(is_harbor, path.iterdir())):
        try:
            tasks.append(read_harbor_task(folder))
        except ValueError as error:
            refused.append(str(error))
    if not tasks:
        raise ValueError(f"no task in {path} can run here: {'; '.join(refused) or 'there is none'}")
    if refused:
        warnings.warn(f"{len(refused)} tasks in {path} cannot run here: {'; '.join(refused)}", stacklevel=2)
    return tasks


def read_harbor_task(folder: Path) -> TerminalTask:
    """The task of one folder; ValueError, with the reason, if it needs more than a plain image."""
    try:
        return _read(folder)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{folder.name}: {error}") from error


def _read(folder: Path) -> TerminalTask:
    context = folder / "environment" if (folder / "task.toml").is_file() else folder
    instruction = _settings(folder)
    _require_one_container(context)
    dockerfile = (context / "Dockerfile").read_text(encoding="utf-8")
    image = PlainImage.read(context, dockerfile)
    tests = {file.name: file.read_text(encoding="utf-8") for file in sorted((folder / "tests").glob("test*.py"))}
    _require_plain_tests(tests)
    texts = (dockerfile, instruction, *tests.values())
    canary = f"# {CANARY}: for evaluation, not for training\n" if any(CANARY in text for text in texts) else ""
    runner = _RUNNER.read_text(encoding="utf-8")
    assert _NO_FILES in runner
    return TerminalTask(
        name=folder.name,
        instruction=instruction,
        truth={},
        setup=canary + image.setup,
        initial_test="",
        final_test=runner.replace(_NO_FILES, f"FILES: dict[str, str] = {tests!r}"),
        solution=_solution(folder),
        family="harbor",
        folder=image.folder,
    )


def _settings(folder: Path) -> str:
    """The instruction, after a look at what the task asks for."""
    old = folder / "task.yaml"
    if old.is_file():
        return str(parse(old.read_text(encoding="utf-8")).get("instruction", "")).strip()
    settings = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    for part in (settings, cast("Mapping[str, Any]", settings.get("environment", {}))):
        if wanted := [name for name in _EXTRAS if part.get(name)]:
            raise ValueError(f"it asks for {wanted[0]}, which the sandbox does not have")
    return (folder / "instruction.md").read_text(encoding="utf-8").strip()


def _require_one_container(context: Path) -> None:
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (context / name).is_file():
            services = parse((context / name).read_text(encoding="utf-8")).get("services") or {}
            if set(services) - {"client"}:
                raise ValueError(f"it runs several containers: {', '.join(sorted(services))}")


def _require_plain_tests(tests: Mapping[str, str]) -> None:
    if not tests:
        raise ValueError("it has no tests/test*.py")
    for name, text in tests.items():
        if "/tests/" in text:
            raise ValueError(f"tests/{name} reads other files of its folder")
        for node in ast.walk(ast.parse(text)):
            if foreign := _THIRD_PARTY & _imported(node):
                raise ValueError(f"tests/{name} imports {min(foreign)}, which the sandbox does not have")
            used = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if used.startswith("pytest.") and used not in _PYTEST:
                raise ValueError(
                    f"tests/{name} uses {used}; only pytest.fail and pytest.mark.parametrize are supported"
                )


def _imported(node: ast.AST) -> set[str]:
    """First words of the modules that a statement imports."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return {name.partition(".")[0] for name in names}


def _solution(folder: Path) -> tuple[str, ...]:
    """The task's own script as one command, if it needs nothing else."""
    for script in (folder / "solution" / "solve.sh", folder / "solution.sh"):
        if script.is_file() and (script.parent == folder or len(list(script.parent.iterdir())) == 1):
            return (f"bash -c {shlex.quote(script.read_text(encoding='utf-8'))}",)
    return ()
