"""Demonstrations: the scripted expert's episodes, in the tokens that a model would have sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from turnwise.envs.faults import close_quietly
from turnwise.policy.rendering import Conversation, Renderer
from turnwise.recipe.schema import EnvChoice
from turnwise.rollout.agents import OracleAgent
from turnwise.rollout.call_branches import Branches, ProgramCall, Renderers
from turnwise.rollout.calling_conversation import tell_template
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.scheduler import RolloutStats, Scheduler
from turnwise.tools.native_calls import call_id, read_native_calls
from turnwise.types import POLICY, Group, Turn
from turnwise.waiting import finish

_SEEDS = range(2**31)
"""Environments of other libraries take no larger seeds."""


def expert_groups(
    env: EnvChoice,
    renderer: Renderer,
    *,
    count: int,
    max_turns: int,
    seed: int,
    only_success: bool = True,
    room: int | None = None,
    note: Callable[[str], None] | None = None,
) -> list[Group]:
    """The expert's episodes, one trajectory to a group, ready for `pack`: sampled ids without log-probs.

    `count` episodes are played, so fewer come out if some fail; `note` receives how many did. One longer than `room`
    tokens is refused.
    """
    require_expert(env, fix="give sft.chats a JSONL file of chats, or leave sft out")
    specs = _specs(env, count=count, seed=seed)
    played, stats = finish(_play(specs, max_turns=max_turns, seed=seed))
    kept = [group for group in played if _is_kept(group, only_success=only_success)]
    if not kept:
        raise ValueError(_nothing_kept(env, stats, max_turns=max_turns))
    if note is not None and len(kept) < len(played):
        note(f"{len(played) - len(kept)} of {len(played)} demonstrations in {env.id} failed and are left out")
    for group in kept:
        spell_turns(group.trajectories[0].turns, renderer)
    longest = max(longest_sequence(group.trajectories[0].turns) for group in kept)
    if room is not None and longest > room:
        raise ValueError(
            f"a demonstration in {env.id} has {longest} tokens but the model has room for {room}; lower "
            "rollout.max_turns, or choose another model"
        )
    return kept


def longest_sequence(turns: Sequence[Turn]) -> int:
    """Tokens of the longest sequence that these turns make: a rewritten history begins another one."""
    longest = length = 0
    for turn in turns:
        length = (0 if turn.restarts else length) + len(turn.prompt_ids) + len(turn.sampled_ids)
        longest = max(longest, length)
    return longest


def spell_turns(turns: Sequence[Turn], renderer: Renderer) -> None:
    """Fill in the tokens of an episode, as if a model had sampled them."""
    conversation, branches = renderer.open(), None
    for turn in turns:
        if turn.call is None:
            add_tokens(turn, conversation)
        else:
            branches = branches or Branches(renderers=Renderers(renderer))
            _add_call_tokens(turn, branches)


def _add_call_tokens(turn: Turn, branches: Branches) -> None:
    """The same in an environment that speaks in messages; calls are learned in the syntax of the template."""
    call = ProgramCall.of(turn)
    prompt, conversation = branches.ask(call).prompt, branches.conversation_of(call.number)
    renderer, found = conversation.renderer, read_native_calls(turn.action)
    ids = [call_id(number) for number in range(len(found.calls))]  # ids of the right form; no turn says its own
    told = tell_template(renderer, conversation.messages, found.text, found.calls, ids) if found.calls else None
    turn.prompt_ids, turn.restarts, turn.policy = prompt.ids, prompt.restarts, POLICY
    turn.sampled_ids = spell(renderer, turn.action) if told is None else end_turn(renderer, told[1])
    turn.action = branches.answer(call.number, turn.sampled_ids)


def add_tokens(turn: Turn, conversation: Conversation) -> None:
    """Fill in a turn's tokens from its texts, as if a model had sampled them; the conversation moves on by one turn."""
    prompt = conversation.observe(turn.observation)
    turn.prompt_ids, turn.restarts = prompt.ids, prompt.restarts
    turn.sampled_ids = spell(conversation.renderer, turn.action)
    turn.action = conversation.record(turn.sampled_ids)
    turn.policy = POLICY  # the policy learns it, even if another spoke


def spell(renderer: Renderer, text: str) -> list[int]:
    """The tokens of a turn that says `text`: the tokenizer's, then the end-of-turn token."""
    return end_turn(renderer, renderer.shield(_without_opening(renderer.opening, text)))


def end_turn(renderer: Renderer, shielded: str) -> list[int]:
    """The tokens of a turn that is shielded already, but for special tokens that the model should say."""
    end = renderer.stop_ids[0] if renderer.end_id is None else renderer.end_id
    return [*renderer.encode(shielded), end]


def _without_opening(opening: str, text: str) -> str:
    """What the generation prompt has already written (`<think>` and a line break) is not said again."""
    word = opening.rstrip()
    if not word or not text.startswith(word):
        return text
    return text.removeprefix(word).removeprefix(opening.removeprefix(word))


def require_expert(env: EnvChoice, *, fix: str) -> None:
    """ValueError if the environment has no scripted expert."""
    built = env.source().build()
    try:
        if not built.has_oracle():
            raise ValueError(f"{env.id} has no scripted expert to imitate; {fix}")
    finally:
        close_quietly(built)


def _specs(env: EnvChoice, *, count: int, seed: int) -> list[EpisodeSpec]:
    seeds = Random(f"demonstrations:{seed}").sample(_SEEDS, count)
    return [EpisodeSpec.of(env.source(), seed=number) for number in seeds]


async def _play(specs: list[EpisodeSpec], *, max_turns: int, seed: int) -> tuple[list[Group], RolloutStats]:
    async with Scheduler(limits=Limits(max_turns=max_turns), seed=seed) as scheduler:
        return await scheduler.run_groups(specs, OracleAgent()), scheduler.stats


def _is_kept(group: Group, *, only_success: bool) -> bool:
    """Failed episodes and episodes without a turn are not kept."""
    trajectory = group.trajectories[0]
    whole = bool(trajectory.turns) and not trajectory.stop.is_failure
    seated = group.id != group.task_id  # in a game of several seats an expert may lose to itself
    return whole and (trajectory.success or seated or not only_success)


def _nothing_kept(env: EnvChoice, stats: RolloutStats, *, max_turns: int) -> str:
    error = stats.last_error.get(env.id)
    cause = f"the last error: {error}" if error else f"it may need more than rollout.max_turns={max_turns}"
    return (
        f"the expert of {env.id} succeeded in none of {stats.episodes} episodes ({cause}); "
        f"`turnwise check-env {env.id}` shows what is wrong, or give sft.chats a file of chats"
    )
