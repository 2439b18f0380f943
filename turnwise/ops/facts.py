"""What parts declare about themselves: their needs, and the traits that a row's rules check.

    @declares(Need.REFERENCE)                       # always
    @declares(Need.KL_TO_REFERENCE, estimator="full")   # only with this option
    @refuses(lambda options: options["margin"] > options["limit"], "margin={margin} is above limit={limit}; lower it")
    def my_part(batch, *, ...): ...

A part that declares nothing needs nothing. The rest of the package never checks a part's name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

Part = TypeVar("Part", bound=Callable[..., Any])
Options = Mapping[str, Any]


class Need(StrEnum):
    """What a part must be given. A row needs what its parts need; the learner provides exactly that."""

    OLD = "the log-probs of the policy before the first update (old_T)"
    SAMPLER = "the log-probs of the sampler (mu_T)"
    REFERENCE = "the log-probs of a reference policy (ref_T)"
    KL_TO_REFERENCE = "the full KL from the policy to the reference (Scores.reference_kl_T)"
    KL_FROM_REFERENCE = "the full KL from the reference to the policy (Scores.reverse_kl_T)"
    OLD_KL = "the full KL to the reference before the first update (old_kl_T)"
    ENTROPY = "the entropy of the next-token distribution (Scores.entropy_T)"
    COLLISION = "the collision probability of the next-token distribution (Scores.collision_T)"
    VOCABULARY_MEAN = "the mean log-prob over the vocabulary, now and before the first update (Scores.uniform_T)"
    ROUTING = "the experts that the sampler chose (extra_T['routing'])"
    OLD_ROUTING = "the experts that the policy chose before the first update (extra_T['old_routing'])"
    GRADIENT = "the whole gradient of every weight"
    ANSWER_SCORES = "a number for every answer, from a reward model (Scores.value_T)"
    PREVIOUS_POLICY = "the policy after the updates of the step before, to mix its logits with the present ones"
    PREVIOUS_WEIGHTS = "the weights after the updates of the step before, before extrapolation"
    MERIT = "how good each trajectory was: its return or its win probability"
    REWARD_HISTORY = "mean and spread of all returns so far (history.returns)"
    KL_CONTROL = "a coefficient that follows the KL to the reference (history.kl_coef)"
    """Of a part with the options coef, target and gain."""
    TEXTS = "text that the policy did not play (source.mix)"
    OTHERS_WORDS = "the words of other agents in its episodes (source_T)"
    SUCCESSES = "its own episodes that succeeded"
    WINS = "win probabilities (extra_T['wins'])"
    WHOLE_GROUPS = "whole groups in every minibatch, micro-batch and rank"
    CLIPPING = "a surrogate that clips"
    ADVANTAGE = "an advantage"
    RATIO = "an importance ratio"
    GROUPS = "several tries at the same task"
    TURN_ADVANTAGES = "one advantage per turn"
    TOKEN_VALUES = "a value for every token"
    TURN_VALUES = "a value for every turn"
    STATE_KEYS = "turns that name the state they began in (anchor_K)"
    TOKEN_COUNT = "the number of tokens in the whole optimiser step"
    TURN_COUNT = "the number of turns in the whole optimiser step"
    SEQUENCE_COUNT = "the number of sequences in the whole optimiser step"
    TRAJECTORY_COUNT = "the number of trajectories in the whole optimiser step"
    UNIT_COUNT = "the number of units in the whole optimiser step"


class Trait(StrEnum):
    """What a row's rules may check about a part."""

    NEUTRAL = "leaves everything as it is"
    MAKES_GROUPS = "tries every task several times"
    CLIPS = "can remove or bend a token's gradient"
    THROUGH_RATIO = "its gradient flows through the ratio"
    FOLLOWS_ADVANTAGE = "has no gradient where the advantage is zero"
    FIRST_UPDATE_ONLY = "is right only for data of the present policy"
    PER_TURN = "one ratio for all tokens of a turn"
    PER_SEQUENCE = "one ratio for all tokens of a sequence"
    PER_UNIT = "one term for all tokens of a unit"
    SAME_IN_TURN = "gives all tokens of a turn the same advantage"
    SAME_IN_SEQUENCE = "gives all tokens of a sequence the same advantage"
    DIVIDES_BY_SPREAD = "divides by the spread of the group"
    CHOOSES = "keeps only some members of a group, by how good they are"
    REJECTS = "can reject tokens, which then leave every denominator"
    CATEGORICAL = "reads a distribution over bins from low to high"


