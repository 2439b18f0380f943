"""`explain` prints the row that will run, with its own numbers."""

import pytest

from turnwise.algorithm import AXES, PRESETS, Part, explain, preset
from turnwise.algorithm.explain import equation


def test_st_ppo_is_explained_with_its_ratio_bounds_and_scale() -> None:
    text = explain(preset("st-ppo").override({"surrogate": {"high": 0.28}, "scale": {"threshold": 0.5}}))
    assert "min( w_k Â_t , clip(w_k, 0.8, 1.28) Â_t )" in text
    assert "the optimiser's step is multiplied by  1 / max(1, ‖C‖/0.5)" in text
    assert "A_t = δ_t + γ λ A_{t+1}" in text
    assert "1 epoch(s) × 4 minibatch(es) = 4 updates per rollout" in text


def test_a_changed_preset_says_so_and_makes_no_claim_for_the_method() -> None:
    text = explain(preset("st-ppo").override({"ratio": "token", "surrogate": {"high": 0.28}}))
    assert text.startswith("st-ppo, changed: ratio, surrogate\n")
    assert "Our reading" not in text
    assert "Our reading" in explain(preset("st-ppo"))


def test_scales_are_written_with_their_numbers_and_those_of_the_users_own_by_their_equation() -> None:
    drift = preset("turn-ppo-drift")
    assert "step is multiplied by  min(1, 0.02 / KL(μ ‖ π))\n" in explain(drift)
    changed = drift.override({"scale": {"measure": "clips", "target": 0.03, "power": 2.0}})
    assert "multiplied by  min(1, 0.03 / clipped share)^2\n" in explain(changed)
    own = {"kind": "turnwise.reproduce.replayed_scales:ReplayedScale", "factors": [0.5, 1.0]}
    assert "multiplied by  factors[n]\n" in explain(drift.override({"scale": own}))


def test_options_that_are_off_are_not_written_down() -> None:
    plain = explain(preset("ppo"))
    assert "dual" not in plain
    assert "V_clip" not in plain
    full = explain(preset("ppo").override({"surrogate": {"dual": 3.0}, "critic": {"loss": {"clip": 0.2}}}))
    assert "dual, A_t < 0:  J_t = max( J_t , dual · A_t )" in full
    assert "V_clip = V_old + clamp(V − V_old, ±clip)" in full


def test_marks_of_doubt_are_explained_where_they_occur() -> None:
    assert "\n[I] inferred from the code base" in explain(preset("so-grpo"))
    assert "[I]" not in explain(preset("grpo"))


def test_penalties_carry_their_coefficient() -> None:
    assert "minus      0.001 · KL_t(π ‖ π_ref)" in explain(preset("grpo"))


def test_the_kl_in_the_reward_is_written_as_it_is_computed() -> None:
    estimate, exact = "KL_t = log π_old(y_t) − log π_ref(y_t)", "KL_t = Σ_v π_old(v) (log π_old(v) − log π_ref(v))"
    cory, ppo_max = explain(preset("cory")), explain(preset("ppo-max"))
    assert exact in cory
    assert estimate not in cory
    assert estimate in ppo_max
    assert exact not in ppo_max
    assert "estimator=full:" not in cory + ppo_max


def test_the_value_loss_carries_its_coefficient() -> None:
    assert "(critic, per token, weighed by 0.5)" in explain(preset("ppo").override({"critic": {"coef": 0.5}}))
    assert "(critic, per token)" in explain(preset("ppo"))


def test_a_ratio_against_the_sampler_is_written_with_mu() -> None:
    assert "w_t = π(y_t) / μ(y_t)" in explain(preset("minirl"))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_can_be_explained(name: str) -> None:
    text = explain(preset(name))
    assert text.startswith(f"{name}: {PRESETS[name][0]}\n")
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize("axis", sorted(set(AXES) - {"filters"}))
def test_every_part_states_its_equation(axis: str) -> None:
    for kind in AXES[axis]:
        assert any(symbol in equation(axis, Part(kind=kind)) for symbol in "=Σ·~/"), f"{axis}.{kind}"
