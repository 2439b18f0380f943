"""The final test of Harbor tasks: runs test functions in the style of pytest, of which it has the few parts below.

The text of this file, with the test files in place of `FILES`, is a task's `final_test`. It runs inside a sandbox, so
it uses the standard library alone.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FILES: dict[str, str] = {}
"""Test files by name."""


def fail(reason: str = "", **_: Any) -> None:
    """`pytest.fail`."""
    raise AssertionError(reason)


def parametrize(names: str | tuple[str, ...] | list[str], values: list[Any], **_: Any) -> Callable[[Any], Any]:
    """`pytest.mark.parametrize`."""
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def mark(function: Any) -> Any:
        cases = [dict(zip(listed, value if len(listed) > 1 else (value,))) for value in values]  # noqa: B905
        before = getattr(function, "cases", [{}])
        function.cases = [{**one, **other} for one in before for other in cases]
        return function

    return mark


def find_tests(module: types.ModuleType) -> Iterator[Callable[[], None]]:
    """Every test of a module with every case."""
    for name, found in vars(module).items():
        if name.startswith("test") and callable(found):
            yield from (lambda call=found, case=case: call(**case) for case in getattr(found, "cases", [{}]))
        elif name.startswith("Test") and isinstance(found, type):
            for method in [each for each in dir(found) if each.startswith("test")]:
                cases = getattr(getattr(found, method), "cases", [{}])
                yield from (lambda kind=found, it=method, case=case: getattr(kind(), it)(**case) for case in cases)


def main() -> int:
    """0 if there are tests and all of them pass; shows the first that fails."""
    sys.modules["pytest"] = types.ModuleType("pytest")
    vars(sys.modules["pytest"]).update(fail=fail, mark=types.SimpleNamespace(parametrize=parametrize))
    ran = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, text in FILES.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        sys.path[:0] = [folder]
        for name in FILES:
            spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), Path(folder, name))
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
                for test in find_tests(module):
                    ran += 1
                    test()
            except BaseException:  # whatever the agent left there: the test did not pass
                traceback.print_exc()
                return 1
    return 0 if ran else 1


if __name__ == "__main__":
    sys.exit(main())