Fact = Need | Trait


@dataclass(frozen=True, kw_only=True)
class _Declaration:
    facts: frozenset[Fact]
    when: Options


@dataclass(frozen=True, kw_only=True)
class _Objection:
    applies: Callable[[Options], bool]
    text: str
    fatal: bool


_DECLARED: defaultdict[Any, list[_Declaration]] = defaultdict(list)
_OBJECTED: defaultdict[Any, list[_Objection]] = defaultdict(list)
_FORMULAS: dict[Any, Callable[[Options], str]] = {}


def declares(*facts: Fact, **when: Any) -> Callable[[Part], Part]:
    """Declare facts about a part; with options given, only when the part has exactly these, or what they accept.

    `declares(Need.KL_CONTROL, target=is_given)` calls `is_given` with the option.
    """

    def note(part: Part) -> Part:
        _DECLARED[part].append(_Declaration(facts=frozenset(facts), when=when))
        return part

    return note


def refuses(applies: Callable[[Options], bool], text: str) -> Callable[[Part], Part]:
    """Refuse combinations of options; the text may name options in braces."""
    return _objects(applies, text, fatal=True)


def warns(applies: Callable[[Options], bool], text: str) -> Callable[[Part], Part]:
    """Warn of combinations of options that are allowed but unwise."""
    return _objects(applies, text, fatal=False)


def formula(write: Callable[[Options], str]) -> Callable[[Part], Part]:
    """How `explain` writes the part, where the equation in its docstring does not fit every option."""

    def note(part: Part) -> Part:
        _FORMULAS[part] = write
        return part

    return note


def facts_of(part: Callable[..., Any], options: Options) -> frozenset[Fact]:
    """What a part with these options has declared."""
    declared = [each for named in _family(part) for each in _DECLARED.get(named, ())]
    fitting = [
        each.facts for each in declared if all(_fits(options.get(name), wanted) for name, wanted in each.when.items())
    ]
    return frozenset[Fact]().union(*fitting)


def is_given(option: Any) -> bool:
    """Whether an option that may be None is set."""
    return option is not None


def _fits(option: Any, wanted: Any) -> bool:
    return bool(wanted(option) if callable(wanted) else option == wanted)


def has_declared(part: Callable[..., Any]) -> bool:
    """Whether a part has declared anything; the rules skip parts that have not."""
    return any(named in _DECLARED for named in _family(part))


def objections(part: Callable[..., Any], options: Options, *, fatal: bool) -> Iterator[str]:
    """The objections to a part with these options."""
    for each in [each for named in _family(part) for each in _OBJECTED.get(named, ())]:
        if each.fatal == fatal and each.applies(options):
            yield each.text.format(**options)


def formula_of(part: Callable[..., Any], options: Options) -> str | None:
    """The part's own formula, if it has one."""
    written = [_FORMULAS[named] for named in _family(part) if named in _FORMULAS]
    return written[0](options) if written else None


def _family(part: Callable[..., Any]) -> tuple[Any, ...]:
    """A class inherits the declarations of its base classes."""
    return part.__mro__ if isinstance(part, type) else (part,)


def _objects(applies: Callable[[Options], bool], text: str, *, fatal: bool) -> Callable[[Part], Part]:
    def note(part: Part) -> Part:
        _OBJECTED[part].append(_Objection(applies=applies, text=text, fatal=fatal))
        return part

    return note
