"""What the ops must give, by plain loops over Trajectory and Turn objects: layout, segments, credit, rewards.

Nothing here knows how batches are packed or how the ops work; numbers are lists of floats, one entry per token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.types import Group

Numbers = Sequence[float]


@dataclass(kw_only=True)
class Step:
    """One turn: the rows of its sampled tokens, and what it is compared with."""

    rows: list[int]
    sequence: int
    index: int
    state: tuple[int, str] | None


@dataclass(kw_only=True)
class Episode:
    """One trajectory; `beyond` is the value of what follows it."""

    group: int
    beyond: float
    steps: list[Step] = field(default_factory=list[Step])

    @property
    def acted(self) -> list[Step]:
        """The turns in which anything was sampled."""
        return [step for step in self.steps if step.rows]

    @property
    def rows(self) -> list[int]:
        """All sampled tokens in order."""
        return [row for step in self.steps for row in step.rows]


@dataclass(kw_only=True)
class Layout:
    """Where everything lies when trajectories are written one after the other, padding-free."""

    episodes: list[Episode]
    tokens: int
    rewards: list[float]

    @property
    def steps(self) -> list[Step]:
        return [step for episode in self.episodes for step in episode.steps]

    def units(self, level: str) -> list[list[int]]:
        """Rows that share one number at this level: tokens, turns, sequences or trajectories."""
        if level == "token":
            return [[row] for step in self.steps for row in step.rows]
        if level == "turn":
            return [step.rows for step in self.steps if step.rows]
        if level == "trajectory":
            return [episode.rows for episode in self.episodes if episode.rows]
        by_sequence: dict[int, list[int]] = {}
        for step in self.steps:
            by_sequence.setdefault(step.sequence, []).extend(step.rows)
        return [rows for rows in by_sequence.values() if rows]


def layout(groups: Sequence[Group]) -> Layout:
    """Walk the groups and number their tokens."""
    made = Layout(episodes=[], tokens=0, rewards=[])
    sequence = -1
    for number, group in enumerate(groups):
        for trajectory in group.trajectories:
            episode = Episode(group=number, beyond=(trajectory.bootstrap or 0.0) if trajectory.truncated else 0.0)
            made.episodes.append(episode)
            sequence += 0 if trajectory.turns else 1
            for index, turn in enumerate(trajectory.turns):
                sequence += 1 if index == 0 or turn.restarts else 0
                start = made.tokens + len(turn.prompt_ids)
                made.tokens = start + len(turn.sampled_ids)
                made.rewards += [0.0] * (made.tokens - len(made.rewards))
                state = None if turn.state_key is None else (number, turn.state_key)
                rows = list(range(start, made.tokens))
                episode.steps.append(Step(rows=rows, sequence=sequence, index=index, state=state))
                if episode.rows:
                    made.rewards[episode.rows[-1]] += turn.reward
            made.tokens += len(trajectory.final_ids)
            made.rewards += [0.0] * (made.tokens - len(made.rewards))
    return made


def segment_values(values: Numbers, segment: Sequence[int], count: int) -> list[list[float]]:
    """The values of each segment."""
    return [[value for value, owner in zip(values, segment, strict=True) if owner == row] for row in range(count)]


def mean(values: Numbers) -> float:
    """Arithmetic mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def population_std(values: Numbers) -> float:
    """Square root of the mean squared deviation."""
    return math.sqrt(mean([(value - mean(values)) ** 2 for value in values]))


def sample_std(values: Numbers) -> float:
    """The same with n − 1; 1 for a single value, which leaves it as it is."""
    if len(values) < 2:
        return 1.0
    return math.sqrt(sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1))


def split_gae(
    made: Layout,
    reward: Numbers,
    value: Numbers,
    *,
    inside: tuple[float, float],
    between: tuple[float, float],
) -> list[float]:
    """Backward token GAE; `(γ, λ)` is `inside` a turn, or `between` after a turn's last token."""
    advantage = [0.0] * made.tokens
    for episode in made.episodes:
        carried, value_next = 0.0, episode.beyond
        for step in reversed(episode.acted):
            for row in reversed(step.rows):
                gamma, lam = between if row == step.rows[-1] else inside
                carried = reward[row] + gamma * value_next - value[row] + gamma * lam * carried
                advantage[row], value_next = carried, value[row]
    return advantage


def token_gae(made: Layout, reward: Numbers, value: Numbers, *, gamma: float, lam: float) -> list[float]:
    """The flat case: the same pair everywhere."""
    return split_gae(made, reward, value, inside=(gamma, lam), between=(gamma, lam))


def turn_gae(made: Layout, reward: Numbers, value: Numbers, *, gamma: float, lam: float) -> list[float]:
    """GAE over turns with the value at each turn's first token, shared by the turn's tokens."""
    advantage = [0.0] * made.tokens
    for episode in made.episodes:
        carried, value_next = 0.0, episode.beyond
        for step in reversed(episode.acted):
            state_value = value[step.rows[0]]
            carried = sum(reward[row] for row in step.rows) + gamma * value_next - state_value + gamma * lam * carried
            value_next = state_value
            for row in step.rows:
                advantage[row] = carried
    return advantage


