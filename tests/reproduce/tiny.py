"""A study that takes seconds: two arms and a control of each kind, one seed, two steps."""

from pathlib import Path

CLAIM = """
paper: A tiny paper
text: The method holds where the baseline does not.
arms:
  ppo: {settings: {algorithm: {preset: ppo}}}
  st-ppo: {settings: {algorithm: {preset: st-ppo, scale: {kind: "turnwise.reproduce.parts:RecordedScale"}}}}
  matched: {settings: {algorithm: {preset: turn-ppo}}, matched: st-ppo}
  permuted: {settings: {algorithm: {preset: turn-ppo}}, permuted: st-ppo}
  half: {settings: {algorithm: {preset: ppo}}, epoch_share: 0.5}
controls: [matched, permuted]
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
rollout: {episodes: 16, max_turns: 5, max_tokens: 8, context: 96, engine_gib: 0.02}
train: {steps: 2}
eval: {every: 1, episodes: 8}
guard: off
log: {rollouts: 0}
"""


def write_claim(folder: Path, claim: str = CLAIM) -> Path:
    """The claim's folder, as `recipes/<paper>` is one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claim.yaml").write_text(claim)
    (folder / "tiny.yaml").write_text(RECIPE)
    return folder
