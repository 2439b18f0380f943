"""Environments of other packages. Each needs an optional dependency, imported only when one is made."""

from turnwise.envs.registry import EnvSpec

SPECS: tuple[EnvSpec, ...] = (
    EnvSpec(
        id="rg/{name}",
        entry_point="turnwise.envs.adapters.reasoning_gym:ReasoningGym",
        summary="Any reasoning-gym family: one question, scored by the family's own scorer.",
        extra="reasoning-gym",
        example="rg/spell_backward",
        names="turnwise.envs.adapters.reasoning_gym:DATASETS",
    ),
    EnvSpec(
        id="textarena/{name}",
        entry_point="turnwise.envs.adapters.textarena:TextArena",
        summary="TextArena games for one player or several seats.",
        extra="textarena",
        example="textarena/TicTacToe-v0",
        names="turnwise.envs.adapters.textarena:ENV_REGISTRY",
    ),
    EnvSpec(
        id="textworld/w{rooms:int}-o{objects:int}-q{quest:int}",
        entry_point="turnwise.envs.adapters.textworld:make_adventure",
        summary="Generated TextWorld adventures by rooms, objects and quest length; rewards sparse, balanced or dense.",
        extra="textworld",
        example="textworld/w2-o3-q4",
    ),
    EnvSpec(
        id="textworld/cooking",
        entry_point="turnwise.envs.adapters.textworld:make_cooking",
        summary="TextWorld's cooking games: ingredients (1 to 5), cook, cut, rooms; the recipe is read first.",
        extra="textworld",
    ),
    EnvSpec(
        id="gym/{name}",
        entry_point="turnwise.envs.adapters.gymnasium:Gymnasium",
        summary="Gymnasium's toy-text worlds in words: FrozenLake, CliffWalking, Taxi, Blackjack.",
        extra="gymnasium",
        example="gym/FrozenLake-v1",
        names="turnwise.envs.adapters.gymnasium:WORDS",
    ),
    EnvSpec(
        id="minigrid/{name}",
        entry_point="turnwise.envs.adapters.minigrid:MiniGrid",
        summary="MiniGrid and BabyAI levels in words.",
        extra="minigrid",
        example="minigrid/BabyAI-GoToRedBall-v0",
        names="turnwise.envs.adapters.minigrid:LEVELS",
    ),
    EnvSpec(
        id="gem/{name}",
        entry_point="turnwise.envs.adapters.gem:Gem",
        summary="GEM environments, with their global seeding contained.",
        extra="gem",
        example="gem/game:GuessTheNumber-v0-hard",
        names="turnwise.envs.adapters.gem:ENV_REGISTRY",
    ),
    EnvSpec(
        id="verifiers/{name}",
        entry_point="turnwise.gateway.verifiers_tasksets:make_taskset",
        summary="Installed verifiers tasksets: single replies, or with tools, seats and a harness through the gateway.",
        extra="verifiers",
        example="verifiers/gsm8k-v1",
    ),
    EnvSpec(
        id="openenv/{address}",
        entry_point="turnwise.envs.adapters.openenv:OpenEnv",
        summary="The environment of a running OpenEnv server, by WebSocket; secure=true for wss.",
        extra="openenv",
        example="openenv/127.0.0.1:8000",
    ),
)
