"""Which rows make no sense, and which deserve a warning. Every message names the axis and the fix."""

from __future__ import annotations

from collections.abc import Iterator

from turnwise.algorithm.row import GROUP_ADVANTAGES, Algorithm

TOKEN_VALUES = frozenset({"gae", "split-gae", "bilevel-gae"})
TURN_VALUES = frozenset({"turn-gae"})
ON_POLICY_ONLY = frozenset({"reinforce"})


def resolve(row: Algorithm) -> list[str]:
    """Raise ValueError if the row is impossible; else return its warnings."""
    refusals = [*_reward_refusals(row), *_credit_refusals(row), *_loss_refusals(row), *_scale_refusals(row)]
    if refusals:
        raise ValueError(f"algorithm {row.name!r}: " + "\n".join(refusals))
    return [*_gradient_warnings(row), *_staleness_warnings(row), *_scale_warnings(row)]


def _reward_refusals(row: Algorithm) -> Iterator[str]:
    for part in row.reward:
        if part.kind == "overlong" and part.options["margin"] > part.options["limit"]:
            limit, margin = part.options["limit"], part.options["margin"]
            yield f"reward.overlong: margin={margin} above limit={limit} punishes every length; set margin below limit"


def _credit_refusals(row: Algorithm) -> Iterator[str]:
    advantage, level = row.advantage.kind, row.critic.level
    outside = ":" in advantage  # a part from elsewhere knows best
    if row.needs_groups and row.sampling.kind != "group":
        axis = "advantage" if advantage in GROUP_ADVANTAGES else "normalizer"
        chosen = advantage if axis == "advantage" else row.normalizer.kind
        yield f"{axis}={chosen} compares tries at the same task; set sampling to {{kind: group, size: 8}}"
    if row.normalizer.kind == "group-std" and advantage not in GROUP_ADVANTAGES and not outside:
        yield f"normalizer=group-std divides a group comparison, not {advantage}; set advantage to group-mean"
    if row.normalizer.kind == "group-std" and advantage == "anchor-state" and row.advantage.options["std"]:
        yield "normalizer=group-std would divide a second time; set it to none or advantage.std to false"
    if advantage in TOKEN_VALUES and level != "token":
        yield f"advantage={advantage} reads a value for every token; set critic.level to token"
    if advantage in TURN_VALUES and level == "none":
        yield f"advantage={advantage} reads a value for every turn; set critic.level to turn"
    if level != "none" and advantage not in TOKEN_VALUES | TURN_VALUES and not outside:
        yield f"critic.level={level} learns values that advantage={advantage} never reads; set critic.level to none"
    if row.normalizer.kind == "batch-turns" and not _constant_in_turn(row):
        yield f"normalizer=batch-turns needs one advantage per turn; {advantage} gives one per token: use batch-tokens"


def _loss_refusals(row: Algorithm) -> Iterator[str]:
    kinds = [part.kind for part in row.regularizers]
    for kind in sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        yield f"regularizers has {kind} {kinds.count(kind)} times; write it once, with the sum of their coef"
    if row.ratio.options.get("against") == "mu" and row.mismatch.kind != "none":
        yield f"ratio.against=mu already corrects for the sampler; set mismatch to none (it is {row.mismatch.kind})"
    if row.surrogate.kind == "ppo-clip" and row.surrogate.options["dual"] is not None:
        high, dual = row.surrogate.options["high"], row.surrogate.options["dual"]
        if dual <= 1 + high:
            yield f"surrogate.dual={dual} must lie above 1 + high = {1 + high}; 3 is usual"


def _scale_refusals(row: Algorithm) -> Iterator[str]:
    from turnwise.ops.surrogates import CLIPPING, SURROGATES  # here, because it imports torch

    if row.scale.kind == "clip-bias" and row.surrogate.kind in SURROGATES.keys() - CLIPPING:
        yield f"scale=clip-bias needs a surrogate that clips, not {row.surrogate.kind}; set scale to none"


def _gradient_warnings(row: Algorithm) -> Iterator[str]:
    pooled = row.ratio.kind != "token" and row.ratio.options["gradient"] == "flow"
    if row.surrogate.kind == "ppo-clip" and pooled and not _constant_in(row, row.ratio.kind):
        yield (
            f"advantage={row.advantage.kind} is finer than ratio={row.ratio.kind}: even on-policy the gradient is not "
            f"the plain policy gradient, every token gets the mean advantage of its {row.ratio.kind}"
        )
    if row.ratio.kind == "sequence" and row.surrogate.kind == "ppo-clip" and row.surrogate.options["high"] > 0.05:
        high = row.surrogate.options["high"]
        yield f"surrogate.high={high} hardly ever binds for a sequence mean; GSPO uses about 4e-4"
    if row.ratio.options.get("pooling") == "sum":
        yield "ratio.pooling=sum multiplies token ratios, so the clip binds after a few tokens; mean is usual"


def _staleness_warnings(row: Algorithm) -> Iterator[str]:
    if row.surrogate.kind in ON_POLICY_ONLY and row.updates_per_rollout > 1:
        yield f"surrogate={row.surrogate.kind} is wrong after the first update; set epochs and minibatches to 1"
    if row.max_lag > 0 and not row.needs_sampler_logprobs:
        yield f"max_lag={row.max_lag} leaves stale turns uncorrected; set mismatch to truncated or ratio.against to mu"
    if row.scale.kind != "none" and row.updates_per_rollout == 1 and row.max_lag == 0:
        yield f"scale={row.scale.kind} does nothing with one update per rollout: the policy is still the sampler"


def _scale_warnings(row: Algorithm) -> Iterator[str]:
    if row.scale.options.get("apply") == "gradient":
        yield "scale.apply=gradient: Adam divides the factor out again; near-inert or harmful in our pilot, step worked"
    if row.scale.options.get("form") == "paper":
        yield "scale.form=paper amplifies steps while the norm of the clipping bias is below 1; safe has a floor"


def _constant_in_turn(row: Algorithm) -> bool:
    outside = ":" in row.advantage.kind  # a part from elsewhere knows best
    turn_level = row.advantage.options.get("level") == "turn"
    return row.advantage.kind in GROUP_ADVANTAGES | TURN_VALUES or turn_level or outside


def _constant_in(row: Algorithm, level: str) -> bool:
    """Whether all tokens of a turn or sequence get the same advantage."""
    if level == "turn":
        return _constant_in_turn(row)
    return row.advantage.kind in GROUP_ADVANTAGES - {"anchor-state"}
