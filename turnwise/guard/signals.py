"""The guard's signals: each is a small pure function of the rows before and the current row.

A signal must not fire on normal learning. So it requires a move that is large in itself (the limits below), larger
than the metric's own noise (`Reading.above`, `Reading.below`), and, if learning makes the same move, not matched by a
gain in success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, isfinite, log, pi, sqrt

from turnwise.guard.definition import LASTING, RECENT, WINDOW
from turnwise.guard.robust import (
    SPREAD,
    Reading,
    Sighting,
    lasts,
    medians,
    positive,
    rate_error,
    read,
    read_rate,
    series,
    slump,
    step_noise,
    success_moved,
)
from turnwise.runs.rows import Row, number

Detector = Callable[[Sequence[Row], Row], Sighting | None]

REFUSED, FIRST_REFUSED = "guard/refused", "guard/first_refused"
"""Updates of a step whose gradient or loss was not finite, and the number of the first, as the guard records them."""
_CERTAINTY = "own log-perplexity"
_SIGNS = {
    "rollout/success": "success",
    "rollout/tokens per turn": "tokens per turn",
    "loss/reference_kl": "KL to the reference",
    _CERTAINTY: "own perplexity",
}
"""What reward hacking shows in, and what a person calls it."""
FINITE = ("loss/policy", "loss/value", "loss/entropy", "loss/ratio_max", "train/gradient_norm", "rollout/reward")


def non_finite(rows: Sequence[Row], row: Row) -> Sighting | None:
    """NaN or infinity: once, it costs one skipped update; repeatedly, or outside the gradients, the state is broken."""
    if number(row, REFUSED):
        return _refused_updates(rows, row)
    names = [name for name in FINITE if (value := row.get(name)) is not None and not isfinite(value)]
    if not names:
        return None
    text = f"{' and '.join(names)} not finite at step {int(row['step'])}"
    return Sighting(text=text, evidence={"metrics": len(names)}, severe=True)


def _refused_updates(rows: Sequence[Row], row: Row) -> Sighting:
    count, first = row[REFUSED], row[FIRST_REFUSED]
    text = f"non-finite gradients in {count:.0f} updates at step {int(row['step'])}, first in update {first:.0f}"
    severe = len(positive([*rows, row][-LASTING:], REFUSED)) == LASTING
    ending = f", the step {LASTING} in a row" if severe else ""
    return Sighting(text=text + ending, evidence={REFUSED: count, FIRST_REFUSED: first}, severe=severe)


def ratio_tail(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Extreme ratios of new to old policy: a huge one, or so uneven that a few tokens are the whole sample."""
    earlier = rows[:-2]
    peak, size = read(earlier, row, "loss/ratio_max"), read(rows, row, "loss/ratio_ess")
    if peak is not None:
        highest = max(series(earlier, peak.name)[-2 * RECENT :])
        severe = peak.now > max(1000.0, 20 * highest)
        if severe or lasts(rows, peak, max(10.0, 5 * highest)):
            return peak.sighting("largest ratio", severe=severe)
    if size is not None and size.below(0.6 * size.before):
        return size.sighting("effective sample size of the ratios", severe=True)
    return None


