"""The typed recipe: everything that decides a run. Every run saves its own in full (`config.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from turnwise.algorithm import Algorithm, Part
from turnwise.envs.process import EnvSource
from turnwise.envs.wrappers.named import read_choice
from turnwise.frozen_settings import Settings
from turnwise.recipe.ingredients import RewardChoice, Schedule, Sft, SourceChoice
from turnwise.recipe.machines import ClusterChoice, EngineChoice

Mode = Literal["off", "warn", "act"]
Stage = Literal["imitation", "reinforcement", "preference"]
"""What a run learns from: demonstrations, its own episodes, or preference pairs."""
Measure = Literal["meteor", "self-similarity", "distinct", "length", "perplexity", "kl"]
"""What can be measured on held-out episodes besides success and reward."""
CONTEXT = 2048
"""Maximum tokens per episode unless the recipe or the model sets less: long episodes take slots in the engine."""
Share = Annotated[float, Field(ge=0, lt=1)]


class LoraChoice(Settings):
    """Train a small adapter instead of the whole model."""

    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16, gt=0)
    adapter: str | None = None
    """An adapter to start from: a folder that peft wrote, or a run with LoRA. It sets rank, alpha and layers."""


class ModelChoice(Settings):
    """Which model, and in what form. In YAML `model: nano` is short for `model: {name: nano}`."""

    name: str = "nano"
    dtype: Literal["fp32", "bf16"] = "fp32"
    lora: LoraChoice | None = None
    checkpointing: bool = False
    """Recompute layers in the backward pass: less memory, a third more work."""
    compile: bool = False
    """Fuse the memory-bound parts of each layer; pays off on CUDA."""
    template: str | None = None
    """Chat template, for a tokenizer that has none."""
    system: str = ""
    prefix: str = ""
    """The beginning of every turn, which the model continues, such as <Judgement>."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class EnvChoice(Settings):
    """Where the agent acts. In YAML `env: search/geo-2hop` is short for `env: {id: search/geo-2hop}`."""

    id: str = "search/geo-2hop"
    """One of `turnwise envs`, module:Class, or your own agent my_agent.py:run (docs/gateway.md)."""
    kwargs: dict[str, Any] = {}
    """Arguments of the environment."""
    wrappers: tuple[dict[str, Any], ...] = ()
    """Wrappers around it, innermost first: history, turn-limit, token-budget, time-limit, statistics, tools, or
    module:Class, each alone or as a mapping with options such as {kind: turn-limit, max_turns: 8}."""
    rewards: tuple[RewardChoice, ...] = ()
    """A list of rewards on top of its own: exact, f1, number, environment (its own) or your my_rewards.py:right, alone
    or with options such as {function: my_rewards.py:short, name: short, weight: 0.1, per: turn}."""
    held_out: dict[str, Any] = {"split": "validation"}
    """Arguments that evaluation changes, so training never plays its tasks. If the environment takes no `split`,
    evaluation uses seeds that training never uses."""
    check: bool = True
    """Let the env doctor check it for a few seconds before the first step; a pass is remembered."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"id": value} if isinstance(value, str) else value

    @field_validator("wrappers", mode="before")
    @classmethod
    def _in_full(cls, value: Any) -> Any:
        return [read_choice(choice) for choice in value] if isinstance(value, list | tuple) else value

    def source(self, changes: Mapping[str, Any] | None = None) -> EnvSource:
        """How to build it, with some arguments changed."""
        rewards = [choice.model_dump(exclude_none=True) for choice in self.rewards]
        wrappers = (*self.wrappers, {"kind": "rewards", "functions": rewards}) if rewards else self.wrappers
        return EnvSource(env=self.id, kwargs={**self.kwargs, **(changes or {})}, wrappers=wrappers)


class Rollout(Settings):
    """How episodes are played."""

    episodes: int = Field(default=128, ge=1)
    """Episodes per step; must be a multiple of the group size."""
    max_turns: int = Field(default=8, ge=1)
    max_tokens: int = Field(default=256, ge=1)
    """Maximum tokens per turn."""
    temperature: float = Field(default=1.0, gt=0)
    concurrency: int = Field(default=256, ge=1)
    step_seconds: float = Field(default=60.0, gt=0)
    """An environment step that takes longer ends its episode."""
    context: int | None = Field(default=None, ge=2)
    """Maximum tokens per episode; None: the model's own limit, at most 2048."""
    lockstep: bool | None = None
    """The engine waits for every episode, so equal seeds give equal bits whatever the timing. None: on where that costs
    nothing: in synchronous runs whose environments answer inline."""


