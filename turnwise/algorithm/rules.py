"""Which rows are impossible, and which get a warning. Every message names the axis and the fix.

The rules check what parts declare (`ops/facts.py`), never their names. They skip parts that declare nothing, such as
most user-defined parts.
"""

from __future__ import annotations

from collections.abc import Iterator

from turnwise.algorithm.parts import facts, function_of, is_silent
from turnwise.algorithm.row import Algorithm
from turnwise.ops.facts import Fact, Need, Trait, objections
from turnwise.outside import is_unread

_VALUES = frozenset({Need.TOKEN_VALUES, Need.TURN_VALUES})


def resolve(row: Algorithm) -> list[str]:
    """Raise ValueError if the row is impossible; else return its warnings."""
    refusals = [*_of_parts(row, fatal=True), *_credit_refusals(row), *_value_refusals(row), *_loss_refusals(row)]
    refusals += [*_reward_refusals(row), *_sampling_refusals(row)]
    if refusals:
        raise ValueError(f"algorithm {row.name!r}: " + "\n".join(refusals))
    warnings = [*_reward_warnings(row), *_credit_warnings(row), *_gradient_warnings(row), *_staleness_warnings(row)]
    return [*warnings, *_of_parts(row, fatal=False)]


def _of_parts(row: Algorithm, *, fatal: bool) -> Iterator[str]:
    """The parts' own objections to their options."""
    for axis, part in row.parts():
        if not is_unread(part.kind):
            for text in objections(function_of(axis, part.kind), part.options, fatal=fatal):
                yield f"{axis}.{part.kind}: {text}"


def _lacks_advantage(row: Algorithm) -> bool:
    return Trait.NEUTRAL in row.facts("advantage") and Need.ADVANTAGE in row.needs


def _wastes_advantage(row: Algorithm) -> bool:
    """Whether nothing reads the advantage; parts that declare nothing might."""
    readers = [(axis, part) for axis, part in row.parts() if axis in ("surrogate", "weights", "regularizers")]
    unread = Need.ADVANTAGE not in row.needs and not any(is_silent(axis, part) for axis, part in readers)
    return unread and Trait.NEUTRAL not in row.facts("advantage")


def _wastes_critic(row: Algorithm) -> bool:
    """Whether a critic learns, or would have to, for an advantage that nothing reads."""
    return _wastes_advantage(row) and (row.needs_critic or not _VALUES.isdisjoint(row.facts("advantage")))


def _credit_refusals(row: Algorithm) -> Iterator[str]:
    if _lacks_advantage(row):  # what else does not fit may fit the one that is chosen
        yield f"surrogate={row.surrogate.kind} needs an advantage; set advantage to {_fitting_advantage(row)}"
        return
    wasted = _wastes_critic(row)
    if wasted:
        yield f"{_never_read(row)}; set advantage to none"
    if wasted or Trait.NEUTRAL in row.facts("advantage"):
        if Trait.NEUTRAL not in row.facts("normalizer"):
            yield f"normalizer={row.normalizer.kind} has no advantage to normalise; set normalizer to none"
        return
    yield from _normalizer_refusals(row)


def _never_read(row: Algorithm) -> str:
    return f"advantage={row.advantage.kind} is never read by surrogate={row.surrogate.kind}"


def _fitting_advantage(row: Algorithm) -> str:
    by_critic = {"token": "gae", "turn": "turn-gae"}
    without = "group-mean" if Trait.MAKES_GROUPS in row.facts("sampling") else "return-to-go"
    return by_critic.get(row.critic.level, without)


def _normalizer_refusals(row: Algorithm) -> Iterator[str]:
    """An advantage that the normaliser does not fit. The advantage is the larger choice, so the normaliser follows."""
    kind, advantage, normalizer = row.normalizer.kind, row.facts("advantage"), row.facts("normalizer")
    silent = is_silent("advantage", row.advantage)  # then nothing is known about it
    if Need.GROUPS in normalizer - advantage and not silent:
        yield f"normalizer={kind} divides a group comparison, not {row.advantage.kind}; set normalizer to batch-tokens"
    elif Need.GROUPS in advantage | normalizer and Trait.MAKES_GROUPS not in row.facts("sampling"):
        chosen = f"advantage={row.advantage.kind}" if Need.GROUPS in advantage else f"normalizer={kind}"
        yield f"{chosen} compares tries at the same task; set sampling to {{kind: group, size: 8}}"
    if Trait.DIVIDES_BY_SPREAD in advantage & normalizer:
        yield f"normalizer={kind} would divide a second time; set normalizer to none, or advantage.std to false"
    if Need.TURN_ADVANTAGES in normalizer and Trait.SAME_IN_TURN not in advantage and not silent:
        yield (
            f"normalizer={kind} needs one advantage per turn, and {row.advantage.kind} gives one per token; "
            "set normalizer to batch-tokens"
        )


def _reward_refusals(row: Algorithm) -> Iterator[str]:
    controlled = [part.kind for part in row.reward if Need.KL_CONTROL in facts("reward", part)]
    if len(controlled) > 1:
        yield f"reward has {' and '.join(controlled)} with a target each, but there is one coefficient; remove one"


