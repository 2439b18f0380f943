"""The search environment: one question, a few searches, one answer. Every `search/*` task runs in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Literal

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.search.protocol import (
    INVALID,
    LAST_TURN,
    PROMPTS,
    SearchAction,
    ask,
    defuse,
    exact_match,
    f1,
    parse,
    show,
)
from turnwise.envs.search.retriever import Document, Retriever
from turnwise.envs.search.task import SearchTask

DrawTask = Callable[[Random], SearchTask]
"""Draws one task of the environment's split."""


class SearchEnv(Env):
    """Multi-turn question answering with a search engine, in the Search-R1 protocol.

    Of `max_searches + 1` turns all but the last may search; a malformed turn counts. The last turn must answer.
    `top_k` documents come back per search. `distractors` adds that many near misses (the next in rank) and shuffles the
    whole result, so that the agent has to read instead of trusting the order. `tasks` are all the tasks of `draw`,
    if they can be listed.
    """

    execution = "inline"  # a step takes well under a millisecond
    shared = frozenset({"draw", "retriever", "tasks"})

    def __init__(
        self,
        *,
        draw: DrawTask,
        retriever: Retriever,
        tasks: Sequence[SearchTask] | None = None,
        split: str = "train",
        max_searches: int = 3,
        top_k: int = 1,
        distractors: int = 0,
        reward: Literal["em", "f1"] = "em",
        prompt: Literal["terse", "full"] = "terse",
        document_characters: int = 1_000,
    ) -> None:
        super().__init__(split=split)
        if reward not in ("em", "f1"):
            raise ValueError(f"unknown reward {reward!r}; choose em (exact match) or f1")
        if prompt not in PROMPTS:
            raise ValueError(f"unknown prompt {prompt!r}; choose one of {', '.join(PROMPTS)}")
        if max_searches < 0 or top_k < 1 or distractors < 0 or document_characters < 1:
            raise ValueError(
                "max_searches and distractors must be at least 0, top_k and document_characters at least 1"
            )
        self.draw, self.retriever, self.tasks = draw, retriever, tasks
        self.max_searches, self.top_k, self.distractors = max_searches, top_k, distractors
        self.reward, self.prompt, self.document_characters = reward, prompt, document_characters
        self.task: SearchTask | None = None

    def reset(self, seed: int | None = None, task: Mapping[str, Any] | None = None) -> Reset:
        """Ask a question of this split, or the given one (a dict as in `info["task"]`)."""
        super().reset(seed=seed)
        self.task = self.draw(self.rng) if task is None else SearchTask.from_dict(task)
        self.turn = 0
        self.queries: list[str] = []
        self.history = self.task.id
        self.observation = ask(self.task.question, style=self.prompt, searches=self.max_searches)
        return self.observation, {"task": self.task.as_dict(), "state_key": self.history}

    def list_tasks(self) -> list[dict[str, Any]] | None:
        """Every question of the split, once; None if questions are generated as they are drawn."""
        if self.tasks is None:
            return None
        # By wording, like the splits: a question that is twice in a file is one task.
        return [task.as_dict() for task in {task.question: task for task in self.tasks}.values()]

    def step(self, action: str) -> Step:
        """Read one turn: a search continues, an answer ends the episode."""
        task = self._running()
        parsed = parse(action)
        last = self.turn == self.max_searches
        self.turn += 1
        if parsed is not None and parsed.kind == "answer":
            return self._answer(task, parsed)
        info: Info = {"valid": parsed is not None and not last}
        if parsed is not None:
            info["parsed_action"] = str(parsed)
        if last:
            return self._end(LAST_TURN, 0.0, {**info, "success": False, "em": 0.0, "f1": 0.0})
        self.observation = self._look_up(parsed.text) if parsed is not None else self._refuse()
        if self.turn == self.max_searches:
            self.observation += f"\n{LAST_TURN}"
        return self.observation, 0.0, False, False, {**info, "state_key": self.history}

    def sample_random_action(self) -> str:
        """Search for, or answer with, up to three neighbouring words of the last observation."""
        words = re.findall(r"\w+", self.observation)
        start = self.rng.randrange(len(words))
        text = " ".join(words[start : start + self.rng.randint(1, 3)])
        searching = self.turn < self.max_searches and self.rng.random() < 0.5
        return str(SearchAction(kind="search" if searching else "answer", text=text))

    def oracle(self) -> str:
        """Ask the task's remaining queries in turn, then give the answer."""
        task = self._running()
        left = [query for query in task.queries if query not in self.queries]
        if left and self.turn < self.max_searches:
            return str(SearchAction(kind="search", text=left[0]))
        return str(SearchAction(kind="answer", text=task.answers[0]))

    def _running(self) -> SearchTask:
        if self.task is None:
            raise ValueError("no episode is running; call reset() first")
        return self.task

    def _look_up(self, query: str) -> str:
        self.queries.append(query)
        documents = self._retrieve(query)
        self.history += f" > {','.join(str(document.number) for document in documents)}"
        return show(documents, characters=self.document_characters)

    def _refuse(self) -> str:
        self.history += " > invalid"
        return INVALID

    def _retrieve(self, query: str) -> list[Document]:
        documents = self.retriever.search(query, self.top_k + self.distractors)
        if self.distractors:
            self.rng.shuffle(documents)
        return documents

    def _answer(self, task: SearchTask, action: SearchAction) -> Step:
        match, overlap = exact_match(action.text, task.answers), f1(action.text, task.answers)
        info = {"success": match == 1.0, "em": match, "f1": overlap, "parsed_action": str(action)}
        verdict = "right" if match else f"wrong : {defuse(task.answers[0])}"
        return self._end(verdict, match if self.reward == "em" else overlap, info)

    def _end(self, observation: str, reward: float, info: Info) -> Step:
        self.task = None
        return observation, reward, True, False, info
