"""Dialogues with a person who is upset: the rules of their feeling, their silence, their log."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from turnwise.envs.feelings.feeling_acts import WORTH, Act, Hope, serving_acts
from turnwise.envs.feelings.feeling_brief import ACT_WORDS, HINT_WORDS, MOOD_WORDS, Brief
from turnwise.envs.feelings.feeling_english import AGAIN, HINTS, MOODS, English
from turnwise.envs.feelings.feeling_profiles import LEAKS, Profile, draw_profile, read_profiles
from turnwise.envs.feelings.feeling_stories import STORIES
from turnwise.envs.feelings.feeling_talk import SAYINGS, Talk
from turnwise.envs.feelings.feeling_user import MANNERS, Manner, SimulatedUser, differences, level_of
from turnwise.envs.registry import make

DATA = Path(__file__).parents[4] / "shared" / "data" / "persona"
PLAIN = Profile(name="Ada", traits=(), hope=Hope.ADVICE, story=STORIES[0])
OPEN = Manner(accepts=1.0, discloses=1.0)


def person(hope: Hope = Hope.ADVICE, *traits: str, manner: Manner = OPEN) -> SimulatedUser:
    profile = Profile(name="Ada", traits=traits, hope=hope, story=STORIES[0])
    user = SimulatedUser(profile=profile, manner=manner, language=English(), seed=0)
    user.language.say(user)
    return user


def dialogue(env: Talk, seed: int, reply: Callable[[Talk], str]) -> tuple[list[str], float, dict[str, Any]]:
    said, over, reward, info = [str(env.reset(seed=seed)[0])], False, 0.0, dict[str, Any]()
    while not over:
        observation, reward, over, _, info = env.step(reply(env))
        said.append(observation)
    return said, reward, info


def test_every_point_has_a_reason():
    user = person()
    first = user.react("You could write the report again with a colleague.")
    assert first.justification == (
        "says what they could do: +12; says back what happened: +1; takes up what was told: +2"
    )
    assert (first.change, user.feeling, user.level) == (15, 45, "B")
    again = user.react("You could write the report again with a colleague.")
    assert again.justification.endswith("heard it already: -13; says what it said before: -3")
    assert again.change == -3
    assert user.react("It is no big deal.").change == -10
    assert user.react("").justification == "says nothing: -5"


def test_temper_changes_gains_and_losses_by_quarters():
    assert person(Hope.EMPATHY).react("You must feel hurt.").change == 12
    assert person(Hope.EMPATHY, "suspicious").react("You must feel hurt.").change == 9
    assert person(Hope.EMPATHY, "suspicious", "aloof").react("You must feel hurt.").change == 6
    assert person(Hope.EMPATHY, "angry").react("You could sleep.").change == -7
    assert person(Hope.EMPATHY, "patient").react("You could sleep.").change == -2


def test_a_limit_of_the_change_is_that_of_sage():
    user = person(manner=Manner(accepts=1.0, discloses=1.0, start=40, clip=10))
    assert user.react("You could write the report again.").change == 10
    assert user.react("Who cares? Get over it. That is your own fault.").change == -10


def test_what_is_not_taken_in_is_worth_half():
    closed = person(Hope.EMPATHY, manner=Manner(accepts=0.0, discloses=1.0))
    assert closed.react("You must feel hurt.").change == 6


@pytest.mark.parametrize(
    ("reply", "acts"),
    [
        ("It is not your fault.", {Act.ABSOLVE}),
        ("It's your own fault.", {Act.BLAME}),
        ("Don't blame yourself.", set[Act]()),
        ("You should have asked.", {Act.BLAME}),
        ("You should ask him.", {Act.ADVISE}),
        ("Perhaps she was tired.", {Act.MOTIVE}),
        ("What would you do differently?", {Act.ASK_SELF}),
        ("Everything will be fine, don't worry.", {Act.PLATITUDE}),
        ("Tell me more, I’m listening.", {Act.INVITE, Act.STAY}),
        ("The forest is green.", set[Act]()),
    ],
)
def test_turns_of_phrase_are_heard(reply: str, acts: set[Act]):
    assert set(English().hear(reply, PLAIN).acts) == acts


def test_each_hope_is_served_by_another_act():
    assert len({serving_acts(hope)[0] for hope in Hope}) == len(Hope)
    assert set(WORTH) == set(Hope)
    assert set(ACT_WORDS.values()) == set(Act)


def test_no_line_of_a_person_says_what_they_hope_for():
    """All lines that exist, with each hope that they can meet."""
    told = [line for story in STORIES for line in (story.opening, *(detail.text for detail in story.details))]
    common = [*told, *AGAIN, *(line for lines in MOODS.values() for line in lines), *MOOD_WORDS.values()]
    for hope, pattern in LEAKS.items():
        assert not [line for line in (*HINTS[hope], *HINT_WORDS[hope], *common) if pattern.search(line)]


def of_any_kind(env: Talk) -> str:
    """A good reply, a random one, or words that mean nothing: people get as far as they can, both ways."""
    if (kind := env.rng.random()) < env.user.seed % 4 / 4:
        acts = serving_acts(env.user.profile.hope)[:2]
        detail = env.user.profile.story.details[len(env.user.reactions) % max(env.user.told, 1)].words
        words = [SAYINGS[act].format(detail=env.rng.choice(detail), deed="tried", other="boss") for act in acts]
        return " ".join(words + env.rng.sample(("Yes.", "Oh.", "Right.", "Indeed.", "Dear me.", "Well."), 3))
    return "The forest is green." if kind > 0.9 else env.sample_random_action()


@pytest.mark.parametrize("manner", MANNERS)
def test_ten_thousand_dialogues_do_not_say_it_either(manner: str):
    env, heard, levels = Talk(manner=manner), set[str](), set[str]()
    for seed in range(5000):
        said, _, info = dialogue(env, seed, Talk.oracle if seed % 100 == 0 else of_any_kind)
        hope = env.user.profile.hope
        assert not any(LEAKS[hope].search(line) or str(hope) in line for line in said)
        levels.update(each["level"] for each in info["log"]["reactions"])
        heard.update(said)
    lines = [
        *AGAIN,
        *(line for lines in MOODS.values() for line in lines),
        *(line for lines in HINTS.values() for line in lines),
    ]
    together = "\n".join(heard)
    assert levels == set(MOODS)
    assert [line for line in lines if line not in together] == [], "every line that exists was said"


@pytest.mark.parametrize("language", ["english", "brief"])
def test_a_log_gives_every_score_again_also_after_json(language: str):
    env = Talk(language=language, manner="challenging")
    for seed in range(40):
        _, reward, info = dialogue(env, seed, lambda each: each.sample_random_action())
        log = json.loads(json.dumps(info["log"]))
        assert differences(log, env.language) == []
        assert reward == log["reward"] == max(log["reactions"][-1]["feeling"], 0) / 100
        right = log["reactions"][0]["feeling"]
        log["reactions"][0]["feeling"] += 1
        assert differences(log, env.language) == [f"turn 0: the log says {right + 1}, its replies give {right}"]


def test_a_log_says_which_replies_had_no_thought_and_gives_the_reward_again():
    env = Talk(think=True)
    good, turn = env.oracle, iter(range(100))
    _, reward, info = dialogue(env, 0, lambda _: "You could rest." if next(turn) == 1 else good())
    log = json.loads(json.dumps(info["log"]))
    assert reward == log["reward"] == 0.0
    assert [place for place, each in enumerate(log["reactions"]) if not each["formed"]] == [1]
    assert differences(log, env.language) == []
    log["reactions"][1]["formed"] = True
    assert differences(log, env.language) == ["turn 1: what the agent wrote is malformed and shows 'You could rest.'"]
    log["reactions"][1]["formed"], log["reward"] = False, 0.5
    assert differences(log, env.language) == ["the log says a reward of 0.5, its replies give 0.0"]


def helps_somebody(act: Act) -> bool:
    return any(worth.get(act, 0) > 0 for worth in WORTH.values())


def constants(language: str) -> list[str]:
    """Each act, each two that are no mistakes, each with all details at once, everything, nothing."""
    details = " ".join(dict.fromkeys(word for story in STORIES for detail in story.details for word in detail.words))
    words = [*ACT_WORDS]
    if language == "english":
        words = [SAYINGS[act].format(detail="matter", deed="did it", other="other") for act in ACT_WORDS.values()]
        words.append("So you.")  # nothing but words that do not count as repeated
    good = [word for word, act in zip(words, ACT_WORDS.values(), strict=False) if helps_somebody(act)]
    pairs = [" ".join(pair) for pair in combinations(good, 2)]
    return [*words, *pairs, *(f"{word} {details}" for word in good), " ".join(words), ""]


@pytest.mark.parametrize("language", ["english", "brief"])
@pytest.mark.parametrize("manner", MANNERS)
def test_no_constant_reply_is_worth_half_and_the_expert_more_than_nine_tenths(language: str, manner: str):
    """Said again, words are worth nothing and cost three points: at best one good turn is left."""
    env = Talk(language=language, manner=manner)
    for constant in constants(language):
        rewards = [dialogue(env, seed, lambda _, said=constant: said)[1] for seed in range(24)]
        assert fmean(rewards) < 0.3, constant
        assert max(rewards) < 0.5, constant
    assert fmean(dialogue(env, seed, lambda each: each.oracle())[1] for seed in range(24)) > 0.9


@pytest.mark.parametrize("language", ["english", "brief"])
@pytest.mark.parametrize("hope", Hope)
def test_the_expert_serves_every_hope(language: str, hope: Hope):
    env, rewards = Talk(language=language), list[float]()
    for seed in range(200):
        env.reset(seed=seed)
        if env.user.profile.hope is hope and len(rewards) < 6:
            rewards.append(dialogue(env, seed, lambda each: each.oracle())[1])
    assert fmean(rewards) > 0.9


def test_a_dialogue_ends_relieved_or_lost_or_at_its_limit():
    assert [level_of(feeling) for feeling in (100, 70, 69, 40, 10, 9, -5)] == ["S", "A", "B", "B", "C", "F", "F"]
    env = make("feelings/talk")
    assert isinstance(env, Talk)
    said, reward, info = dialogue(env, 0, lambda _: "Get over it.")
    assert said[-1].endswith("Goodbye.")
    assert info["scores"]["lost"] == 1.0
    assert reward < 0.1
    said, _, info = dialogue(env, 1, lambda _: "The forest is green.")
    assert len(said) == 9 or info["scores"]["lost"]
    with pytest.raises(ValueError, match="call reset"):
        env.step("Hello?")


def test_a_thought_is_never_seen_and_its_absence_costs_everything():
    env = Talk(think=True)
    assert "<think>" in str(env.reset(seed=0)[0])
    _, reward, info = dialogue(env, 0, lambda each: each.oracle())
    assert reward > 0.9
    assert not any("think" in each["reply"] or "hope" in each["reply"] for each in info["log"]["reactions"])
    turn = iter(range(100))
    _, reward, info = dialogue(env, 0, lambda each: each.oracle() if next(turn) else "You could rest.")
    assert reward == 0.0
    assert info["success"] is False
    for bad in (
        "<think></think>Yes.",
        "<think>a</think>",
        "<think>a</think>b<think>c</think>d",
        "a</think>b",
        "<think>a",
    ):
        env.reset(seed=0)
        assert env.step(bad)[4]["valid"] is False


@pytest.mark.parametrize("language", ["english", "brief"])
def test_hostile_replies_get_a_defined_reaction(language: str):
    env = Talk(language=language, think=language == "english")
    for reply in ("x" * 1_000_000, "so " * 300_000, "\x00\x1b[2J\u202e", "<think>" * 5000, "so you " * 100_000):
        env.reset(seed=0)
        _, reward, over, _, info = env.step(reply)
        assert (reward, over) == (0.0, False)
        assert isinstance(info["why"], str)


def test_people_are_drawn_evenly_and_splits_share_nobody():
    rng = random.Random(0)
    seen = {
        split: {(each.name, each.story.topic, each.hope) for each in (draw_profile(rng, split) for _ in range(800))}
        for split in ("train", "validation", "test")
    }
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    hopes = [draw_profile(rng, "train").hope for _ in range(800)]
    assert all(60 < hopes.count(hope) < 140 for hope in Hope)


def test_profiles_of_a_file(tmp_path: Path):
    scene = (
        "# What happened\n- **Cause:** My flat was flooded on Monday night. The landlord laughed at me on the phone.\n"
    )
    scene += (
        "All of my photographs are gone now. I slept in the kitchen for a week.\n## Reactions\nShe hopes for advice."
    )
    line = {"id": "1", "player": "* Name: Mira Novak\n* Age: 3", "scene": scene, "cha_group": ["Angry"]}
    path = tmp_path / "people.jsonl"
    path.write_text(json.dumps({**line, "task": "You want to obtain advice that can genuinely help you"}) + "\n")
    (mira,) = read_profiles(str(path))
    assert (mira.name, mira.hope, mira.traits) == ("Mira Novak", Hope.ADVICE, ("angry",))
    assert mira.story.opening.endswith("flooded on Monday night.")
    assert "photographs" in mira.story.details[1].words
    path.write_text(json.dumps({**line, "task": "You want a cake"}))
    read_profiles.cache_clear()
    with pytest.raises(ValueError, match=r"has none; line 1: task 'You want a cake' is none of the eight hopes"):
        read_profiles(str(path))


def scene_of(*sentences: str, task: str, name: str = "Mira") -> str:
    return json.dumps({"player": f"* Name: {name}", "scene": " ".join(sentences), "task": task, "cha_group": []})


FLOOD = (
    "Mira found her flat flooded on Monday night.",
    "The landlord laughed at her on the phone.",
    "All of her photographs are gone now.",
    "She slept in the kitchen for a whole week.",
)


def test_lines_that_are_no_profile_are_left_out_with_one_warning(tmp_path: Path):
    path = tmp_path / "people.jsonl"
    bad = ("{", "[" * 100_000, "[]", "3", scene_of(FLOOD[0], task="You want advice"))
    path.write_text("\n".join((*bad, scene_of(*FLOOD, task="You want advice"), "")))
    with pytest.warns(
        UserWarning, match=r"profiles: 5 lines of .* are left out; the first is line 1: not a profile"
    ) as warned:
        (mira,) = read_profiles(str(path))
    assert len(warned) == 1
    assert mira.hope is Hope.ADVICE


def test_who_tells_their_story_in_the_third_person_says_so(tmp_path: Path):
    path = tmp_path / "people.jsonl"
    path.write_text(scene_of(*FLOOD, task="You want advice") + "\n" + scene_of(*FLOOD, task="advice", name="Ivo"))
    mira, ivo = read_profiles(str(path))
    assert mira.story.opening.startswith("I am Mira, and it is easier to tell this")
    assert mira.story.opening.endswith(FLOOD[0])
    assert ivo.story.opening == FLOOD[0]


@pytest.mark.parametrize(
    ("hope", "sentence"),
    [
        (Hope.ABSOLVE, "她觉得这种情况并不是她的错。"),
        (Hope.REFLECT, "她想要反思这件事。"),
        (Hope.WEIGH, "她需要一个客观的看法。"),
        (Hope.EMPATHY, "她希望得到一些共鸣。"),
        (Hope.LISTEN, "王晓敏决定与她倾诉。"),
        (Hope.MOTIVES, "她不知道他这么做的原因。"),
        (Hope.ADVICE, "她想听听别人的建议。"),
        (Hope.PRAISE, "她渴望得到他的夸奖。"),
    ],
)
def test_sentences_in_chinese_that_give_a_hope_away_are_found(hope: Hope, sentence: str):
    assert [each for each in Hope if LEAKS[each].search(sentence)] == [hope]
    assert not any(pattern.search("他们在大学期间相爱，感情不错，没有错过什么。") for pattern in LEAKS.values())


@pytest.mark.filterwarnings("ignore:profiles. lines of")
@pytest.mark.parametrize(
    ("file", "count"),
    [
        ("rlver_train_profile_en.jsonl", 8),
        ("rlver_train_profile_zh_first100.jsonl", 99),
        ("rlver_test_profile_zh.jsonl", 100),
    ],
)
def test_the_papers_own_profiles_are_read_and_give_nothing_away(file: str, count: int):
    path = DATA / file
    if not path.exists():
        pytest.skip("needs ../shared/data/persona beside the repository")
    people = read_profiles(str(path))
    assert len(people) == count
    for each in people:
        lines = (each.story.opening, *(detail.text for detail in each.story.details))
        assert not [line for line in lines if LEAKS[each.hope].search(line)]
        assert all(detail.words for detail in each.story.details)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "latin"}, "unknown language 'latin'; choose one of english, brief"),
        ({"manner": "rude"}, "unknown manner 'rude'; choose one of mild, challenging"),
        ({"max_turns": 0}, "max_turns is 0"),
        ({"start": 100}, "start is 100"),
        ({"profiles": "x.jsonl", "language": "brief"}, "leave language=brief out"),
        ({"profiles": "nowhere.jsonl"}, "profiles: nowhere.jsonl cannot be read"),
    ],
)
def test_bad_options_are_one_message(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Talk(**options)


def test_the_brief_language_reads_words_alone():
    heard = Brief().hear("try report nonsense try", PLAIN)
    assert (heard.acts, heard.details) == ((Act.ADVISE,), (0,))
