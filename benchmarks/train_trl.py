"""TRL's side of `benchmarks/train.py`: GRPOTrainer learns the same task. Needs `pip install trl==1.16.0`.

Two of TRL's multi-turn forms can play this task, and both are measured:

- `environment_factory`, the documented form. TRL generates a turn for the whole batch, then runs the tools
  one rollout after the other (asynchronous ones too), then generates the next turn for those that called one.
- `rollout_func`, where the user writes the whole rollout. Ours is what a careful user would write: a batched
  `generate` for all unfinished episodes, then all their tools at once in threads. TRL only trains on the result.

Neither keeps keys and values from one turn to the next: every turn reads its history again. In the first a turn without
a well-formed search ends the episode; in the second the environment answers it, as it does in Turnwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean
from typing import Any, ClassVar

from train import MODEL, SEARCHES, Case, Clock, Measured, answer

from turnwise.policy.models import resolve_model

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
try:
    import torch
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed; the comparison needs: pip install trl==1.16.0")

# The nano model's own form, and what TRL asks of a template: that a tool call can be rendered with all its arguments.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- message['content'] -}}
{%- for call in message.get('tool_calls') or [] -%}
{{- '<' + call['function']['name'] + '>' -}}
{%- for name, value in call['function']['arguments'].items() -%}
{{- value if name == 'query' else name + ' ' + value -}}
{%- endfor -%}
{{- '</' + call['function']['name'] + '>' -}}
{%- endfor -%}
{{- '<|end|>' -}}
{%- else -%}
{{- '<|user|>' + message['content'] + '<|agent|>' -}}
{%- endif -%}
{%- endfor -%}"""

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|agent|>",
    "fields": {
        "tool_calls": {
            "open": "<search>",
            "close": "</search>",
            "repeats": True,
            "content": "text",
            "transform": {
                "type": "function",
                "function": {"name": "search", "arguments": {"query": "{content}"}},
            },
        },
        "content": {"close_pattern": r"<\|end\|>", "content": "text"},
    },
}


class Search:
    """The environment in TRL's form: public methods are tools."""

    def __init__(self) -> None:
        self._env: Any = Case().make_env()

    def reset(self, *, seed: int, **_: Any) -> str:
        """The question."""
        return self._env.reset(seed=seed)[0]

    def search(self, query: str) -> str:
        """Look something up.

        Args:
            query: What to look for.
        """
        return self._env.step(f"<search>{query}</search>")[0]


class AwaitedSearch(Search):
    """The same with a slow tool: asynchronous, which is the form that TRL could overlap."""

    seconds: ClassVar[float] = 0.0

    async def search(self, query: str) -> str:  # type: ignore[override]
        """Look something up.

        Args:
            query: What to look for.
        """
        await asyncio.sleep(self.seconds)
        return super().search(query)


