"""The vector interface: partial stepping, autoreset that keeps how episodes ended, faults that harm no other."""

import threading
import time
from typing import Any

import pytest

from turnwise.envs import Env
from turnwise.envs.vector import make_vec


class Count(Env):
    """Counts to three; "crash" raises, "hang" hangs. The observation shows the seed's draw and what was left over."""

    execution = "thread"

    def reset(self, seed=None, task=None) -> Any:
        super().reset(seed=seed)
        self.turn, self.number = 0, self.rng.randrange(10**9)
        return f"{self.number}:0", {"fresh": True}

    def step(self, action):
        if action == "crash":
            raise RuntimeError("boom")
        if action == "hang":
            time.sleep(20)
        self.turn += 1
        return f"{self.number}:{self.turn}", float(self.turn), self.turn == 3, action == "cut", {"turn": self.turn}


def first_observation(seed):
    return Count().reset(seed=seed)[0]


def test_each_environment_has_its_own_seed_and_each_episode_a_new_one():
    with make_vec(Count, 3, seed=40) as envs:
        observations, _ = envs.reset()
        assert observations == [first_observation(seed) for seed in (40, 41, 42)]
        assert envs.reset([1])[0] == [first_observation(44)]
        assert [envs.seed_of(index) for index in range(3)] == [40, 44, 42]


def test_partial_steps_touch_only_the_named_environments():
    with make_vec(Count, 3) as envs:
        envs.reset()
        assert envs.step({2: "a", 0: "a"}).infos == [{"turn": 1}, {"turn": 1}]
        assert envs.step(["a", "a", "a"]).rewards == [2.0, 1.0, 2.0]


def test_same_step_autoreset_keeps_the_final_observation_and_info():
    with make_vec(Count, 2, seed=7) as envs:
        envs.reset()
        envs.step(["a", "a"])
        observations, rewards, terminated, truncated, infos = envs.step(["cut", "a"])
        assert (rewards, terminated, truncated) == ([2.0, 2.0], [False, False], [True, False])
        assert observations[0] == first_observation(9)
        last = first_observation(7).replace(":0", ":2")
        assert infos == [{"fresh": True, "final_observation": last, "final_info": {"turn": 2}}, {"turn": 2}]


def test_an_episode_that_terminated_and_was_truncated_counts_as_terminated():
    with make_vec(Count, 1) as envs:
        envs.reset()
        envs.step(["a"])
        envs.step(["a"])
        last = envs.step(["cut"])
        assert (last.terminated, last.truncated) == ([True], [False])


def test_next_step_autoreset_shows_the_end_first_and_ignores_the_following_action():
    with make_vec(Count, 1, autoreset="next_step") as envs:
        envs.reset()
        end = envs.step(["cut"])
        assert (end.observations, end.truncated) == ([first_observation(0).replace(":0", ":1")], [True])
        following = envs.step(["crash"])
        assert following.observations == [first_observation(1)]
        assert (following.rewards, following.terminated, following.truncated) == ([0.0], [False], [False])
        assert following.infos[0]["final_observation"] == end.observations[0]
        assert following.infos[0]["final_info"] == {"turn": 1}


def test_without_autoreset_a_finished_environment_must_be_reset():
    with make_vec(Count, 2, autoreset="off") as envs:
        with pytest.raises(ValueError, match=r"environment 0 has no episode to step in; start one with reset"):
            envs.step(["a", "a"])
        envs.reset()
        envs.step({0: "cut"})
        with pytest.raises(ValueError, match=r"environment 0 has no episode"):
            envs.step(["a", "a"])
        envs.reset([0])
        assert envs.step(["a", "a"]).rewards == [1.0, 1.0]


@pytest.mark.parametrize(("action", "text"), [("crash", "RuntimeError: boom"), ("hang", "no answer within 0.2 s")])
def test_a_failing_environment_is_replaced_and_harms_no_other(action, text):
    with make_vec(Count, 3, step_seconds=0.2) as envs:
        envs.reset()
        _, rewards, terminated, truncated, infos = envs.step(["a", action, "a"])
        assert (rewards, terminated, truncated) == ([1.0, 0.0, 1.0], [False] * 3, [False, True, False])
        assert infos[1]["final_info"]["error"].startswith(text)
        assert envs.step(["a", "a", "a"]).rewards == [2.0, 1.0, 2.0]


def test_send_and_recv_collect_steps_as_they_finish():
    with make_vec(Count, 2, step_seconds=0.5) as envs:
        envs.reset()
        envs.send({0: "hang", 1: "a"})
        assert envs.recv(timeout=5) == {1: (first_observation(1).replace(":0", ":1"), 1.0, False, False, {"turn": 1})}
        assert envs.recv(timeout=0) == {}
        with pytest.raises(ValueError, match="environment 0 is still stepping"):
            envs.step({0: "a"})
        assert envs.recv(timeout=5)[0][3] is True
        assert envs.recv() == {}


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="unknown environment 'no/such'"):
        make_vec("no/such", 2)
    with pytest.raises(ValueError, match="unknown autoreset 'never'; choose one of same_step"):
        make_vec(Count, 2, autoreset="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one environment"):
        make_vec(Count, 0)
    with pytest.raises(ValueError, match="a count needs a single environment"):
        make_vec([Count, Count], 3)
    with make_vec([Count, Count]) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="an action is a string, but that of environment 1 is 3"):
            envs.step(["a", 3])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="one action for each of the 2 environments"):
            envs.step(["a"])
        with pytest.raises(ValueError, match="indices go from 0 to 1"):
            envs.step({2: "a"})


def test_closing_leaves_no_thread_behind():
    before = set(threading.enumerate())
    envs = make_vec(Count, 4)
    envs.reset()
    envs.close()
    envs.close()
    wait_for_threads(before)


def wait_for_threads(before):
    """Until no more threads run than before."""
    deadline = time.perf_counter() + 2
    while set(threading.enumerate()) - before and time.perf_counter() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) - before == set()


def test_a_step_of_none_is_five_empty_lists():
    with make_vec(Count, 2) as envs:
        assert envs.step({}) == ([], [], [], [], [])


def test_closed_environments_refuse_to_go_on():
    envs = make_vec(Count, 1)
    envs.reset()
    envs.close()
    with pytest.raises(ValueError, match="are closed; make new ones"):
        envs.step(["a"])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"speed": 3}, "'speed'; it takes split"), ({"split": "dev"}, "cannot build Count: .*unknown split 'dev'")],
)
def test_what_cannot_be_built_raises_at_once_and_leaves_no_thread(kwargs, message):
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match=message):
        make_vec(Count, 2, kwargs=kwargs)
    wait_for_threads(before)


def test_the_example_in_the_documentation_makes_two_allowed_moves():
    with make_vec("game/hanoi-easy", 8) as envs:
        envs.reset()
        assert [info["valid"] for info in envs.step({0: r"\boxed{C B}", 5: r"\boxed{B C}"}).infos] == [True, True]
