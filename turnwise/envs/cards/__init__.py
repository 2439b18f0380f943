"""Card games for two to five seats: `make("cards/dhumbal", players=2)`."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="cards/dhumbal",
        entry_point="turnwise.envs.cards.dhumbal:Dhumbal",
        summary="shed cards and call with a low hand, two to five seats",
    ),
)
