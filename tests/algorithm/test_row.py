"""Rows: round trips, overrides, refusals that name the axis and the fix, warnings that say why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError

from tests.ops.batches import random_case
from turnwise.algorithm import AXES, PRESETS, Algorithm, Credit, Need, compute_credit, load, preset, resolve
from turnwise.batch import TokenBatch

PROMISED = {
    "ppo",
    "turn-ppo",
    "s-ppo",
    "st-ppo",
    "so-grpo",
    "grpo",
    "dr-grpo",
    "dapo",
    "gspo",
    "cispo",
    "rloo",
    "reinforce",
    "reinforce++",
    "rebn",
    "minirl",
    "poad",
    "ntpo",
    "turn-gae",
    "bilevel-gae",
    "dual-discount",
    "gigpo",
}


def test_every_promised_preset_exists_and_is_possible() -> None:
    assert set(PRESETS) >= PROMISED
    for name in PRESETS:
        resolve(preset(name))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_row_survives_plain_data_and_yaml(name: str) -> None:
    row = preset(name)
    assert Algorithm.of(row.model_dump()) == row
    assert load(row.to_yaml()) == row


def test_a_row_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        preset("ppo").epochs = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_the_paper_s_four_rows_differ_in_ratio_and_scale_only() -> None:
    rows = {name: preset(name).model_dump() for name in ("ppo", "turn-ppo", "s-ppo", "st-ppo")}
    for row in rows.values():
        assert {k: v for k, v in row.items() if k not in ("name", "ratio", "scale")} == {
            k: v for k, v in rows["ppo"].items() if k not in ("name", "ratio", "scale")
        }
    assert [(r["ratio"]["kind"], r["scale"]["kind"]) for r in rows.values()] == [
        ("token", "none"),
        ("turn", "none"),
        ("token", "clip-bias"),
        ("turn", "clip-bias"),
    ]


def test_recipes_start_from_a_preset_and_change_single_options(tmp_path: Path) -> None:
    file = tmp_path / "row.yaml"
    file.write_text("preset: st-ppo\nname: mine\nsurrogate: {high: 0.3}\ncritic: {loss: {clip: 0.5}}\nepochs: 4\n")
    row = load(file)
    assert row.name == "mine"
    assert row.surrogate.options == {"low": 0.2, "high": 0.3, "dual": None}
    assert (row.critic.level, row.critic.loss.options["clip"]) == ("token", 0.5)
    assert row.updates_per_rollout == 16
    assert row.scale == preset("st-ppo").scale


def test_a_new_kind_replaces_the_part_with_its_own_defaults() -> None:
    row = preset("ppo").override({"advantage": {"kind": "turn-gae", "gamma": 0.5}})
    assert row.advantage.options == {"gamma": 0.5, "lam": 1.0}


def double_reward(batch: TokenBatch, *, factor: float = 2.0) -> Credit:
    """A part that lives outside the library."""
    return Credit(advantage_T=torch.where(batch.sampled_T, factor, 0.0).double())


def positional(batch: TokenBatch, factor: float = 2.0) -> Credit:
    """A part whose author forgot the star."""
    return double_reward(batch, factor=factor)


def column(batch: TokenBatch) -> Credit:
    """A part that returns a column."""
    return Credit(advantage_T=batch.reward_T[:, None])


def integers(batch: TokenBatch) -> Credit:
    """A part that counts instead of measuring."""
    return Credit(advantage_T=batch.ids_T)


def bare(batch: TokenBatch) -> torch.Tensor:
    """A part that forgets its Credit."""
    return batch.reward_T


def attached(batch: TokenBatch) -> Credit:
    """A part that leaves its gradient on."""
    return Credit(advantage_T=batch.reward_T.clone().requires_grad_())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("column", r"test_row:column returned shape \(\d+, 1\), the batch has \d+ tokens"),
        ("integers", r"test_row:integers returned torch.int64; .*floating-point"),
        ("bare", r"test_row:bare returned Tensor; return turnwise\.algorithm\.Credit"),
    ],
)
def test_what_a_part_from_outside_returns_is_checked(name: str, message: str) -> None:
    row = Algorithm.of({"advantage": f"tests.algorithm.test_row:{name}"})
    with pytest.raises(ValueError, match=message):
        compute_credit(row, random_case(0).batch)


def test_advantages_from_outside_become_constants() -> None:
    credited = compute_credit(Algorithm.of({"advantage": "tests.algorithm.test_row:attached"}), random_case(0).batch)
    assert credited.advantage_T is not None
    assert not credited.advantage_T.requires_grad


def test_credit_refuses_an_impossible_row() -> None:
    with pytest.raises(ValueError, match="set sampling to"):
        compute_credit(preset("grpo").override({"sampling": "plain"}), random_case(0).batch)


def test_a_group_comparison_from_outside_may_be_divided_by_the_group_s_spread() -> None:
    resolve(preset("grpo").override({"advantage": {"kind": "tests.algorithm.test_row:double_reward"}}))


def test_a_part_from_outside_takes_its_options_from_its_signature() -> None:
    kind = "tests.algorithm.test_row:double_reward"
    row = Algorithm.of({"advantage": {"kind": kind, "factor": 3.0}, "normalizer": "batch-turns"})
    resolve(row)
    case = random_case(0)
    credited = compute_credit(row.override({"normalizer": "none"}), case.batch)
    assert credited.advantage_T is not None
    assert set(credited.advantage_T.tolist()) == {0.0, 3.0}


MISTAKES: list[tuple[Mapping[str, Any], str]] = [
    ({"advantage": "gea"}, r"advantage: unknown kind 'gea'; did you mean 'gae'\?"),
    ({"advantage": {"kind": "gae", "gama": 1}}, r"advantage\.gae: unknown option 'gama'; did you mean 'gamma'\?"),
    ({"advantage": {"kind": "gae", "gamma": 1.5}}, r"advantage\.gae\.gamma: .*less than or equal to 1, got 1\.5"),
    ({"advantage": "gae", "epochs": 0}, "epochs: .*greater than or equal to 1"),
    ({"advantage": "gae", "epochs": True}, "epochs: .*valid integer"),
    ({"advantage": "gae", "sampling": {"kind": "plain", "tries": True}}, r"sampling\.plain\.tries: .*valid integer"),
    ({"advantage": "gae", "ratios": "turn"}, r"unknown axis 'ratios'; did you mean 'ratio'\?"),
    ({"advantage": "gae", "surrogate.high": 0.3}, r"unknown axis 'surrogate.high'; write surrogate: \{high: \.\.\.\}"),
    ({"advantage": "gae", "critic": "none"}, r"critic is a mapping; write critic: \{level: none\}"),
    ({"advantage": "gae", "critic": None}, r"critic is a mapping; write critic: \{level: none\}"),
    ({"advantage": "gae", "scale": None}, "scale is a kind, .*write scale: none"),
    ({"advantage": "gae", "regularizers": "kl"}, r"regularizers is a list; write regularizers: \[kl\]"),
    ({"advantage": "gae", "reward": None}, r"reward is a list; write reward: \[\]"),
    ({"advantage": "no.such.module:part"}, "advantage: cannot load 'no.such.module:part'"),
    ({"advantage": "no.such.module:part"}, "no.such.module is not importable from here; set PYTHONPATH"),
    ({"advantage": "./mine.py:part"}, r"without a path or \.py"),
    ({"advantage": "mine.py:part"}, r"without a path or \.py"),
    ({"advantage": "math:pi"}, "math has no function 'pi'"),
    ({"advantage": "math:tau_of_mine"}, "module 'math' has no attribute 'tau_of_mine'"),
    ({"advantage": "os:system"}, "os has no function 'system' written in Python"),
    ({"advantage": "builtins:exec"}, "builtins has no function 'exec' written in Python"),
    ({"advantage": "gae", "sampling": "subprocess:Popen"}, "subprocess has no function 'Popen'"),
    ({"advantage": "gae", "scale": "threading:Thread"}, "threading has no function 'Thread'"),
    ({"advantage": "subprocess:call"}, r"called with \(batch\) and options; it takes \(\*popenargs, .*every option"),
    (
        {"advantage": "gae", "surrogate": "tests.algorithm.test_row:double_reward"},
        r"called with \(batch, scores, ratios\) and options; it takes \(batch",
    ),
    (
        {"advantage": "tests.algorithm.test_row:positional"},
        r"called with \(batch\); options must be keyword-only: put a \* before 'factor'",
    ),
    ({"advantage": {"gamma": 1}}, "advantage"),
    ({"advantage": "gae", "critic": {"level": "episode"}}, r"critic\.level: .*'none', 'token' or 'turn'"),
    ({"advantage": "gae", "scale": {"kind": "clip-bias", "apply": "adam"}}, r"scale\.clip-bias\.apply"),
    (
        {"advantage": "gae", "surrogate": {"kind": "ppo-clip", "low": -0.1}},
        r"surrogate\.ppo-clip\.low: .*greater than 0",
    ),
]


@pytest.mark.parametrize(("choices", "message"), MISTAKES)
def test_a_mistake_is_one_message_that_names_the_axis(choices: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Algorithm.of(choices)


REFUSALS: list[tuple[str, Mapping[str, Any], str]] = [
    ("grpo", {"sampling": "plain"}, r"advantage=group-mean .* set sampling to \{kind: group"),
    ("ppo", {"normalizer": "group-std"}, "normalizer=group-std divides a group comparison, not gae"),
    ("dpo", {"advantage": "gae"}, "advantage=gae is never read by surrogate=dpo; set advantage to none$"),
    ("ppo", {"surrogate": "nll"}, r"set advantage to none\n.*set normalizer to none\n.*set critic\.level to none$"),
    ("superhf", {"scale": "clip-bias"}, "scale=clip-bias needs a surrogate that clips, not nll"),
    ("dpo", {"advantage": "gae", "critic": {"level": "token"}}, r"set advantage to none\n.*set critic\.level to none$"),
    ("ppo", {"advantage": "none"}, "surrogate=ppo-clip needs an advantage; set advantage to gae$"),
    ("grpo", {"advantage": "none"}, "surrogate=ppo-clip needs an advantage; set advantage to group-mean$"),
    ("gigpo", {"normalizer": "group-std"}, "divide a second time"),
    ("ppo", {"critic": {"level": "none"}}, r"advantage=gae .* set critic\.level to token"),
    ("ppo", {"critic": {"level": "turn"}}, r"advantage=gae .* set critic\.level to token"),
    ("turn-gae", {"critic": {"level": "none"}}, r"advantage=turn-gae .* set critic\.level to turn"),
    ("grpo", {"critic": {"level": "token"}}, r"critic\.level=token .* set critic\.level to none"),
    ("ppo", {"normalizer": "batch-turns"}, "normalizer=batch-turns needs one advantage per turn"),
    ("grpo", {"regularizers": ["kl", {"kind": "kl", "coef": 0.1}]}, "regularizers has kl 2 times; write it once"),
    ("dapo", {"reward": [{"kind": "overlong", "limit": 100, "margin": 200}]}, "margin=200 above limit=100"),
    ("minirl", {"mismatch": "truncated"}, r"ratio\.against=mu .* set mismatch to none"),
    ("ppo", {"surrogate": {"dual": 1.1}}, r"surrogate\.ppo-clip: dual=1\.1 must be above 1 \+ high"),
    ("reinforce", {"scale": "clip-bias"}, "scale=clip-bias needs a surrogate that clips, not reinforce"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSALS)
def test_an_impossible_row_is_refused_with_axis_and_fix(name: str, changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(preset(name).override(changes))


FIX = re.compile(r"set ([\w.]+) to ([\w-]+|\{[^}]*\})")
LISTS = ("filters", "reward", "regularizers", "value_loss")
"""Axes with several parts, and the one that is part of the critic."""
ONE_CHOICE: list[dict[str, Any]] = [
    *({axis: kind} for axis in AXES if axis not in LISTS for kind in AXES[axis]),
    *({"critic": {"level": level}} for level in ("none", "token", "turn")),
]


def refusal_of(row: Algorithm) -> str:
    try:
        resolve(row)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", PRESETS)
def test_the_fixes_of_a_refusal_do_not_undo_each_other(name: str) -> None:
    changed = [preset(name).override(change) for change in ONE_CHOICE]
    refused = [row for row in changed if refusal_of(row)]
    assert refused
    for row in refused:
        mended = row
        for key, value in FIX.findall(refusal_of(row)):
            axis, _, option = key.partition(".")
            choice = yaml.safe_load(value)
            mended = mended.override({axis: {option: choice} if option else choice})
        assert refusal_of(mended) == "", refusal_of(row)


WARNINGS: list[tuple[str, Mapping[str, Any], str]] = [
    ("turn-ppo", {}, "advantage=gae is finer than ratio=turn"),
    ("gspo", {"surrogate": {"high": 0.2}}, "hardly ever binds"),
    ("turn-ppo", {"ratio": {"pooling": "sum"}}, "multiplies token ratios"),
    ("reinforce", {"surrogate": "nll"}, "advantage=return-to-go is never read by surrogate=nll"),
    ("dpo", {"ratio": "turn"}, "ratio=turn is never read by surrogate=dpo; set ratio to token"),
    ("reinforce", {"epochs": 2}, "wrong after the first update"),
    ("ppo", {"max_lag": 2}, "leaves stale turns uncorrected"),
    ("st-ppo", {"minibatches": 1}, "does nothing with one update"),
    ("st-ppo", {"scale": {"apply": "gradient"}}, "Adam divides the factor out"),
    ("st-ppo", {"scale": {"form": "paper"}}, "amplifies"),
]


@pytest.mark.parametrize(("name", "changes", "message"), WARNINGS)
def test_a_doubtful_row_is_warned_about(name: str, changes: Mapping[str, Any], message: str) -> None:
    assert any(message in warning for warning in resolve(preset(name).override(changes)))


def test_unambiguous_rows_have_no_warnings() -> None:
    assert [name for name in PRESETS if resolve(preset(name))] == ["turn-ppo", "st-ppo", "turn-ppo-drift"]


def test_an_unknown_preset_names_the_closest() -> None:
    with pytest.raises(ValueError, match="did you mean 'st-ppo'"):
        preset("stppo")


def test_broken_yaml_is_a_readable_error() -> None:
    with pytest.raises(ValueError, match="not valid YAML"):
        load("{preset: [")
    with pytest.raises(ValueError, match="mapping of axes"):
        load("- ppo")


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'epochs' is given twice \(again in line 3\)"):
        load("preset: ppo\nepochs: 1\nepochs: 4\n")
    with pytest.raises(ValueError, match="'high' is given twice"):
        load("preset: ppo\nsurrogate: {high: 0.2, high: 0.3}\n")


def test_the_name_of_a_file_is_taken_as_the_file_and_named_in_errors(tmp_path: Path) -> None:
    file = tmp_path / "row.yml"
    file.write_text("preset: ppo\nepochs: 3\n")
    assert load(str(file)).epochs == 3
    for broken, message in (("epoch: 3", "unknown axis 'epoch'; did you mean 'epochs'"), ("{preset: [", "valid YAML")):
        file.write_text(broken)
        with pytest.raises(ValueError, match=rf"row\.yml: .*{message}"):
            load(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"row\.yml: this is not a text file"):
        load(file)
    with pytest.raises(ValueError, match=r"nowhere\.yaml: there is no such file"):
        load("nowhere.yaml")


def test_a_row_says_what_it_needs() -> None:
    needs = {
        "ppo": (True, False, False, False),
        "grpo": (False, True, True, False),
        "minirl": (False, False, True, True),
        "reinforce++": (False, True, False, False),
    }
    for name, expected in needs.items():
        row = preset(name)
        found = (row.needs_critic, row.needs_reference, Need.GROUPS in row.needs, Need.SAMPLER in row.needs)
        assert found == expected
    assert Need.COLLISION in preset("st-ppo").override({"scale": {"estimator": "logit"}}).needs
