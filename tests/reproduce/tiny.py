"""Studies that take seconds: two arms and a control of each kind; and two arms that are held against bounds."""

from pathlib import Path

CLAIM = """
paper: A tiny paper
text: The method holds where the baseline does not.
arms:
  ppo: {settings: {algorithm: {preset: ppo}}}
  st-ppo: {settings: {algorithm: {preset: st-ppo, scale: {kind: "turnwise.reproduce.replayed_scales:RecordedScale"}}}}
  matched: {settings: {algorithm: {preset: turn-ppo}}, matched: st-ppo}
  permuted: {settings: {algorithm: {preset: turn-ppo}}, permuted: st-ppo}
  half: {settings: {algorithm: {preset: ppo}}, epoch_share: 0.5}
controls: [matched, permuted]
thresholds: {}
scales:
  cpu:
    recipe: tiny.yaml
    start: {model: "pico-{seed}", slips: 0.05}
    seeds: 1
    rate: 2.0e-2
    updates: 4
    minibatches: 2
    blocks:
      stress: {arms: [matched, permuted, st-ppo, half]}
      updates: {arms: [ppo], updates: [1], seeds: 5}
"""
RECIPE = """
model: pico
env: {id: lookup/2hop, kwargs: {hops: [1]}, check: false}
sft: {demonstrations: 512, epochs: 3, batch: 32, learning_rate: 1.0e-2}
rollout: {episodes: 16, max_turns: 5, max_tokens: 8, context: 96}
engine: {memory_gib: 0.02}
train: {steps: 2}
eval: {every: 1, episodes: 8}
guard: off
log: {rollouts: 0}
"""
GUESS_CLAIM = """
paper: A guessing paper
text: Discounted agents hurry.
arms:
  rebn: {settings: {algorithm: {preset: rebn}}}
  undiscounted: {settings: {algorithm: {preset: rebn, advantage: {gamma: 1.0}}}}
criteria:
  - {part: A, arm: rebn, metric: success, at_least: 0.95}
  - {part: A, arm: undiscounted, minus: rebn, metric: turns, at_least: 0.5}
  - {part: A, arm: rebn, metric: turns, at_most: 5.3, decides: false}
  - {part: B, arm: rebn, minus: undiscounted, metric: reward, at_least: 0.02}
scales:
  cpu:
    recipe: guess.yaml
    start: {model: "pico-guess-{seed}", slips: 0.5, slip: action}
    seeds: 1
    rate: 1.0e-3
    updates: 2
    minibatches: 1
    blocks:
      claims: {arms: [rebn, undiscounted]}
"""
GUESS_RECIPE = """
model: pico-guess
env: {id: game/guess-number-easy, kwargs: {high: 4, max_turns: 6}, check: false}
sft: {demonstrations: 128, epochs: 1, batch: 16, learning_rate: 1.0e-2}
rollout: {episodes: 8, max_turns: 6, max_tokens: 3, context: 152}
engine: {memory_gib: 0.02}
train: {steps: 1}
eval: {every: 1, episodes: 16}
guard: off
log: {rollouts: 0}
"""
TASKS = """
    tasks:
      few: {settings: {env: {id: game/guess-number-easy, kwargs: {high: 2, max_turns: 6}, check: false}}}
      more: {rate: 3.0e-3, start: {model: "pico-guess-{seed}"}}
"""


def write_claim(folder: Path, claim: str = CLAIM) -> Path:
    """The claim's folder, as `recipes/<paper>` is one, with the recipes of both."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"claim.yaml": claim, "tiny.yaml": RECIPE, "guess.yaml": GUESS_RECIPE}.items():
        (folder / name).write_text(text)
    return folder
