"""`memory/manage`, `memory/answer` and `memory/both`: keep a memory bank, and answer from it (Memory-R1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from turnwise.envs.base import Env, Info, Reset, Step
from turnwise.envs.memory.memory_bank import Entry, Event, MalformedTurnError
from turnwise.envs.memory.memory_case import BankKind, Case, Said, draw_case, random_operation
from turnwise.envs.memory.memory_facts import Form, read_memory, spoken
from turnwise.envs.memory.memory_files import read_questions
from turnwise.envs.memory.memory_prompts import ask, read_answer, read_turn, show_said, write_answer, write_turn
from turnwise.envs.search.protocol import bleu1, exact_match, f1, normalise

MANAGER, ANSWERER = "manager", "answerer"
_LARGEST = 66
"""Memories that a story may need: of 72 things that can be true."""


def contains(answer: str, golds: Sequence[str]) -> float:
    """1.0 if all words of a right answer are among those of the answer, whatever else it says."""
    said = set(normalise(answer).split())
    wanted = [normalise(gold).split() for gold in golds]
    return float(any(words and said.issuperset(words) for words in wanted))


_REWARDS: dict[str, Callable[[str, Sequence[str]], float]] = {"em": exact_match, "f1": f1, "judge": contains}


class MemoryEnv(Env):
    """A dialogue of many facts, a bank of memories about it, and a question in the end.

    Terse, an episode of two seats:

        fact ann pets scout : 1 ann pets buddy ; 2 bob home oslo  →  the manager:   UPDATE 1 ann pets buddy scout
        use what ann pets : ann pets buddy scout ; bob home oslo  →  the answerer:  answer buddy scout, and why

    The manager handles the last `turns` facts, each with the `related` memories that fit best; what was said before is
    in the bank already, `memories` of them, as an expert keeps them, or as it was said with `bank="raw"`. The answerer
    reads the `candidates` memories that fit the question best, lists those that matter (`distil`) and answers. Where
    the manager is alone, a scripted reader answers by the oldest memory of what is asked for. The reward of all is 1
    for an exact match, the F1 of its words, or with `reward="judge"` 1 if a right answer is among the words.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"questions"})

    def __init__(
        self,
        *,
        seats: Sequence[str] = (MANAGER, ANSWERER),
        memories: int = 60,
        turns: int = 1,
        related: int = 4,
        candidates: int | Sequence[int] = 60,
        distil: bool | None = True,
        bank: BankKind = "managed",
        reward: Literal["em", "f1", "judge"] = "em",
        prompt: Literal["full", "terse"] = "full",
        path: str | None = None,
        split: str = "train",
    ) -> None:
        """Of several `candidates` one is drawn, and so is `distil` if it is None; `path` has dialogues from a file."""
        super().__init__(split=split)
        drawn = (candidates,) if isinstance(candidates, int) else tuple(candidates)
        if not 1 <= memories <= _LARGEST or not drawn or min(turns, related, *drawn) < 1:
            raise ValueError(f"memories is from 1 to {_LARGEST}; turns, related and candidates are at least 1")
        _require_known("bank", bank, ("managed", "raw"))
        _require_known("reward", reward, (*_REWARDS,))
        _require_known("prompt", prompt, ("full", "terse"))
        if tuple(seats) not in ((MANAGER,), (ANSWERER,), (MANAGER, ANSWERER)):
            raise ValueError(f"seats is {list(seats)}; choose [{MANAGER}], [{ANSWERER}] or [{MANAGER}, {ANSWERER}]")
        self.seats = tuple(seats)
        self.memories, self.turns, self.related = memories, turns if MANAGER in seats else 0, related
        self.candidates, self.distil, self.reward = drawn, distil, reward
        self.bank_kind: BankKind = bank
        if path is not None and ANSWERER not in seats:
            raise ValueError("a scripted reader cannot answer questions from files; use memory/both or memory/answer")
        self.questions = read_questions(path, split) if path is not None else {}
        self.form: Form = "words" if prompt == "terse" else "english"
        self.case: Case | None = None

    def reset(self, seed: int | None = None, task: str | None = None) -> Reset:
        """Draw a dialogue of this split; from a file, a `task` is the id of a question."""
        super().reset(seed=seed)
        self.case = self._draw(task)
        self.turn, self.events = 0, list[Event]()
        self.k = self.rng.choice(self.candidates)
        self.distils = self.rng.random() < 0.5 if self.distil is None else self.distil
        return self._observe(self.case)

    def step(self, action: str) -> Step:
        """Apply the manager's operations, or read the answer."""
        case = self._running()
        if self._said(case) is None:
            answer = read_answer(action, distils=self.distils)
            return self._end(case, answer or "", valid=answer is not None)
        self.turn += 1
        try:
            operations = read_turn(action, self.form)
            case.bank.apply(operations, now=self._now(case))
            valid, self.events = True, [operation.event for operation in operations]
        except MalformedTurnError:
            valid, self.events = False, []
        if self.turn == len(case.said) and ANSWERER not in self.seats:
            return self._end(case, case.read(self._candidates(case), self.form), valid=valid)
        observation, info = self._observe(case)
        return observation, 0.0, False, False, {**info, "valid": valid}

    def list_tasks(self) -> Sequence[str] | None:
        """The ids of a file's questions; None if dialogues are generated."""
        return [*self.questions] or None

    def sample_random_action(self) -> str:
        """Any operation, or what any memory says."""
        case = self._running()
        if (said := self._said(case)) is not None:
            return write_turn(random_operation(self.rng, said, self._related(case, said), self.form), self.form)
        candidates = self._candidates(case)
        text = self.rng.choice(candidates).text if candidates else ""
        values = [name for name, _ in (read_memory(text) or (None, ()))[1]]
        return write_answer([text] if text else [], spoken(values, self.form), self.form, distils=self.distils)

    def oracle(self) -> str:
        """The right operation, or the right answer with the memories that it rests on."""
        case = self._running()
        if (said := self._said(case)) is not None:
            return write_turn(case.operation(said, self._related(case, said), self.form), self.form)
        return write_answer(case.used(self._candidates(case)), case.answers[0], self.form, distils=self.distils)

    def _draw(self, task: str | None) -> Case:
        if self.questions:
            chosen = task if task is not None else self.rng.choice([*self.questions])
            if chosen not in self.questions:
                raise ValueError(f"there is no question {chosen!r} in this split; list_tasks() has them all")
            return self.questions[chosen].case(self.turns)
        return draw_case(
            self.rng, memories=self.memories, turns=self.turns, bank=self.bank_kind, form=self.form, split=self.split
        )

    def _running(self) -> Case:
        if self.case is None:
            raise ValueError("no episode is running; call reset() first")
        return self.case

    def _said(self, case: Case) -> Said | None:
        """What the manager has to handle now; None when it is the answerer's turn."""
        return case.said[self.turn] if self.turn < len(case.said) else None

    def _now(self, case: Case) -> int:
        """Later than everything in the bank at the start."""
        return (len(case.story.facts) if case.story is not None else len(case.bank)) + self.turn

    def _related(self, case: Case, said: Said) -> list[Entry]:
        return case.bank.search(said.text, self.related)

    def _candidates(self, case: Case) -> list[Entry]:
        return case.bank.search(case.question, self.k)

    def _observe(self, case: Case) -> Reset:
        said = self._said(case)
        if said is not None:
            return show_said(said.text, said.date, self._related(case, said), self.form), self._seated(MANAGER)
        text = ask(case.question, self._candidates(case), self.form, distils=self.distils)
        return text, self._seated(ANSWERER)

    def _seated(self, seat: str) -> Info:
        return {"seat": seat} if len(self.seats) > 1 else {}

    def _end(self, case: Case, answer: str, *, valid: bool) -> Step:
        reward, matches = _REWARDS[self.reward](answer, case.answers), exact_match(answer, case.answers)
        scores = {"em": matches, "f1": f1(answer, case.answers), "bleu1": bleu1(answer, case.answers)}
        scores["words"] = float(len(answer.split()))
        scores[f"em_{case.kind.replace('-', '_')}"] = matches
        if case.said and (fact := case.said[-1].fact) is not None:
            done = {event.lower(): float(event in self.events) for event in Event}
            scores |= {f"{fact.kind}_{name}": value for name, value in {**done, "em": matches}.items()}
        info: Info = {"valid": valid, "success": bool(matches), "scores": scores, "answer": answer[:200]}
        if len(self.seats) > 1:
            info |= {"rewards": dict.fromkeys(self.seats, reward), "success": dict.fromkeys(self.seats, bool(matches))}
        self.case = None
        return f"The answer is {case.answers[0]}.", reward, True, False, info


def _require_known(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(known)}")
