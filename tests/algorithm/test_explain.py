"""`explain` prints the row that will run, with its own numbers."""

import pytest

from turnwise.algorithm import AXES, PRESETS, Part, explain, preset
from turnwise.algorithm.explain import equation


def test_st_ppo_is_explained_with_its_ratio_bounds_and_scale() -> None:
    text = explain(preset("st-ppo").override({"surrogate": {"high": 0.28}, "scale": {"threshold": 0.5}}))
    assert "min( w_k Â_t , clip(w_k, 0.8, 1.28) Â_t )" in text
    assert "the optimiser's step is multiplied by  1 / max(1, ‖C_turn‖/0.5)" in text
    assert "A_t = δ_t + γ λ A_{t+1}" in text
    assert "1 epoch(s) × 4 minibatch(es) = 4 updates per rollout" in text
    assert "Our reading" in text


def test_penalties_carry_their_coefficient() -> None:
    assert "minus      0.001 · KL_t(π ‖ π_ref)" in explain(preset("grpo"))


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
