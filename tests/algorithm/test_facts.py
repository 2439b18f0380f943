"""Parts say what they need; the row's needs are their union; the learner gives exactly these, and asks for no name."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor

import turnwise
from tests.learn.small_learners import SETTINGS, judged, make_groups, make_policy, policy_for, row
from turnwise.algorithm import AXES, PRESETS, Algorithm, Need, Trait, declares, preset, resolve
from turnwise.algorithm.axes import axis_named
from turnwise.learn.learner import Learner
from turnwise.ops.facts import facts_of
from turnwise.ops.regularizers import full_vocabulary_kl
from turnwise.policy.logprobs import Head, token_statistics

PACKAGE = Path(turnwise.__file__).parent
PARTS = "tests.algorithm.leveled_parts"
TABLES = ("ops", "algorithm/presets.py", "sources")
"""Where parts and rows have their names; `sources` has parts of another kind, with a table there."""
ALLOWED = (
    "in AXES[axis]",  # whether there is such a part at all
    "':' in part.kind",  # whether it is one of ours
    "in PRESETS",  # a title for known rows
    "in NOTES",
)


def asks_for_a_name(node: ast.AST) -> bool:
    """Whether a comparison or a lookup decides by what a part or a row is called."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Subscript):
        sides = [node.slice, ast.Constant(value="a table")] if isinstance(node.value, ast.Dict) else []
    elif isinstance(node, ast.Match):
        sides = [node.subject, ast.Constant(value="a case")]
    else:
        return False
    named = any(_is_name_of_part(side) for side in sides)
    constant = any(_holds_text(side) for side in sides)
    return named and constant


def _is_name_of_part(node: ast.AST) -> bool:
    """`part.kind`, `row.scale.kind`, `row.name`, `recipe.algorithm.name`."""
    if not isinstance(node, ast.Attribute):
        return False
    text = ast.unparse(node)
    axes = "|".join((*AXES, "part", "chosen"))
    owner = text.rpartition(".")[0].rpartition(".")[2]
    return (node.attr == "kind" and owner in axes.split("|")) or (node.attr == "name" and owner in ("row", "algorithm"))


def _holds_text(node: ast.AST) -> bool:
    texts = [each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    # A constant in capitals may be a set of names: nobody may keep one outside the tables.
    sets = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id.isupper()]
    return bool(texts or sets) and not isinstance(node, ast.Attribute)


def files() -> list[Path]:
    return [
        file
        for file in sorted(PACKAGE.rglob("*.py"))
        if not str(file.relative_to(PACKAGE)).startswith(TABLES) and "__pycache__" not in file.parts
    ]


@pytest.mark.parametrize(
    "code",
    [
        'if row.scale.kind == "drift": pass',
        'x = part.kind in ("kl", "token-kl")',
        "x = part.kind in REFERENCE_USERS",
        'if recipe.algorithm.name == "imitation": pass',
        'x = {"safe": 1}[row.scale.kind]',
        "match row.surrogate.kind:\n    case 'nll': pass",
    ],
)
def test_the_search_finds_code_that_asks_for_a_name(code: str) -> None:
    assert any(asks_for_a_name(node) for node in ast.walk(ast.parse(code)))


def test_no_code_outside_the_tables_asks_for_the_name_of_a_part_or_a_row() -> None:
    found = [
        f"{file.relative_to(PACKAGE)}: {ast.unparse(node)}"
        for file in files()
        for node in ast.walk(ast.parse(file.read_text()))
        if asks_for_a_name(node)
    ]
    assert [each for each in found if not each.endswith(ALLOWED)] == []


def test_needs_are_the_union_of_what_the_parts_declare() -> None:
    assert Need.REFERENCE in preset("grpo").needs
    assert Need.KL_TO_REFERENCE not in preset("grpo").needs
    full = row("grpo", {"regularizers": [{"kind": "kl", "estimator": "full"}]})
    assert {Need.REFERENCE, Need.KL_TO_REFERENCE, Need.GROUPS, Need.ADVANTAGE, Need.RATIO} <= full.needs
    assert Need.SAMPLER in row("ppo", {"ratio": {"against": "mu"}}).needs
    assert Need.SAMPLER not in preset("ppo").needs


def test_options_decide_which_facts_hold() -> None:
    @declares(Need.OLD)
    @declares(Need.COLLISION, exact=True)
    def part() -> None: ...

    assert facts_of(part, {"exact": True}) == {Need.OLD, Need.COLLISION}
    assert facts_of(part, {"exact": False}) == {Need.OLD}