def entropy_cliff(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Entropy that leaps (noise takes over; how most runs die) or drops suddenly without a gain in success."""
    reading, values = read(rows, row, "loss/entropy"), series([*rows, row], "loss/entropy")[-WINDOW:]
    if reading is None:
        return None
    crept = replace(reading, before=min(medians(values)))
    if min(values[-LASTING:]) > 1.7 * crept.before + 0.15:
        return crept.sighting("entropy", severe=True)
    fallen = reading.before > 0.05 and reading.below(0.35 * reading.before) and not success_moved(rows, row, up=True)
    leapt = reading.above(1.7 * reading.before + 0.15)
    return reading.sighting("entropy", severe=True) if fallen or leapt else None


def clip_surge(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Clip fraction: the cleanest early sign that updates go further than the data support."""
    reading = read(rows, row, "loss/clip_fraction")
    return reading.sighting("clip fraction") if reading and reading.above(2 * reading.before + 0.1) else None


def clip_bias_surge(rows: Sequence[Row], row: Row) -> Sighting | None:
    """‖C‖, the gradient that clipping hides: noisy, so only a leap far out of its range counts."""
    name = "train/clip_bias" if "train/clip_bias" in row else "loss/clip_bias"
    active = positive(rows, name)
    reading = read(active[:-2], row, name)
    if reading is None:
        return None
    limit = max(5 * reading.before, 2 * max(series(active[:-2], name)))
    return reading.sighting("clipping bias ‖C‖") if lasts(active, reading, limit) else None


def value_explosion(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Value loss: a diverging critic gives meaningless advantages."""
    reading = read(rows, row, "loss/value")
    if reading is None:
        return None
    # A solved task leaves a loss near zero, of which any failure is a multiple: the past says what is large.
    usual = max(reading.before, 0.1 * max(series(rows, reading.name)))
    if not reading.above(10 * usual):
        return None
    return reading.sighting("value loss", severe=reading.now > 100 * usual)


def zero_variance(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Groups whose tries all end alike, without success: there is nothing to compare, so nothing is learned."""
    last = [*rows, row][-LASTING:]
    equal, success = series(last, "rollout/zero_variance"), series(last, "rollout/success")
    if len(equal) < LASTING or min(equal) < 0.95 or (success and max(success) > 0.5):
        return None
    now = equal[-1]
    text = f"{now:.0%} of the groups have equal rewards at step {int(row['step'])}, for {LASTING} steps"
    return Sighting(text=text, evidence={"rollout/zero_variance": now})


def turn_collapse(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Turns per episode that drop without success rising: the agent has stopped using its environment."""
    reading = read(rows, row, "rollout/turns")
    if reading is None or not reading.below(0.6 * reading.before) or success_moved(rows, row, up=True):
        return None
    return reading.sighting("turns per episode")


def length_collapse(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Tokens per turn that halve or triple without success rising: empty answers, or endless text."""
    per_turn = [_with_turn_length(each) for each in rows]
    reading = read(per_turn, _with_turn_length(row), "rollout/tokens per turn")
    if reading is None or success_moved(rows, row, up=True):
        return None
    moved = reading.below(0.5 * reading.before) or reading.above(3 * reading.before)
    return reading.sighting("tokens per turn") if moved else None


def _with_turn_length(row: Row) -> Row:
    tokens, turns = number(row, "rollout/tokens"), number(row, "rollout/turns")
    return {**row, "rollout/tokens per turn": tokens / turns} if tokens is not None and turns else row


def repetition(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Repeated text: a policy caught in a loop fills its turns with the same words."""
    reading = read(rows, row, "rollout/repetition")
    if reading is None or not reading.above(2 * reading.before + 0.15):
        return None
    return reading.sighting("share of repeated text", severe=reading.now > 0.5)


def cut_surge(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Episodes that run into a limit on turns or tokens: they look alike whatever the policy intended."""
    reading = read_rate(rows, row, "rollout/cut")
    if reading is None or not reading.above(reading.before + 0.08, sure=4):
        return None
    return reading.sighting("share of episodes that ran into a limit")


def validity(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Valid turns: a breaking policy forgets the format first."""
    reading = slump(rows, row, "rollout/valid")
    return reading.sighting("share of valid turns", severe=True) if reading else None


def reward_shift(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Success that collapses, or reward that moves without it: a broken policy, or a reversed reward."""
    success, reward = slump(rows, row, "rollout/success"), read(rows, row, "rollout/reward")
    if success is not None:
        return success.sighting("success", severe=True)
    return reward.sighting("reward", severe=True) if reward and _unexplained(rows, row, reward) else None


def _unexplained(rows: Sequence[Row], row: Row, reward: Reading) -> bool:
    size = 0.5 * max(abs(value) for value in series(rows, reward.name)[-RECENT:])
    moved = reward.above(reward.before + size, sure=4) or reward.below(reward.before - size, sure=4)
    return moved and not success_moved(rows, row, up=reward.now > reward.before)


def reward_hacking(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Reward that holds while answers show two of: longer, surer, further from the reference, less successful."""
    # Reward and losses look fine in a policy that has found text which only the reward likes; these monitors move
    # together (PPO-max, 2307.04964), and slowly, so levels are compared with those of the whole history.
    every = [_with_turn_length(_with_certainty(each)) for each in (*rows, row)]
    reward, success = _level(every, "rollout/reward"), _level(every, "rollout/success")
    gained = 0.0 if success is None else _in_errors(success, row)
    if reward is None or reward.now < reward.before or gained > 1:
        return None
    longer, far = _level(every, "rollout/tokens per turn", min), _level(every, "loss/reference_kl", min)
    sure = _level(every, _CERTAINTY, max)
    signs = [
        success if gained < -4 else None,
        longer if longer and longer.above(1.2 * longer.before) else None,
        far if far and far.above(far.before + 0.5) else None,
        sure if sure and sure.below(0.6 * sure.before) else None,
    ]
    seen = [sign for sign in signs if sign is not None]
    # Learning makes a policy surer and leads it away from its reference, but not as far.
    if len(seen) < 2 or (far and seen == [far, sure] and not far.above(far.before + 1)):
        return None
    text = f"reward {reward.now:.3g}, but {', '.join(map(_moved, seen))} at step {reward.step}"
    before = {f"{sign.name} before": sign.before for sign in seen}
    return Sighting(text=text, evidence={sign.name: sign.now for sign in seen} | before)


def _in_errors(share: Reading, row: Row) -> float:
    """How far a share of the episodes has moved, in standard errors of that many episodes."""
    return (share.now - share.before) / rate_error(share.before, row.get("rollout/episodes", 64))


def _moved(sign: Reading) -> str:
    label, spell = _SIGNS[sign.name], exp if sign.name == _CERTAINTY else float
    return f"{label} {spell(sign.now):.3g} ({spell(sign.before):.3g} before)"


def _level(rows: Sequence[Row], name: str, extreme: Callable[[list[float]], float] | None = None) -> Reading | None:
    """The metric's last level against its first, or against the highest or lowest one."""
    values = series(rows, name)
    if number(rows[-1], name) is None or len(values) < 2 * RECENT:
        return None
    levels = medians(values)
    before = levels[0] if extreme is None else extreme(levels)
    spread = step_noise(values[-SPREAD:]) * sqrt(pi / 2 / RECENT)  # a median of so many varies less than one value
    return Reading(name=name, step=int(rows[-1]["step"]), now=levels[-1], before=before, spread=spread)


def _with_certainty(row: Row) -> Row:
    perplexity = number(row, "rollout/perplexity")
    return {**row, _CERTAINTY: log(max(perplexity, 1.0))} if perplexity is not None else row


def gradient_spike(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Gradient norms that stay far out: one spike is clipped and survived, two in three steps are not chance."""
    active = positive(rows, "train/gradient_norm")
    reading = read(active[:-2], row, "train/gradient_norm")
    return reading.sighting("gradient norm") if reading and lasts(active, reading, 8 * reading.before) else None


def faults(rows: Sequence[Row], row: Row) -> Sighting | None:
    """Most episodes fail two steps in a row: the environment is broken, and the rest is not a fair sample."""
    last = series([*rows, row][-2:], "rollout/faults")
    if len(last) < 2 or min(last) <= 0.5:
        return None
    text = f"{last[-1]:.0%} of the episodes failed at step {int(row['step'])}, {last[-2]:.0%} the step before"
    return Sighting(text=text, evidence={"rollout/faults": last[-1]}, severe=True)


SIGNALS: dict[str, Detector] = {
    "non-finite": non_finite,
    "ratio-tail": ratio_tail,
    "entropy-cliff": entropy_cliff,
    "clip-surge": clip_surge,
    "clip-bias-surge": clip_bias_surge,
    "value-explosion": value_explosion,
    "zero-variance": zero_variance,
    "turn-collapse": turn_collapse,
    "length-collapse": length_collapse,
    "repetition": repetition,
    "cut-surge": cut_surge,
    "validity": validity,
    "reward-shift": reward_shift,
    "reward-hacking": reward_hacking,
    "gradient-spike": gradient_spike,
    "faults": faults,
}
