# %% [markdown]
# # Lesson 2: your own environment
#
# You write a game, let the doctor look for mistakes in it, and train an agent on it. This takes less than a minute
# on a CPU.

# %%
import json
import os
import time
from pathlib import Path
from typing import Any

from turnwise.envs import Env, check_env, register
from turnwise.envs.base import Reset, Step
from turnwise.runs.ledger import read_groups
from turnwise.runs.reading import read_run
from turnwise.train import load_recipe, train

SHORT = "LESSON_SHORT" in os.environ  # the tests run a lesson in seconds
STEPS, EPISODES, DEMONSTRATIONS = (2, 8, 64) if SHORT else (24, 128, 1024)
FOLDER = Path("runs") / time.strftime("lesson-2-%H%M%S")
LETTERS = "abcdefgh"

# %% [markdown]
# ## The whole environment
#
# A hidden letter from `a` to `h`, three guesses. After a wrong guess the player learns how many letters away it was.
# `reset` starts an episode and returns the first text; `step` takes the agent's text and returns five things: the
# next text, the reward, whether the episode is over, whether a limit cut it short, and notes. Three habits make an
# environment sound:
#
# 1. **Draw from `self.rng` only.** `super().reset(seed=seed)` seeds it. Then a seed always means the same episode.
# 2. **Accept any text.** A model will say things you did not think of. Nonsense uses up the turn; it does not raise.
# 3. **Say what success is** (`info["success"]`) at the end, and whether an action was `valid`.


# %%
class FindLetter(Env):
    """Find the hidden letter in three guesses; a wrong guess is answered by its distance."""

    def reset(self, seed: int | None = None, task: Any = None) -> Reset:
        super().reset(seed=seed)
        self.hidden, self.turn, self.left = self.rng.choice(LETTERS), 0, list(LETTERS)
        return "from a", {}

    def step(self, action: str) -> Step:
        guess = action.removeprefix("answer ").strip()
        valid = len(guess) == 1 and guess in LETTERS
        self.turn += 1
        right = guess == self.hidden
        over = right or self.turn == 3
        distance = abs(LETTERS.index(guess) - LETTERS.index(self.hidden)) if valid else 0
        if valid:
            self.left = [other for other in self.left if abs(LETTERS.index(other) - LETTERS.index(guess)) == distance]
        observation = ("right" if right else str(min(distance, 4))) if valid else "error"
        info = {"valid": valid, **({"success": right} if over else {})}
        return observation, float(right), over, False, info

    def sample_random_action(self) -> str:
        return f"answer {self.rng.choice(LETTERS)}"

    def oracle(self) -> str:
        """Begin in the middle, then any letter that fits all answers."""
        return f"answer {'d' if self.turn == 0 else self.left[0]}"


# %% [markdown]
# ## Ask the doctor
#
# `register` gives it a name. (In a notebook, use a new name after you change the class: a name means one class.) The
# doctor then plays it, with the expert, at random and with nonsense, and looks for the mistakes that cost people
# days: episodes that differ although the seed is the same, shared state, rewards out of range, an expert who cannot
# win.

# %%
register("lesson/letter", FindLetter, summary="Find a letter in three guesses")
print(check_env("lesson/letter", seeds=3))

# %% [markdown]
# ## Train
#
# The model can only say words that it knows (`pico` knows the letters, `answer`, `from`, `right`, `error` and the
# digits up to 4), and an untrained model says them in random order. So it first imitates somebody **clumsy**, from a
# file of chats: half of the guesses are the expert's, the other half are any letter. The imitator becomes as clumsy
# as that. What it gains later comes from rewards alone.


# %%
def clumsy_game(seed: int) -> dict[str, Any]:
    """A game in which half of the guesses are blind, as a chat."""
    env = FindLetter()
    (observation, _), messages, over = env.reset(seed=seed), [], False
    while not over:
        action = env.oracle() if env.rng.random() < 0.5 else env.sample_random_action()
        messages += [{"role": "user", "content": observation}, {"role": "assistant", "content": action}]
        observation, _, over, _, _ = env.step(action)
    return {"messages": messages}


FOLDER.mkdir(parents=True)
CHATS = FOLDER / "clumsy.jsonl"
CHATS.write_text("\n".join(json.dumps(clumsy_game(seed)) for seed in range(DEMONSTRATIONS)))

# %%
recipe = load_recipe(
    None,
    {
        "model": "pico",
        "env": "lesson/letter",
        "sft": {
            "chats": str(CHATS),
            "demonstrations": DEMONSTRATIONS,
            "epochs": 2,
            "batch": 32,
            "learning_rate": 6e-3,
            "warmup": 5,
        },
        "rollout": {"episodes": EPISODES, "max_turns": 3, "max_tokens": 4, "context": 48},
        "train": {"steps": STEPS, "learning_rate": 1e-3, "critic_learning_rate": 2e-3},
        "eval": {"every": max(1, STEPS // 3), "episodes": 2 * EPISODES},
        "engine": {"memory_gib": 0.05},
    },
)
train(recipe, FOLDER / "run")
for row in read_run(FOLDER / "run").evals:
    print(f"step {row['step']:>3}: success {row['eval/success']:.2f} in {row['eval/turns']:.2f} turns")

# %% [markdown]
# ## Look at how it plays
#
# Numbers say *that* it learned; episodes say *what*. Did it find the middle, or another good first guess? Does it use
# the distance?

# %%
for group in read_groups(FOLDER / "run" / "rollouts" / f"step_{STEPS:06d}.jsonl.zst")[:6]:
    turns = group.trajectories[0].turns
    said = "  ".join(f"[{turn.observation}] {turn.action}" for turn in turns)
    print(f"{said:<60} {'found' if group.trajectories[0].success else 'not found'}")

# %% [markdown]
# ## Exercise
#
# 1. Break the environment: replace `self.rng.choice` in `reset` by `random.choice`, register it under another name,
#    and ask the doctor again. What does it say?
# 2. An agent that needs three guesses earns as much as one that needs two. Pay `1 - 0.2 * (self.turn - 1)` for a hit
#    instead. Do the turns fall? Does the success?
