# %% [markdown]
# # Lesson 4: reading the microscope
#
# Runs seldom die with an error. Success falls, and you have to find out why. Every update of every step is measured
# **by turn index**: how far the policy has moved from the one that sampled, how heavy the tail of the ratios is, how
# much the clip cuts away. You break a run on purpose and read where it broke. Less than a minute on a CPU.

# %%
import os
import time
from pathlib import Path
from typing import Any

from turnwise.report import find_onset, write_report
from turnwise.runs.reading import RunData, read_run
from turnwise.train import imitate, load_recipe, train

SHORT = "LESSON_SHORT" in os.environ  # the tests run a lesson in seconds
STEPS, EPISODES, DEMONSTRATIONS = (2, 8, 64) if SHORT else (14, 64, 1024)
FOLDER = Path("runs") / time.strftime("lesson-4-%H%M%S")

# %% [markdown]
# ## A common start, two runs
#
# Both runs begin from the same imitation and use every rollout for 16 optimiser steps (4 passes over 4 minibatches)
# at a learning rate that is too high. Many updates on old data are what multi-turn training is tempted by, because
# playing episodes is expensive. One run is token PPO. The other has a ratio for each turn, and scales its steps down
# as the policy drifts away from its sampler. The guard is off: we want to see what would happen.

# %%
settings: dict[str, Any] = {
    "env": "lookup/mixed",
    "rollout": {"episodes": EPISODES, "max_turns": 5, "max_tokens": 8, "context": 96},
    "engine": {"memory_gib": 0.05},
    "eval": {"episodes": 2 * EPISODES},
    "guard": "off",
}
imitation = {"demonstrations": DEMONSTRATIONS, "epochs": 2, "batch": 32, "learning_rate": 6e-3, "warmup": 10}
imitate(load_recipe(None, {**settings, "model": "pico", "sft": imitation}), FOLDER / "start")
start = str(max((FOLDER / "start" / "checkpoints").glob("step_*")))


def run_with(algorithm: str) -> RunData:
    """The same stress for any algorithm: 16 updates a rollout at 7e-3."""
    row = {"preset": algorithm, "epochs": 4, "minibatches": 4}
    training = {"steps": STEPS, "learning_rate": 7e-3, "critic_learning_rate": 1e-3}
    train(load_recipe(None, {**settings, "model": start, "algorithm": row, "train": training}), FOLDER / algorithm)
    return read_run(FOLDER / algorithm)


runs = {algorithm: run_with(algorithm) for algorithm in ("ppo", "turn-ppo-drift")}

# %% [markdown]
# ## First look: success
#
# This is all that most dashboards show, and it says nothing about the cause.

# %%
for algorithm, run in runs.items():
    print(f"{algorithm:<15}", " ".join(f"{row['rollout/success']:.2f}" for row in run.metrics))

# %% [markdown]
# ## Second look: one number a step
#
# `loss/sampler_kl` is the distance from the policy that sampled, averaged over the updates of the step. Healthy runs
# stay well below 0.2. `loss/ratio_max` is the largest importance ratio π/π_old of a token (or of a turn, where the
# ratio is a turn's). A ratio of 100 says: the policy now finds something 100 times as likely as when it was sampled.
# `ratio_ess` turns the whole tail into one number: the share of the data that still counts. At 0.5 half of the batch
# is lost to a few heavy tokens.

# %%
for algorithm, run in runs.items():
    print(f"{algorithm}\n step  success  sampler_kl  ratio_max  ratio_ess  clip_fraction  scale")
    for row in run.metrics:
        kl, largest, left = (row[f"loss/{name}"] for name in ("sampler_kl", "ratio_max", "ratio_ess"))
        scale = f"{row['train/scale']:.2f}" if "train/scale" in row else "-"
        print(
            f"{row['step']:>5}  {row['rollout/success']:>7.2f}  {kl:>10.3f}  {largest:>9.1f}  {left:>9.2f}"
            f"  {row['loss/clip_fraction']:>13.2f}  {scale:>5}"
        )

# %% [markdown]
# ## Third look: by turn
#
# Now the same by turn index. An episode here has up to five turns. Early turns see the question only; late turns see
# what earlier ones did. Look for the first step at which one row is out of line with the others, and at which turn
# that is.


# %%
def by_turn(run: RunData, metric: str) -> None:
    """One line for each turn index, one column for each step."""
    turns = sorted({int(row["turn"]) for row in run.turns})
    table = {(row["step"], row["turn"]): row.get(f"turn/{metric}") for row in run.turns}
    steps = sorted({step for step, _ in table})
    print(f"{metric:<14}", *(f"{step:>7}" for step in steps))
    for turn in turns:
        cells = (table.get((step, turn)) for step in steps)
        print(f"  turn {turn:<8}", *("      -" if cell is None else f"{cell:>7.2f}" for cell in cells))


for algorithm, run in runs.items():
    print(f"\n{algorithm}")
    for metric in ("sampler_kl", "ratio_max", "ratio_ess", "clip_fraction", "entropy"):
        by_turn(run, metric)

# %% [markdown]
# How to read it:
#
# - **`sampler_kl` by turn: drift.** Where it is largest the policy has changed most since it was sampled. If it grows
#   with the turn index, late turns learn from states that the present policy would no longer reach.
# - **`ratio_max` and `ratio_ess` by turn: the tail.** One large ratio is an accident. A falling `ess` says that few
#   tokens decide the step.
# - **`clip_fraction` by turn: the clip.** It removes gradient on one side only (ratios that went too far in the
#   direction of their advantage), so a large fraction means that the step no longer points where the objective does.
#   `turn/clip_bias`, for rows that have it (`st-ppo`), is the norm of what was cut away.
# - **`entropy` by turn.** It falls slowly in a run that learns. A cliff to 0 is a policy that says one thing whatever
#   it reads.
#
# What we saw on our machine (yours may round differently): token PPO falls from 0.77 to 0.03 in **one** step. Its KL
# at that step is 0.64 at turn 0, 0.97 at turn 1, 1.8 at turns 2 and 3, and 2.9 at turn 4; of the data of turn 4 a
# sixth still counts (`ess` 0.16), and the clip cuts two thirds of its tokens. The mean over all turns, 1.3, hides
# that. The other run drifts in the same order, 0.16 at turn 0 to 1.7 at turn 4, but its scale leaves a tenth of each
# step, and it recovers. It gains nothing on its start either: this rate is too high for anybody.
#
# ## When did it break?
#
# `find_onset` does with all signals what your eye just did: it looks for the fall of success and for the signal that
# left its band first.

# %%
for algorithm, run in runs.items():
    onset = find_onset(run.metrics, run.events)
    print(f"{algorithm:<15}", "held" if onset is None else f"step {onset.step}: {onset.text}")
    first, last = run.evals[0]["eval/success"], run.evals[-1]["eval/success"]
    print(f"{'':<15} held-out success {first:.2f} before, {last:.2f} after")
print("all panels and both runs:", write_report([FOLDER / name for name in runs], FOLDER / "report.html"))

# %% [markdown]
# ## Exercise
#
# 1. Turn the guard on (`"guard": "act"`) for token PPO. At which step does it act, on which signal, and what does it
#    do? (`events.jsonl`)
# 2. Lower the learning rate of token PPO until it holds. Which of the tables above first tells you that it will,
#    before success does?
# 3. Is a ratio per turn or the scaled step what saves the second run? `algorithm=turn-ppo` has the first without the
#    second. One seed will not tell you: [the stability study](../../docs/stability.md) used ten.