def _reward_warnings(row: Algorithm) -> Iterator[str]:
    for place, part in enumerate(row.reward):
        if place > 0 and Need.REWARD_HISTORY in facts("reward", part):
            yield f"reward={part.kind} compares with returns as they were played; place it before {row.reward[0].kind}"


def _value_refusals(row: Algorithm) -> Iterator[str]:
    chosen, level = row.advantage.kind, row.critic.level
    if _lacks_advantage(row):
        return  # the advantage that is missing may read the critic
    needs = frozenset[Fact]() if _wastes_critic(row) else row.facts("advantage")
    if Need.TOKEN_VALUES in needs and level != "token":
        yield f"advantage={chosen} reads a value for every token; set critic.level to token"
    if Need.TURN_VALUES in needs and level == "none":
        yield f"advantage={chosen} reads a value for every turn; set critic.level to turn"
    if level != "none" and needs.isdisjoint(_VALUES) and not is_silent("advantage", row.advantage):
        yield f"critic.level={level} learns values that no part reads; set critic.level to none"


def _loss_refusals(row: Algorithm) -> Iterator[str]:
    kinds = [part.kind for part in row.regularizers]
    for kind in sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        yield f"regularizers has {kind} {kinds.count(kind)} times; write it once, with the sum of their coef"
    if len(texts := [part.kind for part in row.text_losses]) > 1:
        yield f"regularizers has {' and '.join(texts)}, and a step has one kind of text; remove one"
    if Need.SAMPLER in row.facts("ratio") and Need.SAMPLER in row.facts("mismatch"):
        yield f"ratio.against=mu already corrects for the sampler; set mismatch to none (it is {row.mismatch.kind})"
    clips = Trait.CLIPS in row.facts("surrogate") or is_silent("surrogate", row.surrogate)
    if Need.CLIPPING in row.facts("scale") and not clips:
        yield f"scale={row.scale.kind} needs a surrogate that clips, not {row.surrogate.kind}; set scale to none"


def _sampling_refusals(row: Algorithm) -> Iterator[str]:
    if Need.PREVIOUS_POLICY in row.needs and row.max_lag > 0:
        yield f"extrapolate={row.extrapolate.kind} samples from two policies that change together; set max_lag to 0"
    if Need.PREVIOUS_POLICY in row.needs and Trait.NEUTRAL not in row.facts("routing"):
        yield f"routing={row.routing.kind} replays the experts of one policy, not of a mixture; set routing to free"
    for axis, part in row.parts() if Need.PREVIOUS_POLICY in row.needs else ():
        if not facts(axis, part).isdisjoint({Need.VOCABULARY_MEAN, Need.OLD_KL}):
            yield (
                f"extrapolate={row.extrapolate.kind} samples from a mixture, of which only log-probs are known, and "
                f"{axis}={part.kind} needs more; set extrapolate to none"
            )


def _credit_warnings(row: Algorithm) -> Iterator[str]:
    if _wastes_advantage(row):
        yield f"{_never_read(row)}, so it changes nothing; set advantage to none, or choose another surrogate"
    usual = Algorithm.model_fields["ratio"].default.kind
    if row.ratio.kind != usual and Need.RATIO not in row.needs and not is_silent("surrogate", row.surrogate):
        yield f"ratio={row.ratio.kind} is never read by surrogate={row.surrogate.kind}; set ratio to {usual}"


def _gradient_warnings(row: Algorithm) -> Iterator[str]:
    if Trait.THROUGH_RATIO not in row.facts("surrogate"):
        return
    ratio, advantage = row.facts("ratio"), row.facts("advantage")
    silent = is_silent("advantage", row.advantage)
    fine_in_turn = Trait.PER_TURN in ratio and Trait.SAME_IN_TURN not in advantage and not silent
    fine_in_sequence = Trait.PER_SEQUENCE in ratio and Trait.SAME_IN_SEQUENCE not in advantage and not silent
    if (fine_in_turn or fine_in_sequence) and row.ratio.options.get("gradient") == "flow":
        yield (
            f"advantage={row.advantage.kind} is finer than ratio={row.ratio.kind}: even on-policy the gradient is not "
            f"the plain policy gradient, every token gets the mean advantage of its {row.ratio.kind}"
        )
    high = row.surrogate.options.get("high", 0.0)
    if Trait.PER_SEQUENCE in ratio and high > 0.05:
        yield f"surrogate.high={high} hardly ever binds for a sequence mean; GSPO uses about 4e-4"


def _staleness_warnings(row: Algorithm) -> Iterator[str]:
    if Trait.FIRST_UPDATE_ONLY in row.facts("surrogate") and row.updates_per_rollout > 1:
        yield f"surrogate={row.surrogate.kind} is wrong after the first update; set epochs and minibatches to 1"
    if row.max_lag > 0 and Need.SAMPLER not in row.facts("ratio", "mismatch"):
        yield f"max_lag={row.max_lag} leaves stale turns uncorrected; set mismatch to truncated or ratio.against to mu"
    if Need.OLD_ROUTING in row.needs and row.updates_per_rollout == 1:
        yield f"routing={row.routing.kind} does nothing with one update per rollout; set minibatches above 1"
    if Trait.NEUTRAL not in row.facts("scale") and row.updates_per_rollout == 1 and row.max_lag == 0:
        yield f"scale={row.scale.kind} does nothing with one update per rollout: the policy is still the sampler"
