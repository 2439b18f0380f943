"""A host's refusals follow from what parts declare: one message with every reason and its fix."""

import pytest

from tests.plugins.rows_and_batches import ST_GRPO
from turnwise.algorithm import PRESETS, Need, preset
from turnwise.plugins.hosts import ROW_COUNTS, VARIABLE, HostTrainer, chosen_algorithm

FULL = HostTrainer(name="full", loss=frozenset(Need), credit=frozenset(Need), critic=True, counts_rejected=False)
POOR = HostTrainer(name="poor", loss=frozenset({Need.SAMPLER, Need.TOKEN_COUNT}), credit=None, scales=False)


def refusal(host: HostTrainer, changes: dict[str, object], name: str = "st-grpo") -> str:
    row = (ST_GRPO if name == "st-grpo" else preset(name)).override(changes)
    with pytest.raises(ValueError, match=f"cannot run in {host.name}") as caught:
        host.require(row)
    return str(caught.value)


def test_a_host_that_gives_everything_runs_every_row():
    for name in ("st-ppo", "grpo", "poad", "gigpo", "turn-gae", "minirl"):
        FULL.require(preset(name))


def test_one_message_names_every_reason_and_its_fix():
    text = refusal(POOR, {"weights": "turn-mean", "regularizers": ["entropy"]})
    assert text.startswith("algorithm 'st-grpo' cannot run in poor: ")
    assert "scale=clip-bias changes optimiser steps, and poor hides them; set scale to none" in text
    assert "ratio=turn needs the log-probs of the policy before the first update (old_T), which poor does not" in text
    assert "weights=turn-mean needs the number of turns in the whole optimiser step" in text
    assert "regularizers=entropy needs the entropy" in text
    assert len(text.splitlines()) == 4


def test_a_row_that_fits_is_not_refused():
    row = ST_GRPO.override({"ratio": {"against": "mu"}, "scale": "none", "weights": "token-mean"})
    POOR.require(row)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"regularizers": [{"kind": "kl", "estimator": "full"}]}, "the full KL from the policy to the reference"),
        (
            {"scale": {"kind": "clip-bias", "estimator": "exact"}},
            "scale=clip-bias needs the whole gradient of every weight",
        ),
        ({"scale": {"kind": "clip-bias", "estimator": "logit"}}, "scale=clip-bias needs the collision probability"),
        ({"scale": {"kind": "clip-bias", "apply": "gradient"}}, "set scale.apply to step"),
        ({"mismatch": "veto"}, "mismatch=veto rejects tokens, and verl-like counts them all the same"),
        ({"advantage": "anchor-state", "normalizer": "none"}, "advantage=anchor-state needs turns that name the state"),
        ({"reward": ["token-kl"]}, "reward=token-kl needs the log-probs of a reference policy"),
        ({"reward": ["running"]}, "reward=running needs mean and spread of all returns so far"),
        ({"routing": "recorded"}, "routing=recorded needs the experts that the sampler chose"),
        ({"routing": "old"}, "routing=old needs the experts that the policy chose before the first update"),
        ({"regularizers": ["ptx"]}, "regularizers=ptx needs text that the policy did not play"),
    ],
)
def test_a_refusal_follows_from_the_option_that_causes_it(changes: dict[str, object], expected: str):
    host = HostTrainer(name="verl-like", loss=ROW_COUNTS | {Need.OLD, Need.SAMPLER, Need.TOKEN_COUNT})
    host.require(ST_GRPO)
    assert expected in refusal(host, changes)


def test_a_critic_is_refused_where_none_is_trained():
    host = HostTrainer(name="h", loss=frozenset(Need), credit=frozenset(Need))
    assert "critic.level=token: h trains no critic" in refusal(host, {}, "st-ppo")


@pytest.mark.parametrize("name", [name for name in PRESETS if Need.MERIT in preset(name).needs])
def test_losses_on_comparisons_are_refused(name: str):
    host = HostTrainer(name="h", loss=frozenset(Need) - {Need.MERIT, Need.WINS, Need.WHOLE_GROUPS})
    assert "needs how good each trajectory was" in refusal(host, {}, name)


def test_a_filter_that_chooses_by_merit_is_refused():
    host = HostTrainer(name="h", loss=frozenset(Need))
    text = refusal(host, {"filters": ["errored", {"kind": "best", "n": 2}]})
    assert "filters=best keeps only some members of a group, and h learns from all of them" in text


def test_the_algorithm_is_a_preset_a_file_or_the_variable(tmp_path, monkeypatch):
    file = tmp_path / "row.yaml"
    file.write_text("preset: so-grpo\nscale: none\n")
    assert chosen_algorithm(str(file)).scale.kind == "none"
    monkeypatch.setenv(VARIABLE, "gspo")
    assert chosen_algorithm() == preset("gspo")
    assert chosen_algorithm("ppo") == preset("ppo")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ValueError, match=f"set {VARIABLE} to a preset"):
        chosen_algorithm()
