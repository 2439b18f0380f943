"""Parts that only studies need: scales that are kept and replayed, cuts that count as losses, experts who slip."""

import json
import re

import torch

from tests.ops.batches import loss_of
from turnwise.algorithm import make_scale, preset
from turnwise.batch import Scores
from turnwise.recipe.schema import EnvChoice
from turnwise.reproduce.replayed_scales import RecordedScale, ReplayedScale
from turnwise.reproduce.slips import write_slips


def observed(scale, norm: float) -> float:
    coefficient_T = torch.tensor([norm])
    scale.observe(loss_of(bias=torch.ones(()), bias_T=coefficient_T), Scores(logprob_T=torch.zeros(1)))
    return scale.finish().value


def test_a_recorded_scale_scales_as_the_plain_one_and_keeps_every_factor():
    plain = make_scale(preset("st-ppo"))
    kind = "turnwise.reproduce.replayed_scales:RecordedScale"
    recorded = make_scale(preset("st-ppo").override({"scale": {"kind": kind}}))
    assert isinstance(recorded, RecordedScale)
    values = [observed(recorded, norm) for norm in (3.0, 1.0, 9.0)]
    assert values == [observed(plain, norm) for norm in (3.0, 1.0, 9.0)]
    assert recorded.state_dict()["factors"] == values
    again = RecordedScale()
    again.load_state_dict(recorded.state_dict())
    assert observed(again, 2.0) == observed(recorded, 2.0)
    assert again.state_dict() == recorded.state_dict()


def test_a_replayed_scale_follows_its_list_whatever_happens_and_resumes_in_place():
    scale = ReplayedScale(factors=[0.5, 0.25, 1.0])
    assert [observed(scale, norm) for norm in (100.0, 0.0)] == [0.5, 0.25]
    again = ReplayedScale(factors=[0.5, 0.25, 1.0])
    again.load_state_dict(scale.state_dict())
    assert [observed(again, 1.0) for _ in range(2)] == [1.0, 0.5]


def test_an_expert_slips_as_often_as_asked_and_failures_are_kept(tmp_path):
    def chats(share):
        write_slips(tmp_path / "a.jsonl", EnvChoice(id="lookup/mixed"), count=300, share=share, seed=1)
        return [json.loads(line)["messages"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]

    sound, noisy = chats(0.0), chats(0.25)
    assert chats(0.25) == noisy
    assert len(sound) == len(noisy) == 300
    assert {len(chat) for chat in sound} <= {4, 6, 8}  # a key may point to itself, or back
    errors = [sum(message["content"] == "error" for message in chat) for chat in noisy]
    assert 0.5 < sum(errors) / 300 < 2.5
    assert all(
        message["role"] == ("user", "assistant")[place % 2] for chat in noisy for place, message in enumerate(chat)
    )


def test_whole_actions_slip_in_any_environment_and_failures_are_kept(tmp_path):
    env = EnvChoice(id="game/guess-number-hard", kwargs={"high": 50, "max_turns": 7})

    def chats(share, seed=1):
        write_slips(tmp_path / "a.jsonl", env, count=200, share=share, seed=seed, slip="action")
        return [json.loads(line)["messages"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]

    def halving(chat):
        """Which of the actions are the expert's own."""
        lowest, highest, own = 1, 50, []
        for observation, action in zip(chat[::2], chat[1::2], strict=True):
            said = re.search(r"is (higher|lower) than (\d+)", observation["content"])
            if said and said[1] == "higher":
                lowest = max(lowest, int(said[2]) + 1)
            elif said:
                highest = min(highest, int(said[2]) - 1)
            own.append(action["content"] == f"\\boxed{{{(lowest + highest) // 2}}}")
        return own

    sound, noisy = chats(0.0), chats(0.5)
    assert chats(0.5) == noisy != chats(0.5, seed=2)
    assert all(all(halving(chat)) and len(chat) <= 2 * 6 for chat in sound)
    own = [one for chat in noisy for one in halving(chat)]
    assert 0.46 < sum(own) / len(own) < 0.58  # one in fifty random guesses is the middle too
    assert sum(len(chat) == 2 * 7 for chat in noisy) > 40  # far from all find the number in time


def test_every_seat_has_its_own_chat_and_only_as_many_are_written_as_asked_for(tmp_path):
    env = EnvChoice(id="memory/both", kwargs={"prompt": "terse", "memories": 4})
    write_slips(tmp_path / "a.jsonl", env, count=7, share=0.0, seed=1, slip="action")
    chats = [json.loads(line)["messages"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [chat[0]["content"].split()[0] for chat in chats] == ["fact", "use"] * 3 + ["fact"]
    assert all([message["role"] for message in chat] == ["user", "assistant"] for chat in chats)
