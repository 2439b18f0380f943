# %% [markdown]
# # Lesson 1: a first run
#
# You train an agent from nothing, look at what it learned, and continue the run. This takes less than a minute on a
# CPU. Run the file (`python examples/lessons/lesson_1_first_run.py`), or open it as a notebook: VS Code shows the
# cells, and Jupyter does so with jupytext.

# %%
import os
import time
from pathlib import Path

from turnwise.envs.tasks.lookup import Lookup
from turnwise.report import write_report
from turnwise.runs.ledger import read_groups
from turnwise.runs.reading import read_run
from turnwise.train import load_recipe, resume, train

SHORT = "LESSON_SHORT" in os.environ  # the tests run a lesson in seconds
STEPS, EPISODES, DEMONSTRATIONS = (2, 8, 64) if SHORT else (20, 64, 768)
FOLDER = Path("runs") / time.strftime("lesson-1-%H%M%S")

# %% [markdown]
# ## The task
#
# An **environment** is text in, text out. `lookup/mixed` hides a table of keys. The agent is told where to start and
# how many hops to follow, looks keys up turn by turn, and answers. A right answer earns 1, anything else 0. Every
# environment of ours can have an `oracle`, a scripted expert. Watch it play one episode:

# %%
env = Lookup(hops=(2, 3))  # turnwise.envs.make("lookup/mixed") is the same
observation, _ = env.reset(seed=3)
reward, over = 0.0, False
while not over:
    action = env.oracle()
    print(f"environment: {observation:<16} agent: {action}")
    observation, reward, terminated, truncated, _ = env.step(action)
    over = terminated or truncated
print(f"environment: {observation:<16} reward: {reward}")

# %% [markdown]
# ## The recipe
#
# A **recipe** says everything about a run. The model is `pico`, 58,000 weights, made on the spot. It knows 23 words
# and nothing about the task, so the run has two stages: it first imitates the oracle a little (`sft`), then learns
# from rewards alone. No algorithm is named, so it is the default, `turn-ppo-drift`.

# %%
recipe = load_recipe(
    None,
    {
        "model": "pico",
        "env": "lookup/mixed",
        "sft": {"demonstrations": DEMONSTRATIONS, "epochs": 2, "batch": 32, "learning_rate": 6e-3, "warmup": 10},
        "rollout": {"episodes": EPISODES, "max_turns": 5, "max_tokens": 8, "context": 96},
        "train": {"steps": STEPS, "learning_rate": 1e-3, "critic_learning_rate": 1e-3},
        "eval": {"episodes": 2 * EPISODES},
        "engine": {"memory_gib": 0.05},
    },
)
train(recipe, FOLDER)

# %% [markdown]
# ## What happened
#
# Success is measured on **held-out** tables that training never sees. The interval is 95%: with so few episodes it is
# wide, and a difference that is smaller than the interval is not a result.

# %%
run = read_run(FOLDER)
for row in run.evals:
    low, high = row["eval/success_low"], row["eval/success_high"]
    print(f"step {row['step']:>3}: success {row['eval/success']:.3f} ({low:.3f} to {high:.3f})")

# %% [markdown]
# Training success, step by step. Each step plays new episodes with the policy of that moment.

# %%
for row in run.metrics:
    print(f"step {row['step']:>3} {'#' * round(40 * row['rollout/success']):<40} {row['rollout/success']:.2f}")

# %% [markdown]
# ## What it learned from
#
# Every trajectory of every step is in the run's **ledger**, with the token ids that were sampled and their log-probs.
# The learner trained on exactly these numbers. Nothing was turned into text and back.

# %%
group = read_groups(FOLDER / "rollouts" / f"step_{STEPS:06d}.jsonl.zst")[0]
trajectory = group.trajectories[0]
for number, turn in enumerate(trajectory.turns):
    print(f"turn {number}: {turn.observation!r} -> {turn.action!r}, reward {turn.reward}")
    print(f"        ids {list(turn.sampled_ids)}, log-probs {[round(value, 2) for value in turn.logprobs or []]}")
print("stopped because:", trajectory.stop.value)

# %% [markdown]
# ## Continue it
#
# A run is a function of its recipe and its seed. Kill it whenever you like: `resume` continues from the newest
# checkpoint, and the result is the same, to the last bit, as if nothing had happened. Here it gets two more steps.

# %%
summary = resume(FOLDER, overrides={"train": {"steps": STEPS + 2}})
print(summary["status"], "after", summary["step"], "steps")
print("open", write_report([FOLDER], FOLDER / "report.html"), "in a browser")

# %% [markdown]
# The same from the command line:
#
# ```
# turnwise train my-recipe.yaml                 # the dictionary above as a file
# turnwise resume runs/NAME train.steps=40
# turnwise eval runs/NAME --episodes 1000
# turnwise report runs/NAME --output report.html
# ```
#
# ## Exercise
#
# Add `"algorithm": "grpo"` to the recipe and run it again, then `"seed": 1`. Does the algorithm or the seed change
# the final success more? How many seeds would you need before you said that one algorithm is better? (`turnwise
# compare` does this properly.)
