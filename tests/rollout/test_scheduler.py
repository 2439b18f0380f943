"""The scheduler: no barrier, equal results whatever the timing, failures that stay where they happen."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.faulty import (
    AsyncWalk,
    Bad,
    Blocking,
    Duel,
    HangingReset,
    LateBlocking,
    LeakingCancel,
    Nobody,
    ProcessBad,
    ProcessWalk,
    RaisingInit,
    ThreadBad,
    ThreadWalk,
    Walk,
)
from turnwise.rollout.agents import Action, Agent, ConstantAgent, FunctionAgent, RandomAgent
from turnwise.rollout.episode import EpisodeSpec, Limits, tries
from turnwise.rollout.scheduler import Scheduler
from turnwise.types import StopReason


def play(specs, agents=None, **options):
    """All trajectories of `specs`, and the statistics."""

    async def run():
        async with Scheduler(**options) as scheduler:
            return await scheduler.run(specs, agents or RandomAgent()), scheduler.stats

    return asyncio.run(run())


def untimed(trajectories):
    """Trajectories without what may differ between equal runs: the clock, the process id and how long it sleeps."""
    return [
        replace(
            trajectory,
            kwargs={},
            turns=[replace(turn, sample_seconds=0.0, env_seconds=0.0) for turn in trajectory.turns],
            info={key: value for key, value in trajectory.info.items() if key != "pid"},
        )
        for trajectory in trajectories
    ]


class Dawdler(Agent):
    """Random actions after a random real delay."""

    async def act(self, view):
        started = time.perf_counter()
        await asyncio.sleep(started % 0.003)
        return Action(text=f"{await view.random_action()} {view.rng.random()}")


@pytest.mark.parametrize("env", [Walk, ThreadWalk, ProcessWalk, AsyncWalk])
def test_equal_seeds_give_equal_trajectories_whatever_concurrency_and_latency(env):
    def specs(sleep):
        return [
            EpisodeSpec(env=env, kwargs={"sleep": sleep}, seed=seed, group=f"task {seed}", index=index)
            for seed in range(4)
            for index in range(3)
        ]

    alone, _ = play(specs(0.0), Dawdler(), concurrency=1, processes=1)
    together, _ = play(specs(0.004), Dawdler(), concurrency=12, processes=2)
    assert [each.kwargs for each in alone] == [{"sleep": 0.0}] * 12
    assert untimed(alone) == untimed(together)
    assert len({trajectory.turns[0].action for trajectory in alone}) == 12
    assert len({trajectory.turns[0].observation for trajectory in alone}) == 4


def test_execution_place_does_not_change_the_trajectories():
    results = [
        play([EpisodeSpec(env=env, seed=seed, group=f"{seed}") for seed in range(3)])[0]
        for env in (Walk, ThreadWalk, ProcessWalk, AsyncWalk)
    ]
    assert untimed(results[0]) == untimed(results[1]) == untimed(results[2]) == untimed(results[3])


def test_another_run_seed_changes_the_agents_but_not_the_environments():
    specs = [EpisodeSpec(env=Walk, seed=5)]
    first, second = play(specs, seed=1)[0][0], play(specs, seed=2)[0][0]
    assert first.turns[0].observation == second.turns[0].observation
    assert first.turns[0].action != second.turns[0].action


def test_results_come_in_the_order_of_the_specs_and_by_group():
    specs = [
        spec for seed in (3, 1) for spec in tries(EpisodeSpec(env=AsyncWalk, kwargs={"sleep": 0.01}, seed=seed), 3)
    ]

    async def run():
        async with Scheduler(concurrency=4) as scheduler:
            return await scheduler.run_groups(specs, RandomAgent())

    groups = asyncio.run(run())
    digest = specs[0].group_id.removeprefix("AsyncWalk:3")
    assert [group.id for group in groups] == [f"AsyncWalk:{seed}{digest}" for seed in (3, 1)]
    assert [[trajectory.id for trajectory in group.trajectories] for group in groups] == [
        [f"AsyncWalk:{seed}{digest}/{index}" for index in range(3)] for seed in (3, 1)
    ]


def test_a_name_given_twice_is_refused():
    spec = EpisodeSpec(env=Walk, seed=4)
    with pytest.raises(ValueError, match=r"two specs are named 'Walk:4/0'; use tries\(spec, count\)"):
        play([spec, spec], concurrency=1)


def test_a_slow_episode_stalls_nobody():
    specs = [EpisodeSpec(env=ThreadWalk, kwargs={"length": 1}, seed=seed) for seed in range(20)]
    slow = EpisodeSpec(env=SlowThread, seed=99)

    async def run():
        async with Scheduler(concurrency=4) as scheduler:
            return [trajectory.id async for trajectory in scheduler.stream([slow, *specs], ConstantAgent(text="x"))]

    assert asyncio.run(run())[-1] == slow.id


class SlowThread(ThreadWalk):
    def step(self, action):
        time.sleep(0.5)
        return "done", 0.0, True, False, {}


def test_three_hundred_episodes_run_at_the_same_time():
    present, everyone = 0, asyncio.Event()

    class Meeting(Agent):
        async def act(self, view):
            nonlocal present
            present += view.turn == 0
            if present == 300:
                everyone.set()
            await everyone.wait()
            return Action(text="x")

    specs = [EpisodeSpec(env=ThreadWalk, seed=seed) for seed in range(300)]
    trajectories, stats = play(specs, Meeting(), concurrency=300, limits=Limits(act_seconds=20))
    assert stats.ends["ThreadWalk", StopReason.DONE] == 300
    assert stats.turns == sum(len(trajectory.turns) for trajectory in trajectories) == 900


def test_specs_are_drawn_only_as_places_become_free():
    drawn = 0

    async def endless():
        nonlocal drawn
        while True:
            drawn += 1
            yield EpisodeSpec(env=Walk, seed=drawn)

    async def run():
        async with Scheduler(concurrency=2) as scheduler:
            stream = scheduler.stream(endless(), RandomAgent())
            seen = [await anext(stream) for _ in range(5)]
            await stream.aclose()  # type: ignore[attr-defined]
            return seen

    assert len(asyncio.run(run())) == 5
    assert drawn <= 12


HOWS = [
    ("raise", "RuntimeError: the tool fell over"),
    ("exit", "SystemExit: 3"),
    ("stop iteration", "StopIteration"),
    ("four values", "step must return (observation, reward, terminated, truncated, info)"),
    ("no text", "step must return observation as a string"),
    ("nan", "step must return reward as a finite number"),
    ("text reward", "step must return reward as a finite number"),
    ("integer flag", "step must return terminated as a bool"),
    ("wrong parts", "step must return info['reward_parts'] as names with finite numbers"),
    ("wrong seat", "info['seat'] is 'nobody'"),
    ("huge reward", "step must return reward as a finite number"),
    ("several truths", "step must return info['valid'] as a bool"),
    ("cancelled", "CancelledError"),
    ("interrupt", "KeyboardInterrupt"),
    ("own base", "BareError: neither an Exception nor an exit"),
    ("silent error", "SilentError"),
    ("single precision", "step must return reward as a finite number of at most 1e+12"),
    ("huge part", "step must return info['reward_parts'] as names with finite numbers of at most 1e+12"),
]


@pytest.mark.parametrize("env", [Bad, ThreadBad, ProcessBad])
def test_a_crashing_or_lying_environment_ends_only_its_own_episode(env):
    bad = [EpisodeSpec(env=env, kwargs={"how": how}, seed=1, group=how) for how, _ in HOWS]
    good = [EpisodeSpec(env=Walk, seed=seed) for seed in range(5)]
    trajectories, stats = play([*bad, *good], processes=2)
    for (_, text), trajectory in zip(HOWS, trajectories, strict=False):
        assert trajectory.stop is StopReason.ENV_ERROR
        assert trajectory.truncated
        assert not trajectory.terminated
        assert text in trajectory.info["error"]
        assert trajectory.info["culprit"] == "env"
        assert len(trajectory.turns) == 2
    assert untimed(trajectories[len(bad) :]) == untimed(play(good)[0])
    assert stats.ends[env.__name__, StopReason.ENV_ERROR] == stats.faults[env.__name__, "env"] == len(HOWS)
    assert stats.ends["Walk", StopReason.DONE] == 5
    assert "ENV_ERROR".lower() in stats.summary()


@pytest.mark.parametrize(
    ("env", "text"), [(Nobody, "seats must be a tuple of different names, got tuple ()"), (LeakingCancel, "Cancelled")]
)
def test_missing_seats_and_leaked_cancellations_end_only_their_own_episode(env, text):
    trajectories, stats = play([EpisodeSpec(env=env), EpisodeSpec(env=Walk)])
    assert [trajectory.stop for trajectory in trajectories] == [StopReason.ENV_ERROR, StopReason.DONE]
    assert stats.last_error[env.__name__].startswith(text)


@pytest.mark.parametrize(("env", "threads", "processes"), [(Bad, 0, 0), (ThreadBad, 1, 0), (ProcessBad, 0, 1)])
def test_a_hung_step_times_out_alone_and_never_blocks_the_end(env, threads, processes):
    specs = [EpisodeSpec(env=env, kwargs={"how": "hang"}), *[EpisodeSpec(env=Walk, seed=seed) for seed in range(3)]]
    started = time.perf_counter()
    trajectories, stats = play(specs, limits=Limits(step_seconds=0.3))
    assert time.perf_counter() - started < 25  # it hangs for 30
    assert [trajectory.stop for trajectory in trajectories] == [StopReason.TIMEOUT, *[StopReason.DONE] * 3]
    assert trajectories[0].info["error"] == "no answer within 0.3 s"
    assert (stats.abandoned_threads, stats.killed_processes) == (threads, processes)
    assert stats.last_error == {env.__name__: "no answer within 0.3 s"}


@pytest.mark.parametrize("env", [Blocking, LateBlocking])
@pytest.mark.parametrize(("how", "threads"), [("block", 1), ("hang", 0), ("swallow", 0)])
def test_an_asynchronous_step_that_blocks_or_hangs_times_out_alone(env, how, threads):
    specs = [EpisodeSpec(env=env, kwargs={"how": how}), *[EpisodeSpec(env=env, seed=seed) for seed in range(4)]]
    started = time.perf_counter()
    trajectories, stats = play(specs, limits=Limits(step_seconds=1.5))
    assert time.perf_counter() - started < 25  # it hangs for 30
    assert [trajectory.stop for trajectory in trajectories] == [StopReason.TIMEOUT, *[StopReason.DONE] * 4]
    assert trajectories[0].info["error"] == "no answer within 1.5 s"
    assert stats.abandoned_threads == threads


def test_asynchronous_steps_that_block_for_a_while_do_so_at_the_same_time():
    specs = [EpisodeSpec(env=Blocking, kwargs={"how": "block", "seconds": 0.2}, seed=seed) for seed in range(16)]
    started = time.perf_counter()
    trajectories, _ = play(specs)
    assert time.perf_counter() - started < 0.8 * 16 * 3 * 0.2
    assert {trajectory.stop for trajectory in trajectories} == {StopReason.DONE}


def test_an_interrupt_that_a_coroutine_raises_ends_only_its_own_episode():
    specs = [EpisodeSpec(env=Blocking, kwargs={"how": how}) for how in ("interrupt", "wait")]
    trajectories, _ = play(specs)
    assert [trajectory.stop for trajectory in trajectories] == [StopReason.ENV_ERROR, StopReason.DONE]
    assert trajectories[0].info["error"].startswith("KeyboardInterrupt")


def test_a_hung_reset_times_out():
    trajectories, stats = play(tries(EpisodeSpec(env=HangingReset), 2), limits=Limits(reset_seconds=0.3))
    assert [trajectory.stop for trajectory in trajectories] == [StopReason.TIMEOUT] * 2
    assert stats.abandoned_threads == 2


def test_a_dying_worker_process_is_replaced():
    specs = [
        EpisodeSpec(env=ProcessBad, kwargs={"how": "die"}, seed=0),
        *[EpisodeSpec(env=ProcessWalk, seed=seed) for seed in range(3)],
    ]
    trajectories, stats = play(specs, concurrency=1, processes=1)
    assert [trajectory.stop for trajectory in trajectories] == [StopReason.ENV_ERROR, *[StopReason.DONE] * 3]
    assert trajectories[0].info["error"] == "the environment's process died (exit status -9)"
    assert stats.killed_processes == 1
    assert len({trajectory.info["pid"] for trajectory in trajectories[1:]}) == 1


def test_a_worker_that_died_between_episodes_costs_none():
    async def run():
        async with Scheduler(processes=1) as scheduler:
            (first,) = await scheduler.run([EpisodeSpec(env=ProcessWalk)], RandomAgent())
            os.kill(first.info["pid"], signal.SIGKILL)
            await asyncio.sleep(0.1)
            (second,) = await scheduler.run([EpisodeSpec(env=ProcessWalk)], RandomAgent())
            return first, second

    first, second = asyncio.run(run())
    assert untimed([first]) == untimed([second])
    assert first.info["pid"] != second.info["pid"]


def test_an_environment_that_cannot_be_built_fails_its_episodes():
    trajectories, stats = play([EpisodeSpec(env=RaisingInit, seed=seed) for seed in range(3)])
    assert [(trajectory.stop, trajectory.turns) for trajectory in trajectories] == [(StopReason.ENV_ERROR, [])] * 3
    assert "no such game file" in stats.last_error["RaisingInit"]


@pytest.mark.parametrize("how", ["raise", "cancel", "hang", "nonsense"])
def test_a_failing_agent_is_counted_apart(how):
    async def act(view) -> Any:
        if view.turn == 1 and how == "raise":
            raise KeyError("lost session")
        if view.turn == 1 and how == "cancel":
            raise asyncio.CancelledError
        if view.turn == 1 and how == "hang":
            await asyncio.sleep(30)
        return 3 if how == "nonsense" else "x"

    trajectories, stats = play([EpisodeSpec(env=Walk)], FunctionAgent(function=act), limits=Limits(act_seconds=0.2))
    assert trajectories[0].stop is (StopReason.TIMEOUT if how == "hang" else StopReason.ENV_ERROR)
    assert trajectories[0].info["culprit"] == "agent"
    assert stats.faults == {("Walk", "agent"): 1}


def test_unknown_ids_and_missing_seats_are_the_callers_mistake():
    with pytest.raises(ValueError, match="unknown environment 'no/such'"):
        play([EpisodeSpec(env="no/such")])
    with pytest.raises(ValueError, match="seat 'black' without an agent"):
        play([EpisodeSpec(env=Duel)], {"white": RandomAgent()})
    with pytest.raises(ValueError, match=r"add agents\['black'\] \('blak' is not one of its seats\)"):
        play([EpisodeSpec(env=Duel)], {"white": RandomAgent(), "blak": RandomAgent()})


@pytest.mark.parametrize("env", [Walk, "game/hanoi-easy"])
def test_arguments_that_no_environment_takes_are_the_callers_mistake(env):
    with pytest.raises(ValueError, match=r"cannot build .*'lenght'; .*[Ii]t takes .*split"):
        play([EpisodeSpec(env=env, kwargs={"lenght": 3})])


@pytest.mark.parametrize("agents", [[RandomAgent()], RandomAgent, "random", {}, {"agent": RandomAgent}, print])
def test_what_is_no_agent_is_refused(agents):
    async def run():
        async with Scheduler() as scheduler:
            await scheduler.run([EpisodeSpec(env=Walk)], agents)

    with pytest.raises(ValueError, match=r"agents must be an agent such as RandomAgent\(\)"):
        asyncio.run(run())


@pytest.mark.parametrize("specs", ["game/hanoi-easy", EpisodeSpec(env=Walk), None, ["game/hanoi-easy"]])
def test_what_are_no_specs_is_refused(specs):
    with pytest.raises(ValueError, match=r"must be (several|an) EpisodeSpec"):
        play(specs)


@pytest.mark.parametrize("env", [Walk, AsyncWalk, ThreadWalk, ProcessWalk])
def test_cancelling_closes_every_environment_and_leaves_nothing_running(env, tmp_path):
    mark, threads, waiting = tmp_path / "closed", set(threading.enumerate()), 0

    async def run():
        playing: Any = asyncio.current_task()

        async def act(view) -> Any:
            nonlocal waiting
            waiting += 1
            if waiting == 3:
                playing.cancel()
            await asyncio.sleep(30)

        async with Scheduler(concurrency=3, processes=3) as scheduler:
            specs = [EpisodeSpec(env=env, kwargs={"mark": str(mark)}, seed=seed) for seed in range(3)]
            await scheduler.run(specs, FunctionAgent(function=act))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    probed = 0 if env is ProcessWalk else 1  # the first instance only says where it wants to run
    assert mark.read_text().count("closed") == 3 + probed
    deadline = time.perf_counter() + 2
    while any(thread.name == "turnwise-env" for thread in set(threading.enumerate()) - threads):
        assert time.perf_counter() < deadline
        time.sleep(0.01)


def test_leaving_a_stream_early_leaves_no_process_behind():
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())

    async def run():
        async with Scheduler(concurrency=3, processes=3) as scheduler:
            async for trajectory in scheduler.stream(
                [EpisodeSpec(env=ProcessWalk, seed=seed) for seed in range(9)], RandomAgent()
            ):
                return trajectory.stop

    assert asyncio.run(run()) is StopReason.DONE
    assert set(children.read_text().split()) - before == set()


INTERRUPTED = """
import asyncio, sys
from tests.rollout.faulty import ProcessWalk, ThreadWalk
from turnwise.rollout.agents import FunctionAgent
from turnwise.rollout.episode import EpisodeSpec
from turnwise.rollout.scheduler import Scheduler

async def act(view):
    print("ready", flush=True)
    await asyncio.sleep(30)

async def run():
    async with Scheduler(concurrency=2) as scheduler:
        specs = [EpisodeSpec(env=env, kwargs={"mark": sys.argv[1]}) for env in (ThreadWalk, ProcessWalk)]
        await scheduler.run(specs, FunctionAgent(function=act))

asyncio.run(run())
"""


def test_control_c_closes_every_environment(tmp_path):
    mark = tmp_path / "closed"
    command = [sys.executable, "-c", INTERRUPTED, str(mark)]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert mark.read_text().count("closed") == 3  # two episodes, and the first that said where it wants to run


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        Scheduler(concurrency=0)
    with pytest.raises(ValueError, match="above zero: max_turns"):
        Limits(max_turns=0)
