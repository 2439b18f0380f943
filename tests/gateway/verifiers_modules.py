"""Small tasksets as a user would install them; tool servers import them in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

SHOP = """
    import verifiers.v1 as vf

    class Data(vf.TaskData):
        fruit: str

    class Prices(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
        TOOL_PREFIX = "shop"

        @vf.tool
        async def price(self, fruit: str) -> str:
            "Says what a fruit costs."
            return f"{len(fruit)} coins"

    class Ask(vf.Task[Data]):
        @vf.reward
        async def right(self, trace: vf.Trace) -> float:
            return float(f"{len(self.data.fruit)} coins" in trace.last_reply)

        @vf.reward(weight=0.5)
        async def even(self, trace: vf.Trace) -> float:
            return float(len(trace.last_reply) % 2 == 0)

        @vf.metric
        async def asked(self, trace: vf.Trace) -> float:
            return float(trace.num_turns)

    class Shop(vf.Taskset[Ask, vf.TasksetConfig]):
        def load(self):
            for number in range(1, 41):
                fruit = "x" * number
                yield Ask(Data(prompt=f"Price of {fruit} ?", system_prompt="Be brief.", fruit=fruit), self.config.task)

        @classmethod
        def toolsets(cls, config):
            return [Prices(vf.SharedToolsetConfig())]

    __all__ = ["Shop"]

    if __name__ == "__main__":
        Prices.run()
"""

LEDGER = """
    import verifiers.v1 as vf

    class Sums(vf.State):
        total: int = 0

    class Data(vf.TaskData):
        start: int

    class Adding(vf.Toolset[vf.ToolsetConfig, Sums]):
        TOOL_PREFIX = "ledger"

        async def setup_task(self, task):
            self.start = task.start

        @vf.tool
        async def add(self, amount: int) -> str:
            "Adds an amount."
            self.state.total += amount
            return str(self.start + self.state.total)

    class Book(vf.Task[Data, Sums]):
        async def setup(self, trace, runtime):
            await runtime.write("opened.txt", b"yes")

        async def finalize(self, trace, runtime):
            trace.state.total += len(await runtime.read("opened.txt"))

        @vf.reward
        async def total(self, trace) -> float:
            return float(trace.state.total)

        @classmethod
        def toolsets(cls, config):
            return [Adding(vf.ToolsetConfig())]

    class Ledger(vf.Taskset[Book, vf.TasksetConfig]):
        def load(self):
            for number in range(20):
                yield Book(Data(prompt="add", start=10 * number), self.config.task)

    __all__ = ["Ledger"]

    if __name__ == "__main__":
        Adding.run()
"""

MISHAPS = """
    import asyncio
    import verifiers.v1 as vf

    class Data(vf.TaskData):
        mishap: str

    class Chancy(vf.Task[Data]):
        async def setup(self, trace, runtime):
            if self.data.mishap == "setup":
                raise RuntimeError("the shop is closed")
            if self.data.mishap == "hangs":
                await asyncio.sleep(600)

        async def finalize(self, trace, runtime):
            if self.data.mishap == "finalize":
                await asyncio.sleep(600)

        @vf.reward
        async def spoken(self, trace) -> float:
            if self.data.mishap == "reward":
                raise ArithmeticError("no such number")
            return float(trace.last_reply == "yes")

        @vf.stop
        async def long(self, trace: vf.Trace) -> bool:
            return self.data.mishap == "stops" and trace.num_turns >= 1

    class Config(vf.TasksetConfig):
        image: str | None = None

    class Mishaps(vf.Taskset[Chancy, Config]):
        def load(self):
            for mishap in ["", "setup", "hangs", "reward", "stops", "finalize", *[""] * 4]:
                yield Chancy(Data(prompt="well ?", mishap=mishap, image=self.config.image), self.config.task)

    __all__ = ["Mishaps"]
"""

DUET = """
    import verifiers.v1 as vf

    class Data(vf.TaskData):
        word: str

    class Say(vf.Task[Data]):
        @vf.reward
        async def said(self, trace) -> float:
            return float(trace.last_reply == self.data.word)

    class Words(vf.Taskset[Say, vf.TasksetConfig]):
        def load(self):
            for word in ["yes", "no"] * 10:
                yield Say(Data(prompt=f"say {word}", word=word), self.config.task)

    class DuetConfig(vf.EnvConfig):
        first: vf.AgentConfig = vf.AgentConfig()
        second: vf.AgentConfig = vf.AgentConfig()

    class Duet(vf.Env[DuetConfig]):
        async def run(self, task, agents):
            await agents.first.run(task)
            await agents.second.run(task)

        async def finalize(self, task, episode):
            for number, trace in enumerate(episode.traces):
                trace.record_reward("place", float(number))

    __all__ = ["Words", "Duet"]
"""

PLAIN = """
    import verifiers.v1 as vf

    class Data(vf.TaskData):
        answer: str

    class Answer(vf.Task[Data]):
        @vf.reward
        async def long(self, trace) -> float:
            return float(len(trace.last_reply) > 2)

    class Plain(vf.Taskset[Answer, vf.TasksetConfig]):
        def load(self):
            for number in range(20):
                yield Answer(Data(prompt=f"What is {number} + 1 ?", answer=str(number + 1)), self.config.task)

    __all__ = ["Plain"]
"""

MODULES = {"shop": SHOP, "ledger": LEDGER, "mishaps": MISHAPS, "duet": DUET, "plain": PLAIN}


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """The tasksets are importable as `turnwise_shop` and so on, here and in processes that are started."""
    for name, source in MODULES.items():
        (folder / f"turnwise_{name}.py").write_text(dedent(source))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])))
        yield
