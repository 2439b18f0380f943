import asyncio
import sys
from textwrap import dedent

import pytest

pytest.importorskip("verifiers.v1", reason="needs turnwise[verifiers]")

from tests.envs.adapters.play import make

TASKSET = """
    import verifiers.v1 as vf

    class Data(vf.TaskData):
        word: str

    class Reverse(vf.Task[Data]):
        @vf.reward(weight=1.0)
        async def exact(self, trace: vf.Trace) -> float:
            return float(trace.last_reply == self.data.word[::-1])

        @vf.reward(weight=0.5)
        async def short(self, trace: vf.Trace) -> float:
            return float(len(trace.last_reply) < 20)

        @vf.metric
        async def length(self, trace: vf.Trace) -> float:
            return float(len(trace.last_reply))

    class Config(vf.TasksetConfig):
        size: int = 40

    class ReverseTaskset(vf.Taskset[Reverse, Config]):
        def load(self):
            for number in range(self.config.size):
                word = f"word{number}"
                yield Reverse(Data(prompt=f"Reverse {word}", system_prompt="Be brief.", word=word), self.config.task)

    __all__ = ["ReverseTaskset"]
"""
SANDBOXED = TASKSET.replace(
    "self, trace: vf.Trace) -> float:\n            return float(len",
    "self, trace, runtime):\n            return float(len",
)


@pytest.fixture
def taskset(tmp_path, monkeypatch):
    """Installs a taskset module under a name of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(dedent(source))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return f"verifiers/{name}"

    return install


def test_a_reply_is_scored_by_the_taskset_s_own_weighted_rewards(taskset):
    env = make(taskset("turnwise_reverse", TASKSET))
    observation, info = env.reset(task=3)
    assert observation == "Be brief.\n\nReverse word3"
    assert info == {"task_index": 3}
    _, reward, terminated, truncated, info = asyncio.run(env.step("3drow"))
    assert (reward, terminated, truncated, info["success"]) == (1.5, True, False, True)
    assert info["reward_parts"] == {"exact": 1.0, "short": 0.5}
    assert info["scores"] == {"length": 5.0}
    _, reward, _, _, info = asyncio.run(env.step("x" * 1_000_000))
    assert (reward, info["success"]) == (0.0, False)


def test_splits_share_no_task_and_equal_seeds_draw_equal_tasks(taskset):
    env_id = taskset("turnwise_reverse_splits", TASKSET)
    indices = {split: set(make(env_id, split=split).tasks) for split in ("train", "validation", "test")}
    assert {split: len(numbers) for split, numbers in indices.items()} == {"train": 32, "validation": 4, "test": 4}
    assert len(set.union(*indices.values())) == 40
    first, second = make(env_id), make(env_id)
    assert [first.reset(seed=seed) for seed in range(10)] == [second.reset(seed=seed) for seed in range(10)]
    assert len({first.reset(seed=seed)[0] for seed in range(30)}) > 10
    with pytest.raises(ValueError, match="not in the train split"):
        first.reset(task=9)


def test_snapshots_keep_the_task(taskset):
    env = make(taskset("turnwise_reverse_state", TASKSET))
    env.reset(seed=1)
    state = env.get_state()
    action = env.sample_random_action()
    env.reset(seed=2)
    env.set_state(state)
    assert env.sample_random_action() == action


def test_settings_reach_the_config_and_an_empty_split_is_refused(taskset):
    env_id = taskset("turnwise_reverse_settings", TASKSET)
    assert len(make(env_id, settings={"size": 20}).tasks) == 16
    with pytest.raises(ValueError, match="leave none for test"):
        make(env_id, settings={"size": 3}, split="test")


def test_what_reads_more_than_the_reply_is_played_by_verifiers_itself(taskset):
    pytest.importorskip("uvicorn", reason="needs a server: pip install 'turnwise[serve]'")
    kinds = [
        make(taskset(f"turnwise_reverse_{name}", source)) for name, source in (("own", TASKSET), ("box", SANDBOXED))
    ]
    assert [type(env).__name__ for env in kinds] == ["Verifiers", "AgentRun"]


def test_a_taskset_that_is_not_installed_names_the_fix():
    with pytest.raises(ValueError, match=r"pip install 'turnwise\[verifiers\]' no-such-taskset"):
        make("verifiers/no-such-taskset")
