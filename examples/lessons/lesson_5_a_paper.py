# %% [markdown]
# # Lesson 5: reproducing a paper
#
# A paper says that a method helps. Does it? You take one claim, see how it becomes thresholds **before** anything is
# run, run it, and read the verdict. About a minute on a CPU.

# %%
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from turnwise.evaluate.statistics import mean_interval
from turnwise.reproduce.claim import load_claim

SHORT = "LESSON_SHORT" in os.environ  # the tests run a lesson in seconds
FOLDER = Path("runs") / time.strftime("lesson-5-%H%M%S")

# %% [markdown]
# ## The claim
#
# POAD (Policy Optimization with Action Decomposition) is about discounts. An action of a language agent is a string
# of tokens. If every token is discounted, long actions are worth less than short ones for their length alone, so the
# agent may learn the wrong thing. The claim is a file, `recipes/poad/claim.yaml`, and was final before the first run
# on the study's seeds.

# %%
claim = load_claim("poad")
print(claim.paper, "\n")
print(claim.text)

# %% [markdown]
# ## Predict first
#
# A short action of 2 tokens pays 0.9 and a long one of 10 tokens pays 1.0. With a discount of γ for every token the
# last token's reward is worth γ to the power of the tokens before it. What should an agent choose that is discounted
# by token?

# %%
for gamma in (0.95, 0.98, 0.99, 0.995):
    short, long = 0.9 * gamma**1, 1.0 * gamma**9
    print(f"γ = {gamma}: short {short:.3f}, long {long:.3f} -> {'short' if short > long else 'long'}")
print("discounted between actions only: short 0.900, long 1.000 -> long")

# %% [markdown]
# ## The thresholds
#
# Each criterion compares a mean over seeds with a bound. It passes if the whole 95% interval is on the right side,
# fails if the whole interval is on the wrong side, and is *not decided* otherwise. Three outcomes, not two: too few
# seeds are not evidence against a paper.

# %%
SCALE = "cpu-quick"
arms = {arm for block in claim.scales[SCALE].blocks.values() for arm in block.arms}
for criterion in claim.criteria:
    bound = f"at least {criterion.at_least}" if criterion.at_least is not None else f"at most {criterion.at_most}"
    if criterion.arm in arms:
        print(f"{criterion.arm:<6} {criterion.metric} {bound}")
print(f"{claim.scales[SCALE].seeds} seeds, arms {', '.join(sorted(arms))}")

# %% [markdown]
# ## Run it
#
# One command does everything: it makes a start for each seed (the same for all arms), trains every arm from it, and
# concludes. Kill it and call it again: it goes on where it was.

# %%
command = [sys.executable, "-m", "turnwise", "reproduce", "poad", "--quick", "--output", str(FOLDER)]
tiny = ["train.steps=1", "rollout.episodes=8", "eval.episodes=8", "sft.demonstrations=32", "sft.epochs=1", "--jobs=1"]
subprocess.run([*command, *(tiny if SHORT else [])], check=True)

# %% [markdown]
# ## Check the verdict yourself
#
# Never trust a verdict that you cannot recompute. `results.json` has a line for each run.

# %%
rows = json.loads((FOLDER / "results.json").read_text())
for arm in sorted(arms):
    for metric in ("eval/score_long", "eval/score_short"):
        values = [row["last"].get(metric, 0.0) for row in rows if row["arm"] == arm]
        mean = sum(values) / len(values)
        low, high = mean_interval(values)
        shown = ", ".join(f"{value:.2f}" for value in values)
        print(f"{arm:<6} {metric:<16} {mean:.2f} ({low:.2f} to {high:.2f})   seeds: {shown}")
print("\nthe full verdict:", FOLDER / "verdict.md")

# %% [markdown]
# Three seeds and half the steps are a first look, and the command says so. The study itself has five seeds and the
# flip between γ = 0.98 and 0.99; [its page](../../docs/recipes/poad.md) has the numbers. [All
# claims](../../docs/claims.md) that we put to the test are on one page, with those that failed and those that are not
# decided.
#
# ## Exercise
#
# 1. The study says γ flips the choice at 0.987. Which arms would you add to find the flip more exactly, and what
#    would they cost?
# 2. Write a claim of your own: copy `recipes/poad` to a folder, change the discount of `ntpo` to 0.97, write down
#    what you expect in `criteria`, and only then run `turnwise reproduce path/to/folder --quick`.
