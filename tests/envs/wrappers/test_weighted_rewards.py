"""Rewards as named, weighted functions: what they are told, what they pay, and what happens when they are wrong."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from turnwise.console.views import evaluation_table
from turnwise.envs import Env, check_env
from turnwise.envs.process import EnvSource
from turnwise.envs.wrappers import Rewards
from turnwise.envs.wrappers.reward_functions import ARGUMENTS
from turnwise.evaluate.evaluation import play_specs, summarize
from turnwise.recipe.loading import load_recipe
from turnwise.rollout.agents import Action, ConstantAgent, FunctionAgent
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.scheduler import Scheduler
from turnwise.runs.ledger import read_groups, write_groups
from turnwise.sources.judged import Jury
from turnwise.sources.rollout_metrics import read_rollout
from turnwise.trust import outside_names
from turnwise.types import Group, StopReason

HERE = f"{__name__}:"


class Echo(Env):
    """Three turns; saying 'end' ends it and pays 1."""

    def reset(self, seed=None, task=None):
        super().reset(seed=seed)
        self.turn = 0
        return "speak", {"task": {"answer": "end"}}

    def step(self, action):
        self.turn += 1
        done = "end" in action
        return f"heard {action}", float(done), done or self.turn == 3, False, {"success": done}

    def sample_random_action(self):
        return self.rng.choice(["end", "go"])


class Tabled(Echo):
    """Pays by a table of rewards, as games do, though it has one seat."""

    def step(self, action):
        said, paid, ended, cut, info = super().step(action)
        return said, paid, ended, cut, {**info, "rewards": {self.seats[0]: paid}}


class Two(Echo):
    """A game."""

    seats = ("white", "black")


SEEN = []


def told(**known):
    SEEN.append(known)
    return 2.0


def short(answers):
    return -sum(map(len, answers))


async def later(answer):
    await asyncio.sleep(0)
    return len(answer)


def seldom(answer):
    return None if "go" in answer else 1.0


def raises(task):
    return task["gold"]


def wrong(answer):
    return math.nan


def words(answer):
    return "many"


def asks(secret):
    return 1.0


def play(functions, agent, *, env=Echo, limits=None, count=1):
    wrappers = [{"kind": "rewards", "functions": [dict(each) for each in functions]}]
    specs = [EpisodeSpec(env=env, wrappers=wrappers, seed=seed) for seed in range(count)]

    async def main():
        async with Scheduler(limits=limits) as scheduler:
            return await scheduler.run(specs, agent)

    return asyncio.run(main())


def saying(*texts):
    return FunctionAgent(lambda view: texts[view.turn])


def choice(function, **options):
    return {"function": HERE + function, **options}


def test_a_function_is_told_what_it_asks_for_at_the_end_of_the_episode():
    SEEN.clear()
    (trajectory,) = play([choice("told", name="fine", weight=0.5)], saying("go", "end"))
    (known,) = SEEN
    assert known.keys() == ARGUMENTS.keys()
    assert known["messages"] == [
        {"role": "user", "content": "speak"},
        {"role": "assistant", "content": "go"},
        {"role": "user", "content": "heard go"},
        {"role": "assistant", "content": "end"},
    ]
    assert (known["answer"], known["answers"], known["task"]) == ("end", ["go", "end"], {"answer": "end"})
    assert (known["observation"], known["reward"], known["cut"]) == ("heard end", 1.0, False)
    assert [turn.reward for turn in trajectory.turns] == [0.0, 2.0]
    assert trajectory.turns[1].reward_parts == {"environment": 1.0, "fine": 1.0}
    assert trajectory.scores == {"fine": 2.0}  # what it gave, because its weight is not 1


def test_turns_are_paid_one_by_one_and_functions_may_wait():
    functions = [choice("later", per="turn", weight=0.1), choice("short")]
    (trajectory,) = play(functions, saying("go", "end"))
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0.2, 1 + 0.3 - 5])
    assert trajectory.reward_parts == pytest.approx({"later": 0.5, "short": -5.0, "environment": 1.0})
    assert trajectory.scores == pytest.approx({"later": 5.0})


@pytest.mark.parametrize("env", [Echo, Tabled])
def test_the_environments_own_reward_has_a_weight_too(env):
    functions = [{"function": "environment", "weight": 0.0}, {"function": "exact"}]
    (trajectory,) = play(functions, saying("The end."), env=env)
    assert (trajectory.reward, trajectory.reward_parts) == (1.0, {"environment": 0.0, "exact": 1.0})


def test_none_means_that_a_reward_does_not_apply_and_a_bound_decides_success():
    functions = [choice("seldom", success=1.0)]
    (applies,) = play(functions, saying("end"))
    (other,) = play(functions, saying("go", "go", "go"))
    assert (applies.success, applies.reward_parts) == (True, {"environment": 1.0, "seldom": 1.0})
    assert (other.success, other.reward_parts, other.reward) == (False, {}, 0.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "the reward raises .*raised KeyError: 'gold'"),
        ("wrong", "the reward wrong .*gave nan; return a finite number, or None where it does not apply"),
        ("words", "the reward words .*gave 'many'; return a finite number"),
    ],
)
def test_a_function_that_fails_ends_its_own_episode_with_one_message(name, message):
    trajectories = play([choice(name)], ConstantAgent(text="end"), count=2)
    assert [each.stop for each in trajectories] == [StopReason.ENV_ERROR] * 2
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(trajectories[0].info["error"])
    assert trajectories[0].info["culprit"] == "env"
    assert name == "wrong" or name == "words" or "KeyError" in trajectories[0].info["traceback"]


def test_an_episode_that_a_limit_cuts_is_paid_too():
    (by_turns,) = play([choice("short")], saying("go", "go"), limits=Limits(max_turns=2))
    assert by_turns.stop is StopReason.MAX_TURNS
    assert [turn.reward for turn in by_turns.turns] == [0.0, -4.0]
    assert by_turns.turns[1].reward_parts == {"short": -4.0}
    long = FunctionAgent(lambda view: Action(text="x" * 9, stop=StopReason.MAX_TOKENS) if view.turn else "go")
    (by_tokens,) = play([choice("short"), choice("later", per="turn")], long)
    assert by_tokens.stop is StopReason.MAX_TOKENS
    assert by_tokens.reward_parts == {"short": -11.0, "later": 11.0}
    assert "pays_cuts" not in by_tokens.info


def test_half_an_answer_is_never_a_success_and_a_function_may_know():
    half = FunctionAgent(lambda view: Action(text="end", stop=StopReason.MAX_TOKENS))
    for options in ({"success": 1}, {}):
        (whole,) = play([choice("told", **options)], saying("end"))
        (cut,) = play([choice("told", **options)], half)
        assert (whole.success, cut.success) == (True, False)
        assert (cut.reward, SEEN[-1]["cut"], SEEN[-2]["cut"]) == (2.0, True, False)
    assert summarize([Group(id="a", trajectories=[cut]), Group(id="b", trajectories=[whole])])["eval/cut"] == 0.5


def test_parts_are_metrics_that_add_up_and_stay_in_the_ledger(tmp_path: Path):
    functions = [choice("short", weight=0.1), choice("seldom")]
    agents = [saying("end"), saying("go", "go", "end"), saying("go", "go", "go")]
    groups = [Group(id=str(n), trajectories=play(functions, agent)) for n, agent in enumerate(agents)]
    metrics = read_rollout(groups, version=0)
    parts = {name: value for name, value in metrics.items() if name.startswith("rollout/reward_")}
    assert parts.keys() == {"rollout/reward_short", "rollout/reward_seldom", "rollout/reward_environment"}
    assert sum(parts.values()) == pytest.approx(metrics["rollout/reward"])
    evaluated = summarize(groups)
    assert evaluated["eval/reward_short"] == pytest.approx(parts["rollout/reward_short"])
    assert metrics["rollout/score_short"] == pytest.approx(10 * parts["rollout/reward_short"])
    write_groups(tmp_path / "step", groups)
    again = read_groups(tmp_path / "step")
    assert [each.trajectories[0].reward_parts for each in again] == [
        each.trajectories[0].reward_parts for each in groups
    ]
    labels = list(evaluation_table({"now": {"step": 1, **evaluated}}).columns[0].cells)
    assert [str(label) for label in labels][:5] == [
        "success",
        "reward",
        *[f"reward {n}" for n in ("environment", "short", "seldom")],
    ]


class Likes:
    """A judge that scores the number of letters of the last answer."""

    def prefer(self, task, first, second):
        return 0.5

    def score(self, trajectories, *, per):
        return [[float(len(each.turns[-1].action))] for each in trajectories]


def test_a_judge_is_one_of_the_parts_if_it_has_a_weight_and_otherwise_takes_the_place_of_all():
    for weight, reward, parts in [
        (0.5, 2.0 + 1.5, {"environment": 1.0, "told": 1.0, "judge": 1.5}),
        (None, 3.0, {"judge": 3.0}),
    ]:
        (trajectory,) = play([choice("told", weight=0.5)], saying("end"))
        Jury(Likes(), gives="reward", weight=weight).judge([Group(id="a", trajectories=[trajectory])])
        assert trajectory.reward == reward
        assert trajectory.reward_parts == parts
        metrics = read_rollout([Group(id="a", trajectories=[trajectory])], version=0)
        assert metrics["rollout/env_reward"] == 2.0
        assert "rollout/reward_env" not in metrics


def test_a_weight_without_a_reward_is_refused():
    judge = {"kind": f"{HERE}Likes", "weight": 0.5}
    with pytest.raises(ValueError, match=r"judge\.weight is for a judge that gives a reward; set judge\.gives=reward"):
        load_recipe(None, {"judge": judge})
    with pytest.raises(ValueError, match=r"judge\.weight is 'x'; it must be a finite number"):
        load_recipe(None, {"judge": {**judge, "gives": "reward", "weight": "x"}})


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        (["exakt"], "env.rewards: unknown reward 'exakt'; did you mean exact"),
        (["os:system"], "env.rewards: os:system is not a function"),
        (["nowhere.py:right"], "there is no file nowhere.py, which nowhere.py:right names"),
        ([f"{HERE}asks"], r"asks asks for 'secret'; a reward may ask for task, messages, answer"),
        (["exact", {"function": "f1", "name": "exact"}], "two rewards are named 'exact'; give one of them another"),
        ([{"function": "exact", "name": "judge"}], "a reward is named 'judge', which is taken"),
        ([{"function": "exact", "weight": math.nan}], "env.rewards.0.weight"),
        ([{"function": "exact", "per": "step"}], "env.rewards.0.per"),
        ([{"function": "exact", "wait": 1}], "env.rewards.0.wait is an unknown key"),
    ],
)
def test_mistakes_in_a_recipe_are_named_with_their_fix(rewards, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(None, {"env": {"id": f"{HERE}Echo", "rewards": rewards}})


def test_a_misspelt_function_of_a_file_is_corrected(tmp_path):
    (tmp_path / "mine.py").write_text("def right(answer):\n    return 1.0\n")
    with pytest.raises(ValueError, match=r"mine\.py has no rihgt; did you mean .*mine\.py:right\?"):
        load_recipe(None, {"env": {"id": f"{HERE}Echo", "rewards": [f"{tmp_path / 'mine.py'}:rihgt"]}})


def test_a_game_of_several_seats_pays_itself():
    with pytest.raises(ValueError, match="rewards are for one agent, and this game has the seats white, black"):
        Rewards(Two(), functions=[{"function": "exact"}])


def test_rewards_named_in_a_recipe_are_trusted_like_other_code():
    named = [{"function": "evil.py:reward"}, "other.py:reward", "exact"]
    assert outside_names({"env": {"id": "tasks/own", "rewards": named}}) == ["evil.py:reward", "other.py:reward"]


ROWS = [{"question": f"say {n}", "answer": str(n)} for n in range(30)]


def test_own_tasks_need_no_environment_and_each_held_out_row_is_played_once():
    env = {"id": "tasks/own", "kwargs": {"tasks": ROWS, "held_out": 0.3}, "rewards": ["exact", "number"]}
    recipe = load_recipe(None, {"env": env, "eval": {"episodes": 5}})
    every = load_recipe(None, {"env": env, "eval": {"episodes": 500, "tries": 2}})
    held_out = [spec.task["answer"] for spec in play_specs(every)]
    assert len(set(map(repr, held_out))) * 2 == len(held_out)
    assert len(play_specs(recipe)) == 5
    source = recipe.env.source(recipe.env.held_out)
    report = check_env(source.env, kwargs=source.kwargs, wrappers=source.wrappers, seeds=2)
    assert report.ok, str(report)
    built: Any = EnvSource(env=source.env, kwargs=source.kwargs, wrappers=source.wrappers).build()
    question, _ = built.reset(seed=0, task=ROWS[4])
    assert question == "say 4"
    assert built.oracle() == "4"
    assert built.step("\\boxed{4}")[1] == 2.0


def test_a_prompt_with_fields_says_what_a_row_lacks():
    env = {"id": "tasks/own", "kwargs": {"tasks": [{"text": "a"}, {"text": "b"}], "prompt": "Translate: {text}"}}
    env["rewards"] = ["exact"]
    built: Any = load_recipe(None, {"env": env}).env.source().build()
    assert built.reset(seed=0)[0] in ("Translate: a", "Translate: b")
    for prompt, message in [("{word}", "the prompt shows {word}, which a task does not have"), (None, "no prompt or")]:
        with pytest.raises(ValueError, match=message):
            EnvSource(env="tasks/own", kwargs={**env["kwargs"], "prompt": prompt}).build()
