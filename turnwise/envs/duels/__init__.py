"""Games of two seats with known solutions: `make("duel/kuhn")`."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="duel/nim",
        entry_point="turnwise.envs.duels.nim:nim",
        summary="two seats take stones from piles; the last stone wins",
    ),
    EnvSpec(
        id="duel/kuhn",
        entry_point="turnwise.envs.duels.kuhn:kuhn",
        summary="two seats play poker with three cards and one bet",
    ),
    EnvSpec(
        id="duel/rps",
        entry_point="turnwise.envs.duels.rps:rock_paper_scissors",
        summary="two seats choose rock, paper or scissors at the same time",
    ),
)
