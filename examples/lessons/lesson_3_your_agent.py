# %% [markdown]
# # Lesson 3: your own agent, through the gateway
#
# You may already have an agent: a program that calls a chat API in a loop, with its own tools and prompts. You do not
# have to rewrite it as an environment. Turnwise starts your program, answers its calls with the policy, records every
# sampled token, and takes what your program returns as the reward. Less than a minute on a CPU. Needs
# `pip install 'turnwise[serve]' openai`.

# %%
import os
import time
from pathlib import Path

import turnwise
from turnwise.runs.ledger import read_groups
from turnwise.runs.reading import read_run
from turnwise.train import imitate, load_recipe, train

SHORT = "LESSON_SHORT" in os.environ  # the tests run a lesson in seconds
STEPS, EPISODES, DEMONSTRATIONS = (2, 8, 64) if SHORT else (20, 64, 640)
FOLDER = Path("runs") / time.strftime("lesson-3-%H%M%S")
AGENT = Path(turnwise.__file__).parents[1] / "examples" / "agents" / "lookup_agent.py"

# %% [markdown]
# ## The agent
#
# Here is one in a few lines. It has a table, asks the model what to do, looks keys up, and says in the end how well
# it went. Read it: there is no import of Turnwise, and it would run against any OpenAI-compatible server. The only
# agreement is the signature, `run(task, base_url, api_key) -> reward`.

# %%
print(AGENT.read_text())

# %% [markdown]
# ## A model to begin with
#
# Usually you start from a model that can talk (SmolLM2, Qwen, ...). On a CPU in a minute we take `pico` and let it
# imitate an expert of the built-in environment `lookup/2hop`, which speaks the same few words. That gives a policy
# that succeeds now and then.

# %%
settings = {
    "rollout": {"episodes": EPISODES, "max_turns": 5, "max_tokens": 8, "context": 96},
    "engine": {"memory_gib": 0.05},
    "eval": {"episodes": 2 * EPISODES},
}
imitation = {"demonstrations": DEMONSTRATIONS, "epochs": 2, "batch": 32, "learning_rate": 6e-3, "warmup": 10}
imitate(load_recipe(None, {**settings, "model": "pico", "env": "lookup/2hop", "sft": imitation}), FOLDER / "start")
start = max((FOLDER / "start" / "checkpoints").glob("step_*"))

# %% [markdown]
# ## Train the program
#
# The environment is `path/to/file.py:function`. Without a file of tasks each episode gets a task `{"seed": 17,
# "split": "train"}`, and evaluation uses `"validation"`: a sound agent makes different tasks of the two.

# %%
training = {"steps": STEPS, "learning_rate": 1e-3, "critic_learning_rate": 1e-3}
recipe = load_recipe(None, {**settings, "model": str(start), "env": f"{AGENT}:run", "train": training})
train(recipe, FOLDER / "agent")
for row in read_run(FOLDER / "agent").evals:
    low, high = row["eval/success_low"], row["eval/success_high"]
    print(f"step {row['step']:>3}: success {row['eval/success']:.3f} ({low:.3f} to {high:.3f})")

# %% [markdown]
# ## What was trained
#
# The program sent *text*, whole conversations that grow with every call. What is trained must be *tokens*, and
# exactly those that were sampled. The gateway finds out which earlier call a conversation continues. The sampled
# tokens stay as they are, and only what is new becomes prompt tokens. So an episode of four calls is one sequence
# with four turns, and not four sequences that repeat each other.

# %%
trajectory = read_groups(FOLDER / "agent" / "rollouts" / f"step_{STEPS:06d}.jsonl.zst")[0].trajectories[0]
for number, turn in enumerate(trajectory.turns):
    print(f"call {number}: {len(turn.prompt_ids)} new prompt tokens {turn.observation!r}, sampled {turn.action!r}")
print("reward that the program returned:", sum(turn.reward for turn in trajectory.turns))
print("turns that began a sequence of their own:", sum(turn.restarts for turn in trajectory.turns))

# %% [markdown]
# From the command line, with your own agent and model:
#
# ```
# turnwise train env=my_agent.py:run model=my-model rollout.max_tokens=256
# ```
#
# ## Exercise
#
# 1. Many agents trim what the model said (`said.strip()`) before they send it back. Does that begin a new sequence?
#    Try it in `lookup_agent.py`, and count the `restarts`.
# 2. Let the agent forget: send only the last four messages. What happens to the number of sequences of an episode,
#    and why can the gateway not avoid it?
