"""Words of a policy's own episodes as text to imitate: what other agents said to it, or what it said itself."""

from __future__ import annotations

from dataclasses import replace

from turnwise.types import Group, Trajectory, Turn


def others_words(group: Group, policy: str) -> Group:
    """The group with the words of other agents as if the policy had said them, and all else as context."""
    heard = [_as_said_by(policy, each) for each in group.trajectories if not each.stop.is_failure]
    return replace(group, trajectories=[each for each in heard if each.turns])


def successes(group: Group, policy: str) -> Group:
    """The trajectories that succeeded and in which the policy spoke, without what the sampler knew of them."""
    good = [each for each in group.trajectories if each.success and not each.stop.is_failure]
    spoke = [each for each in good if any(turn.sampled_ids and turn.policy == policy for turn in each.turns)]
    without = [[replace(turn, logprobs=None, streams={}) for turn in each.turns] for each in spoke]
    return replace(group, trajectories=[replace(each, turns=turns) for each, turns in zip(spoke, without, strict=True)])


def _as_said_by(policy: str, trajectory: Trajectory) -> Trajectory:
    turns, waiting, restarts = list[Turn](), list[int](), False
    for turn in trajectory.turns:
        if turn.restarts:
            waiting, restarts = [], True
        done = 0
        for start, end in turn.heard:
            context = [*waiting, *turn.prompt_ids[done:start]]
            if context or (turns and not restarts):  # nothing comes before the first token of a sequence
                said = turn.prompt_ids[start:end]
                turns.append(Turn(prompt_ids=context, sampled_ids=said, policy=policy, restarts=restarts))
                waiting, done, restarts = [], end, False
        waiting += [*turn.prompt_ids[done:], *turn.sampled_ids]
    return replace(trajectory, turns=turns, final_ids=(), final_streams={})