def test_a_regulariser_of_the_users_own_gets_its_reference() -> None:
    learner = Learner(make_policy(), row("ppo", {"regularizers": [f"{PARTS}:anchored"]}), SETTINGS)
    assert learner.reference is not None
    batch = learner.prepare(make_groups())
    assert batch is not None
    assert batch.ref_T is not None
    report = learner.learn(batch, 1)
    assert report.metrics[f"loss/{PARTS}:anchored_term"] >= 0.0


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_learner_gives_what_is_needed_and_nothing_else(name: str) -> None:
    learner = Learner(policy_for(preset(name)), preset(name), SETTINGS)
    batch = learner.prepare(judged(make_groups()))
    assert batch is not None
    assert (batch.ref_T is not None) == (learner.reference is not None) == (Need.REFERENCE in learner.needs)
    assert (batch.value_T is not None) == preset(name).needs_critic


def test_a_need_that_nobody_provides_is_refused_by_name() -> None:
    unmet = row("ppo", {"regularizers": [f"{PARTS}:routed"]})
    with pytest.raises(ValueError, match=r"regularizers=tests.*:routed needs the experts that the sampler chose"):
        Learner(make_policy(), unmet, SETTINGS)


def test_episodes_without_sampler_log_probs_are_refused_where_a_part_needs_them() -> None:
    groups = make_groups()
    for turn in [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]:
        turn.logprobs = None
    learner = Learner(make_policy(), row("ppo", {"mismatch": "truncated"}), SETTINGS)
    with pytest.raises(ValueError, match=r"mismatch=truncated needs the log-probs of the sampler"):
        learner.prepare(groups)


def test_episodes_without_win_probabilities_are_refused_with_the_fix() -> None:
    groups = judged(make_groups())
    groups[1].trajectories[2].turns[-1].streams = {}
    learner = Learner(make_policy(), row("sppo", {"filters": ["errored"]}), SETTINGS)
    match = (
        r"surrogate=sppo needs win probabilities \(extra_T\['wins'\]\), and trajectory 'task-1/2' has none: set judge"
    )
    with pytest.raises(ValueError, match=match):
        learner.prepare(groups)


def test_a_surrogate_that_needs_an_advantage_is_refused_without_one() -> None:
    with pytest.raises(ValueError, match="surrogate=ppo-clip needs an advantage; set advantage"):
        resolve(Algorithm.of({"surrogate": "ppo-clip"}))
    assert resolve(Algorithm.of({"surrogate": "nll"})) == []


def test_a_row_without_credit_has_none() -> None:
    learner = Learner(make_policy(), Algorithm.of({"surrogate": "nll"}), SETTINGS)
    batch = learner.prepare(make_groups())
    assert batch is not None
    assert (batch.advantage_T, batch.return_T, batch.credited) == (None, None, True)
    assert "loss/advantage_mean" not in learner.learn(batch, 1).metrics


def test_every_axis_says_what_its_parts_are_handed() -> None:
    handed = {axis: axis_named(axis).handed for axis in AXES}
    assert handed["surrogate"] == ["batch", "scores", "ratios"]
    assert handed["advantage"] == handed["mismatch"] == handed["reward"] == ["batch"]
    assert handed["scale"] == handed["sampling"] == []
    for axis, table in AXES.items():
        for kind, part in table.items():
            options = {inspect.Parameter.KEYWORD_ONLY}
            taken = [each for each in inspect.signature(part).parameters.values() if each.kind not in options]
            assert len(taken) == len(handed[axis]), f"{axis}.{kind}"


def test_a_neutral_part_says_so() -> None:
    for axis in ("mismatch", "scale", "normalizer", "advantage", "extrapolate"):
        assert Trait.NEUTRAL in facts_of(AXES[axis]["none"], {})


def test_the_exact_kl_from_the_reference_is_what_it_says_with_its_gradient() -> None:
    hidden_Md, other_Md = torch.randn(2, 5, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    weight_Vd, other_Vd = torch.randn(2, 7, 4, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    target_M = torch.arange(5)

    def reverse(hidden_Md: Tensor, weight_Vd: Tensor) -> Tensor:
        found = token_statistics(
            hidden_Md,
            Head(weight_Vd=weight_Vd),
            target_M,
            temperature=0.7,
            reverse_kl=True,
            reference=(other_Md, Head(weight_Vd=other_Vd)),
            at_once=14,
        )
        assert found.reverse_kl_M is not None
        return found.reverse_kl_M

    logits, other = hidden_Md @ weight_Vd.T / 0.7, other_Md @ other_Vd.T / 0.7
    expected = full_vocabulary_kl(logits, other, direction="from-reference")
    torch.testing.assert_close(reverse(hidden_Md, weight_Vd), expected)
    leaves = (hidden_Md.requires_grad_(), weight_Vd.requires_grad_())
    assert torch.autograd.gradcheck(reverse, leaves)