def bilevel_gae(
    made: Layout, reward: Numbers, value: Numbers, *, gamma_turn: float, gamma_token: float, lam: float
) -> list[float]:
    """GAE over turn ends; then, in each turn, token GAE towards `A_k + V(e_k)` as the reward of its last token."""
    advantage = [0.0] * made.tokens
    for episode in made.episodes:
        high, end_value_next = 0.0, episode.beyond
        for step in reversed(episode.acted):
            end = step.rows[-1]
            turn_reward = sum(reward[row] for row in step.rows)
            high = turn_reward + gamma_turn * end_value_next - value[end] + gamma_turn * lam * high
            end_value_next = value[end]
            carried, value_next = 0.0, 0.0
            for row in reversed(step.rows):
                goal = high + value[end] if row == end else 0.0
                carried = goal + gamma_token * value_next - value[row] + gamma_token * lam * carried
                advantage[row], value_next = carried, value[row]
    return advantage


def token_returns(made: Layout, reward: Numbers, *, gamma: float) -> list[float]:
    """Discounted reward to come, one discount per sampled token."""
    returns = [0.0] * made.tokens
    for episode in made.episodes:
        carried = episode.beyond
        for row in reversed(episode.rows):
            carried = reward[row] + gamma * carried
            returns[row] = carried
    return returns


def turn_returns(made: Layout, reward: Numbers, *, gamma: float) -> list[float]:
    """Discounted reward to come, one discount per turn."""
    returns = [0.0] * made.tokens
    for episode in made.episodes:
        carried = episode.beyond
        for step in reversed(episode.acted):
            carried = sum(reward[row] for row in step.rows) + gamma * carried
            for row in step.rows:
                returns[row] = carried
    return returns


def _group_returns(made: Layout, reward: Numbers, group: int) -> list[float]:
    return [sum(reward[row] for row in episode.rows) for episode in made.episodes if episode.group == group]


def group_mean(made: Layout, reward: Numbers) -> list[float]:
    """R_i − mean over the group."""
    advantage = [0.0] * made.tokens
    for episode in made.episodes:
        own = sum(reward[row] for row in episode.rows)
        for row in episode.rows:
            advantage[row] = own - mean(_group_returns(made, reward, episode.group))
    return advantage


def leave_one_out(made: Layout, reward: Numbers) -> list[float]:
    """R_i − mean over the others of the group; 0 when there are none."""
    advantage = [0.0] * made.tokens
    for episode in made.episodes:
        own = sum(reward[row] for row in episode.rows)
        everyone = _group_returns(made, reward, episode.group)
        others = (sum(everyone) - own) / (len(everyone) - 1) if len(everyone) > 1 else own
        for row in episode.rows:
            advantage[row] = own - others
    return advantage


def group_std(made: Layout, reward: Numbers, advantage: Numbers, *, eps: float) -> list[float]:
    """Divide by the sample std of the group's returns, which is 1 for a group of one."""
    scaled = [0.0] * made.tokens
    for episode in made.episodes:
        divisor = sample_std(_group_returns(made, reward, episode.group)) + eps
        for row in episode.rows:
            scaled[row] = advantage[row] / divisor
    return scaled


def anchor_state(
    made: Layout, reward: Numbers, *, omega: float, gamma: float, std: bool, eps: float = 1e-6
) -> list[float]:
    """Comparison of episodes in a group plus ω times the comparison of turns from the same state."""
    episode_part = group_mean(made, reward)
    if std:
        episode_part = group_std(made, reward, episode_part, eps=eps)
    returns = turn_returns(made, reward, gamma=gamma)
    combined = list(episode_part)
    acted = [step for step in made.steps if step.rows]
    for step in acted:
        same = [returns[other.rows[0]] for other in acted if other.state == step.state]
        if step.state is None or len(same) < 2:
            continue
        part = (returns[step.rows[0]] - mean(same)) / (sample_std(same) + eps if std else 1.0)
        for row in step.rows:
            combined[row] += omega * part
    return combined


def whiten_tokens(made: Layout, advantage: Numbers, *, eps: float) -> list[float]:
    """(A − mean) / (population std + ε) over all sampled tokens."""
    sampled = [row for episode in made.episodes for row in episode.rows]
    centre, spread = mean([advantage[row] for row in sampled]), population_std([advantage[row] for row in sampled])
    return [(advantage[row] - centre) / (spread + eps) if row in sampled else 0.0 for row in range(made.tokens)]


def whiten_turns(made: Layout, advantage: Numbers, *, eps: float) -> list[float]:
    """The same over turns, each counted once."""
    acted = [step for step in made.steps if step.rows]
    one_each = [advantage[step.rows[0]] for step in acted]
    scaled = [0.0] * made.tokens
    for step in acted:
        for row in step.rows:
            scaled[row] = (advantage[row] - mean(one_each)) / (population_std(one_each) + eps)
    return scaled


def token_kl(made: Layout, reward: Numbers, old: Numbers, reference: Numbers, *, coef: float) -> list[float]:
    """r_t − coef · (log π_old − log π_ref) on sampled tokens."""
    changed = list(reward)
    for episode in made.episodes:
        for row in episode.rows:
            changed[row] -= coef * (old[row] - reference[row])
    return changed


def overlong(made: Layout, reward: Numbers, *, limit: int, margin: int) -> list[float]:
    """DAPO's soft punishment on the last sampled token, by the number of tokens that the trajectory sampled."""
    changed = list(reward)
    for episode in made.episodes:
        excess = (len(episode.rows) - (limit - margin)) / margin
        if episode.rows:
            changed[episode.rows[-1]] -= min(max(excess, 0.0), 1.0)
    return changed