class Outcomes:
    """Results of episodes, recorded as they are scored."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.rewards: list[float] = []

    def add(self, turns: Sequence[int], rewards: Sequence[float]) -> list[float]:
        self.turns += turns
        self.rewards += rewards
        return list(rewards)


def environment_form(case: Case, outcomes: Outcomes) -> dict[str, Any]:
    """Arguments of the trainer for `environment_factory`."""

    def reward(completions: list[Any], environments: list[Search], **_: Any) -> list[float]:
        turns = [sum(message["role"] == "assistant" for message in messages) for messages in completions]
        rewards = [
            environment._env.step(messages[-1]["content"])[1] if messages[-1]["role"] == "assistant" else 0.0
            for environment, messages in zip(environments, completions, strict=True)
        ]
        return outcomes.add(turns, rewards)

    AwaitedSearch.seconds = case.tool_seconds
    factory = AwaitedSearch if case.tool_seconds else Search
    return {"environment_factory": factory, "reward_funcs": reward}


class Rollout:
    """Our own rollout: all unfinished episodes take their turns together."""

    def __init__(self, case: Case, outcomes: Outcomes) -> None:
        self.case, self.outcomes = case, outcomes
        self.envs: list[Any] = [case.make_env() for _ in range(case.episodes)]
        self.threads = ThreadPoolExecutor(case.episodes if case.tool_seconds else 1)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        questions = [
            env.reset(seed=int(prompt[0]["content"]))[0] for env, prompt in zip(self.envs, prompts, strict=True)
        ]
        prompt_ids = [_observed(tokenizer, question) for question in questions]
        completion_ids: list[list[int]] = [[] for _ in prompts]
        masks: list[list[int]] = [[] for _ in prompts]
        rewards, turns = [0.0] * len(prompts), [0] * len(prompts)
        active = list(range(len(prompts)))
        while active:
            sampled = self._generate(trainer, [prompt_ids[row] + completion_ids[row] for row in active])
            played = self._play(active, tokenizer.batch_decode(sampled, skip_special_tokens=True))
            going: list[int] = []
            for row, ids, (observation, reward, terminated, _, _) in zip(active, sampled, played, strict=True):
                # A cut turn is not an action: the episode ends there, as in Turnwise.
                done = terminated or ids[-1] != tokenizer.eos_token_id
                seen = [] if done else _observed(tokenizer, observation)
                completion_ids[row] += ids + seen
                masks[row] += [1] * len(ids) + [0] * len(seen)
                rewards[row], turns[row] = reward, turns[row] + 1
                going += [] if done else [row]
            active = going
        self.outcomes.add(turns, rewards)
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "logprobs": None,  # TRL reads them only to correct for another engine
            "env_mask": masks,
            "earned": rewards,
        }

    def _play(self, rows: list[int], actions: list[str]) -> list[Any]:
        return list(self.threads.map(lambda row, action: self.envs[row].step(action), rows, actions))

    def _generate(self, trainer: Any, prompts: list[list[int]]) -> list[list[int]]:
        tokenizer = trainer.processing_class
        padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        model = trainer.accelerator.unwrap_model(trainer.model)
        with torch.no_grad():
            ids = model.generate(**padded, max_new_tokens=self.case.max_tokens, do_sample=True, top_k=0, top_p=1.0)
        return [_until(row, tokenizer.eos_token_id) for row in ids[:, padded["input_ids"].shape[1] :].tolist()]


def _observed(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.apply_chat_template([{"role": "user", "content": text}], return_dict=False)


def _until(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids


def rollout_form(case: Case, outcomes: Outcomes) -> dict[str, Any]:
    """Arguments of the trainer for `rollout_func`."""

    def reward(completions: list[Any], earned: list[float], **_: Any) -> list[float]:
        return earned

    return {"rollout_func": Rollout(case, outcomes), "reward_funcs": reward}


FORMS: dict[str, Callable[[Case, Outcomes], dict[str, Any]]] = {
    "environment_factory": environment_form,
    "rollout_func": rollout_form,
}


class Ticking(TrainerCallback):
    """Tells the clock when a step is over."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.clock.tick()


def settings(case: Case, folder: str) -> Any:
    """TRL's settings: where its defaults would be slower (recomputed layers, large micro-batches) or another method."""
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=case.seed,
        max_steps=case.steps + 1,
        per_device_train_batch_size=case.group,  # the fastest of 8, 16, 32 and 128 on a CPU
        gradient_accumulation_steps=case.episodes // case.group,
        num_generations=case.group,
        shuffle_dataset=False,
        max_completion_length=448,  # of an episode: never reached
        generation_kwargs={"max_new_tokens": case.max_tokens},  # of a turn
        max_tool_calling_iterations=SEARCHES,
        temperature=1.0,
        learning_rate=case.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        weight_decay=0.0,
        loss_type="grpo",
        beta=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def measure(case: Case, form: str, folder: str) -> Measured:
    """Train, and report the time of each step and what was played."""
    torch.set_num_threads(case.threads)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(MODEL), padding_side="left")
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    clock, outcomes = Clock(), Outcomes()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(resolve_model(MODEL), dtype=torch.float32),
        args=settings(case, folder),
        train_dataset=questions(case, form),
        processing_class=tokenizer,
        callbacks=[Ticking(clock)],
        **FORMS[form](case, outcomes),
    )
    trainer.train()
    lengths = [row["completions/mean_length"] for row in trainer.state.log_history[:-1]]  # the last sums up the run
    wall, cpu = clock.seconds(case.steps)
    return Measured(
        wall=wall,
        cpu=cpu,
        turns=fmean(outcomes.turns[case.episodes :]),
        tokens=fmean(lengths[1:]),
        success=fmean(outcomes.rewards[case.episodes :]),
    )


def questions(case: Case, form: str) -> Dataset:
    """One row per task, by its seed. A `rollout_func` is given prompts alone, so there the prompt carries the seed."""
    seeds = range((case.steps + 1) * case.episodes // case.group)
    contents = [str(seed) if form == "rollout_func" else "" for seed in seeds]
    prompts = [[{"role": "user", "content": content}] for content in contents]
    return Dataset.from_dict({"prompt": prompts, "seed": list(seeds)})


def main() -> None:
    """What `train.py` calls, in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=FORMS, default="environment_factory")
    parser.add_argument("--case", default="{}", help="settings as JSON, such as '{\"steps\": 2}'")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        answer(measure(Case(**json.loads(options.case)), options.form, folder))


if __name__ == "__main__":
    main()