class Train(Settings):
    """How the policy learns."""

    steps: int = Field(default=100, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)
    """Learning rate of the policy. With nano or pico the default is 3e-4."""
    critic_learning_rate: float = Field(default=1e-4, gt=0)
    """Learning rate of the critic, if the algorithm has one. With nano or pico the default is 1e-3."""
    warmup: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises to its value."""
    schedule: Schedule = "constant"
    """Shape of the learning rate after the warm-up; linear and cosine end at a tenth of it."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    micro_tokens: int = Field(default=4096, ge=1)
    """Maximum tokens per forward pass; a larger minibatch accumulates gradients. Changes memory, not the result."""
    masters: Literal["fp32", "residual", "stochastic"] = "residual"
    """How bf16 weights keep steps that are too small for them: a copy in fp32 (4 bytes a weight), the 16 bits that they
    lack (2 bytes, just as exact), or stochastic rounding (no memory)."""
    moments: Literal["fp32", "bf16", "int8"] = "fp32"
    """How AdamW keeps its two moments: 8, 4 or 2 bytes a weight."""
    offload: Literal["none", "cpu"] = "none"
    """cpu keeps the optimiser's state in the host's memory and moves it to the GPU piece by piece."""
    critic: Literal["separate", "shared"] = "separate"
    """A separate value model, or a head on the policy's trunk."""
    critic_from: str | None = None
    """A folder from `turnwise reward-model` that a separate critic starts from; None: it starts as a copy of the policy
    whose values are all zero."""
    reference_every: int | None = Field(default=None, ge=1)
    """Copy the policy to the reference every N steps; None: the reference stays the first policy."""
    ranks: Literal["replicas", "sharded"] = "replicas"
    """What each rank of `torchrun` holds: the whole model, or a shard of it."""


class Evaluate(Settings):
    """How held-out tasks are played."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0: only before the first step and after the last."""
    episodes: int = Field(default=256, ge=0)
    """Held-out tasks, or all of them if the environment has fewer; 0 turns evaluation off."""
    tries: int = Field(default=1, ge=1)
    """Tries at each task: pass@k for k up to this."""
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    env: EnvChoice | None = None
    """Another environment for held-out tasks. Each learning policy plays it alone, at all seats, and plain metrics are
    means over the policies. None: the run's own environment and seats."""
    measures: tuple[Measure, ...] = ()
    """Further measures: meteor, self-similarity, distinct, length and perplexity of the texts; and kl, the distance
    from the policy before the first step."""
    exploitability: bool = False
    """Measure exactly what a best response earns against the policy, in a game whose tree is known (duel/…)."""


class GuardChoice(Settings):
    """How a run is monitored. In YAML `guard: act` is short for acting on every signal."""

    mode: Mode = "warn"
    signals: dict[str, Mode] = {"non-finite": "act"}
    """Modes of individual signals; the others follow `mode`."""
    bounds: dict[str, float | None] = {}
    """Absolute bounds that replace the defaults, by metric; null: no bound."""
    patience: int = Field(default=3, ge=1)
    """Healthy steps after which a checkpoint counts as good."""
    shrink: float = Field(default=0.2, gt=0, lt=1)
    """The learning rate is multiplied by this each time a state is restored."""
    restores: int = Field(default=3, ge=0)
    """Restores allowed before the run is stopped."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        mode = "off" if value is False else value  # YAML reads a bare off as False
        return {"mode": mode, "signals": {}} if isinstance(mode, str) else value

    @field_validator("signals", mode="before")
    @classmethod
    def _keep_default(cls, value: Any) -> Any:
        # Naming one signal must not turn off the one that acts by default; `guard: warn` does, by passing {}.
        return {"non-finite": "act", **value} if isinstance(value, Mapping) and value else value


class Checkpoint(Settings):
    """What is kept on disk."""

    every: int = Field(default=10, ge=1)
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints to keep, besides the best one and those that the guard or the reference needs."""


class Log(Settings):
    """Where numbers go besides the run folder."""

    rollouts: int = Field(default=1, ge=0)
    """Write the trajectories every N steps; 0: never. Replay needs every step."""
    tensorboard: bool = False
    wandb: str | None = None
    """Weights & Biases project."""
    trackio: str | None = None
    """trackio project."""


class PolicyChoice(Settings):
    """One of several policies. What it leaves unsaid is as in the recipe's own model, algorithm and train."""

    model: ModelChoice
    algorithm: Algorithm
    train: Train
    frozen: bool = False
    """It plays and never learns."""

    @field_serializer("train")
    def _without_steps(self, train: Train) -> dict[str, Any]:
        """How many steps there are is the run's to say, and may change when it is resumed."""
        return train.model_dump(mode="json", exclude={"steps"})


class SeatChoice(Settings):
    """Who plays a seat, one of policy, checkpoint, pool and agent. `white: rival` is short for {policy: rival}."""

    policy: str | None = None
    """A policy of this recipe."""
    checkpoint: str | None = None
    """The folder of a model, a checkpoint or a run; it never learns."""
    pool: str | None = None
    """Earlier selves of this policy, one drawn for every episode; they never learn."""
    agent: str | None = None
    """A scripted agent: random, oracle, a game's player such as cards/dhumbal:ismcts, or package.module:Class."""
    every: int = Field(default=10, ge=1)
    """Steps after which a pool takes in the policy as it then is."""
    keep: int = Field(default=4, ge=1)
    """Selves that a pool holds; the oldest makes room."""
    draw: Literal["uniform", "hardest"] = "uniform"
    """Which self plays an episode: any, or rather one that the learners lose to."""
    options: dict[str, Any] = {}
    """Arguments of an agent's class."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"policy": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one(self) -> Self:
        said = [name for name in ("policy", "checkpoint", "pool", "agent") if getattr(self, name) is not None]
        if len(said) != 1:
            raise ValueError("say one of policy, checkpoint, pool and agent, such as {pool: policy, every: 10}")
        return self


class ExchangeChoice(Settings):
    """Two policies swap their weights, and their critics, after every few steps."""

    every: int = Field(default=5, ge=1)
    """Steps from one swap to the next."""
    policies: tuple[str, ...] = ()
    """The names of the two."""
    optimizer: Literal["keep", "reset"] = "keep"
    """keep: AdamW's moments move with the weights; reset: they start again."""


class InTurnChoice(Settings):
    """Policies that learn one after the other. While one learns, the others play as they are."""

    every: int = Field(default=10, ge=1)
    """Steps for which each policy learns before the next one does; the first follows the last."""
    policies: tuple[str, ...] = ()
    """Their names in order. A policy that is not named learns at every step."""


class Recipe(Settings):
    """Everything that decides a run."""

    name: str = "run"
    stage: Stage = "reinforcement"
    seed: int = 0
    device: str = "auto"
    """auto, cpu, cuda, cuda:1."""
    model: ModelChoice = ModelChoice()
    env: EnvChoice = EnvChoice()
    algorithm: Algorithm
    rollout: Rollout = Rollout()
    engine: EngineChoice = EngineChoice()
    cluster: ClusterChoice | None = None
    """Let a cluster play the episodes; None: this process plays them."""
    train: Train = Train()
    sft: Sft | None = None
    source: SourceChoice = SourceChoice()
    judge: Part | None = None
    """Who compares the answers of a group: reward, reward-model, table, chat, chat-score, or your own judge as
    package.module:Class, with its options. gives says what it produces: wins (probabilities next to the reward), reward
    or turn-reward (these replace the reward, or with a weight become a part of it)."""
    eval: Evaluate = Evaluate()
    guard: GuardChoice = GuardChoice()
    checkpoint: Checkpoint = Checkpoint()
    log: Log = Log()
    policies: dict[str, PolicyChoice] = {}
    """Several policies by name; none: one, made from model, algorithm and train."""
    seats: dict[str, SeatChoice] = {}
    """Who plays which seat of the environment; none: the one policy plays them all."""
    exchange: ExchangeChoice | None = None
    """Which two policies swap their weights every few steps; None: each keeps its own."""
    in_turn: InTurnChoice | None = None
    """Which policies learn one after the other; None: all learn at every step."""

    @property
    def held_out_env(self) -> EnvChoice:
        """Where held-out tasks are played."""
        return self.eval.env or self.env

    @field_validator("name")
    @classmethod
    def _inside(cls, value: str) -> str:
        parts = value.split("/")
        if not all(parts) or not {".", ".."}.isdisjoint(parts) or not value.isprintable():
            raise ValueError(
                "it must be a folder inside runs/, such as geo or sweep/geo-1; use --output for another place"
            )
        return value

    @field_validator("algorithm", mode="before")
    @classmethod
    def _row(cls, value: Any) -> Any:
        return Algorithm.of(value) if isinstance(value, Mapping) else value
