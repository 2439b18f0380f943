"""Random programs behind lossy clients, and the check that what is trained is what was sampled.

A program talks in one of the three formats. It goes on with conversations, asks twice, forks, sends sub-agents, edits
and compacts its history, and makes several calls at once. Its client writes arguments anew, drops reasoning, trims and
pads, and repeats calls: after the answer, beside the first attempt, or because it gave up on it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.gateway.asgi_client import Post, poster
from tests.gateway.client_wires import CLIENTS, Body, Client
from tests.policy.tokenizers_for_chat import by_letters, chat_tokenizer
from tests.rollout.reference_engine import PlainEngine
from turnwise.dialects.dialect import Said
from turnwise.engine.contract import Completion, Finish, SamplingParams
from turnwise.envs import Env
from turnwise.envs.faults import fault_of
from turnwise.gateway.agent_run import AgentRun
from turnwise.gateway.agent_session import AgentSession, Ended
from turnwise.gateway.gateway_server import Gateway
from turnwise.policy.rendering import Renderer
from turnwise.rollout.episode import EpisodeSpec, Limits
from turnwise.rollout.packing import pack
from turnwise.rollout.policy_agent import PolicyAgent
from turnwise.rollout.scheduler import Scheduler
from turnwise.rollout.token_checks import check_ledger
from turnwise.types import Group, StopReason, Trajectory

KINDS = ("chatml", "llama3", "nano", "qwen3")
_PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "number"}}}
_SEARCH = {"name": "search", "description": "Find a document.", "parameters": _PARAMETERS}
_NOTE = {"name": "note", "description": "Write it down.", "parameters": _PARAMETERS}
TOOLS: tuple[tuple[dict[str, Any], ...], ...] = ((), (_SEARCH,), (_SEARCH, _NOTE))
_WORDS = (
    "the city",
    "of the river",
    "é 你好",
    "user",
    "<b>",
    "a  b",
    '"quoted"',
    "<|im_end|>",
    "<|eot_id|>",
    "1.0",
    "\n",
)


@dataclass(kw_only=True, eq=False)
class Point:
    """A conversation right after an answer."""

    messages: list[Said]
    tools: Sequence[Any]
    continued: bool = False


class Talker(PlainEngine):
    """Says random things in random tokens, and remembers what each session held when it sampled."""

    capacity = 10**6

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self.tokenizer, self.rng = tokenizer, Random(f"talker:{seed}")
        self.sessions: dict[str, list[int]] = {}
        self.sampled = list[tuple[tuple[int, ...], tuple[int, ...]]]()

    async def generate(self, session: str, new_ids: Sequence[int], params: SamplingParams) -> Completion:
        held = self.sessions.setdefault(session, [])
        held += new_ids
        ids, finish = self._say(params)
        self.sampled.append((tuple(held), tuple(ids)))
        held += ids
        logprobs = [-self.rng.random() for _ in ids]
        return Completion(ids=ids, logprobs=logprobs, versions=[0] * len(ids), finish=finish)

    def close(self, session: str) -> None:
        self.sessions.pop(session, None)

    def _say(self, params: SamplingParams) -> tuple[list[int], Finish]:
        ids = self._spell(self._text())
        for end in range(1, len(ids) + 1):
            if any(stop in self.tokenizer.decode(ids[:end]) for stop in params.stop_strings):
                return ids[:end], Finish.STOP
        if len(ids) >= params.max_tokens or self.rng.random() < 0.1:
            return ids[: params.max_tokens] or [self.tokenizer.eos_token_id], Finish.MAX_TOKENS
        return [*ids, self.tokenizer.eos_token_id], Finish.STOP

    def _text(self) -> str:
        rng = self.rng
        words = " ".join(rng.choices(_WORDS, k=rng.randint(0, 4)))
        calls = "\n".join(self._call() for _ in range(rng.choice((0, 0, 1, 2))))
        thought = rng.choice(("", "", "<think>hm</think>", "<think>\nhm, the river\n</think>\n\n", "<think>hm"))
        return rng.choice(("", " ", "\n")) + thought + words + calls + rng.choice(("", "", " ", "</tool_call>"))

    def _call(self) -> str:
        if self.rng.random() < 0.1:
            return "<tool_call>{broken</tool_call>"
        arguments = {"query": self.rng.choice(_WORDS), "limit": self.rng.choice((1, 2.0, 0.5, [1.0, 2], None)), "b": {}}
        return f"<tool_call>{json.dumps({'name': 'search', 'arguments': arguments})}</tool_call>"

    def _spell(self, text: str) -> list[int]:
        """The tokenizer's own spelling, one by letters, or one that is cut anywhere."""
        kind = self.rng.randrange(3)
        if kind == 0:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        if kind == 1:
            return by_letters(self.tokenizer, text)
        cut = self.rng.randint(0, len(text))
        parts = (text[:cut], text[cut:])
        return [id for part in parts if part for id in self.tokenizer.encode(part, add_special_tokens=False)]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call as it goes over the wire, and the headers of its first attempt and of all later ones."""

    path: str
    body: bytes
    first: Mapping[str, str]
    again: Mapping[str, str]


class LossyProgram:
    """Makes calls, sometimes several at once, and repeats some of them: late, while they wait, or after giving up.

    `calls` counts those that need an answer of their own, `repeats` the further attempts, and `openings` the calls that
    no earlier answer allows to go on.
    """

    def __init__(self, rng: Random, client: Client, post: Post) -> None:
        self.calls = self.repeats = self.openings = 0
        self._rng, self._client, self._post = rng, client, post
        self._points = list[Point]()
        self._sent = set[bytes]()
        self._unique = 0

    async def run(self) -> float:
        moves = [self._start, *self._rng.choices(self._moves, k=self._rng.randint(1, 9))]
        while moves:
            together = min(len(moves), self._rng.choice((1, 1, 2, 4)) if self._points else 1)
            made = [move() for move in moves[:together]]
            del moves[:together]
            self._points += await asyncio.gather(*(self._call(*each) for each in made))
        return 1.0

    async def _call(self, messages: list[Said], tools: Sequence[Any], opens: bool) -> Point:
        self.calls += 1
        self.openings += opens
        request = self._request(messages, tools)
        await _ticks(self._rng.randrange(4))  # calls at once arrive in any order
        said = self._client.read(await self._attempts(request))
        return Point(messages=[*messages, said], tools=tools)

    def _request(self, messages: Sequence[Said], tools: Sequence[Any]) -> Request:
        body = json.dumps(self._wire(messages, tools)).encode()
        # Nothing but an idempotency key tells a retry of one call from that of another with the same body.
        named = body in self._sent or self._rng.random() < 0.3
        self._sent.add(body)
        name = {"idempotency-key": f"call {self.calls}"} if named else {}
        again = name or {"x-stainless-retry-count": str(self._rng.randint(1, 3))}
        return Request(path=self._client.dialect.path, body=body, first=name, again=again)

    async def _attempts(self, request: Request) -> Body:
        """The answer to a call; all attempts that get one must get the same."""
        how = self._rng.choice(("once", "once", "once", "late", "at once", "given up"))
        first = asyncio.ensure_future(self._post(request.path, request.first, request.body))
        if how == "once":
            return await first
        self.repeats += 1
        if how == "late":
            await first
        else:
            await _ticks(self._rng.randint(1, 12))
        if how == "given up":
            first.cancel()
        answer = await self._post(request.path, request.again, request.body)
        if how != "given up" and _content(self._client, await first) != _content(self._client, answer):
            raise AssertionError(f"a retry got {answer}, and the first attempt {first.result()}")
        return answer

    @property
    def _moves(self) -> list[Any]:
        usual = [self._go_on] * 8
        return [*usual, self._start, self._fork, self._ask_again, self._edit, self._compact, self._put_words_in_mouth]

    def _start(self) -> tuple[list[Said], Sequence[Any], bool]:
        system = [Said(role="system", text=self._new())] if self._rng.random() < 0.5 else []
        return [*system, Said(role="user", text=self._new())], self._rng.choice(TOOLS), True

    def _go_on(self) -> tuple[list[Said], Sequence[Any], bool]:
        open_points = [point for point in self._points if not point.continued]
        if not open_points:
            return self._start()
        point = self._rng.choice(open_points)
        point.continued = True
        return [*point.messages, *self._reactions(point.messages[-1])], point.tools, False

    def _fork(self) -> tuple[list[Said], Sequence[Any], bool]:
        point = self._rng.choice(self._points)
        opens, point.continued = point.continued, True
        return [*point.messages, *self._reactions(point.messages[-1])], point.tools, opens

    def _ask_again(self) -> tuple[list[Said], Sequence[Any], bool]:
        point = self._rng.choice(self._points)
        return point.messages[:-1], point.tools, True

    def _edit(self) -> tuple[list[Said], Sequence[Any], bool]:
        point = self._rng.choice(self._points)
        messages = list(point.messages)
        place = self._rng.choice([place for place, each in enumerate(messages) if each.role != "assistant"])
        messages[place] = replace(messages[place], text=self._new())
        return [*messages, *self._reactions(messages[-1])], point.tools, True

    def _compact(self) -> tuple[list[Said], Sequence[Any], bool]:
        point = self._rng.choice(self._points)
        last = point.messages[-1]
        summary = Said(role="user", text=f"so far: {self._new()}")
        return [summary, last, *self._reactions(last)], point.tools, True

    def _put_words_in_mouth(self) -> tuple[list[Said], Sequence[Any], bool]:
        point = self._rng.choice(self._points)
        said = Said(role="assistant", text=self._new())
        return [*point.messages[:-1], said, Said(role="user", text=self._new())], point.tools, True

    def _reactions(self, said: Said) -> list[Said]:
        results = [Said(role="tool", text=self._new(), call_id=id) for id in said.call_ids]
        extra = [Said(role="user", text=self._new())] if not results or self._rng.random() < 0.2 else []
        return [*results, *extra]

    def _new(self) -> str:
        """A text that was never said before."""
        self._unique += 1
        return f"{self._rng.choice(_WORDS)} {self._unique} {self._rng.choice(_WORDS)}".strip()

    def _wire(self, messages: Sequence[Said], tools: Sequence[Any]) -> Body:
        more: dict[str, Any] = {}
        if self._rng.random() < 0.2:
            more["max_tokens" if self._client is not CLIENTS[1] else "max_output_tokens"] = self._rng.randint(1, 30)
        if self._rng.random() < 0.1 and self._client is not CLIENTS[1]:
            more["stop" if self._client is CLIENTS[0] else "stop_sequences"] = ["city"]
        return self._client.ask([self._echo(each) for each in messages], tools, temperature=0.3, **more)

    def _echo(self, said: Said) -> Said:
        """What a client makes of the policy's words."""
        if said.role != "assistant":
            return said
        rng = self._rng
        text = rng.choice((said.text, said.text.strip(), f"{said.text}\n", f"  {said.text}"))
        calls = tuple(replace(call, arguments=_rewritten(call.arguments, rng)) for call in said.calls)
        reasoning = said.reasoning if rng.random() < 0.3 else ""
        return replace(said, text=text, calls=calls, reasoning=reasoning)


def _rewritten(value: Any, rng: Random) -> Any:
    """Equal JSON: keys in another order, whole numbers with or without a point."""
    if isinstance(value, dict):
        items = [(key, _rewritten(each, rng)) for key, each in value.items()]
        return dict(rng.sample(items, len(items)))
    if isinstance(value, list):
        return [_rewritten(each, rng) for each in value]
    if isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer():
        return rng.choice((int(value), float(value)))
    return value


async def _ticks(count: int) -> None:
    """Let others go on for a while."""
    for _ in range(count):
        await asyncio.sleep(0)


def _content(client: Client, answer: Body) -> tuple[Said, Any]:
    """An answer without the names that every response invents."""
    return replace(client.read(answer), call_ids=()), answer["usage"]


class Conversing(AgentRun):
    """The gateway's environment with its real sessions. Its program runs in the episode's event loop and calls the
    gateway without a socket, so that a seed always plays the same."""

    def __init__(self, *, programs: dict[int, LossyProgram]) -> None:
        super().__init__(program=LossyProgram)
        self.programs, self.gateway = programs, Gateway()

    def reset(self, seed: int | None = None, task: Any = None) -> Any:
        Env.reset(self, seed=seed)
        assert seed is not None
        session = self._session = AgentSession()
        self.gateway.open(session)
        client = CLIENTS[seed % len(CLIENTS)]
        program = self.programs[seed] = LossyProgram(self.rng, client, poster(self.gateway, session.key))
        self.running = asyncio.ensure_future(_tell(program, session))
        return asyncio.ensure_future(self._begin(task))

    def close(self) -> None:
        if self._session is not None:
            self._session.close("the episode has ended")
        self._session = self._call = None


async def _tell(program: LossyProgram, session: AgentSession) -> None:
    try:
        session.end(Ended(value=await program.run()))
    except Exception as error:
        session.end(Ended(error=fault_of(error)))


@dataclass(frozen=True, kw_only=True)
class Played:
    """A conversation, its program, and what its engine sampled."""

    trajectory: Trajectory
    program: LossyProgram
    sampled: list[tuple[tuple[int, ...], tuple[int, ...]]]
    renderer: Renderer


def play(seed: int, agent: type[PolicyAgent] = PolicyAgent) -> Played:
    """One random conversation."""
    tokenizer = chat_tokenizer(KINDS[(seed // len(CLIENTS)) % len(KINDS)])
    renderer, engine, programs = Renderer(tokenizer), Talker(tokenizer, seed), dict[int, LossyProgram]()
    policy = agent(engine=engine, renderer=renderer, sampling=SamplingParams(max_tokens=120))

    async def main() -> Trajectory:
        async with Scheduler(limits=Limits(max_turns=64)) as scheduler:
            spec = EpisodeSpec(env=Conversing, kwargs={"programs": programs}, seed=seed)
            return (await scheduler.run([spec], policy))[0]

    trajectory = asyncio.run(main())
    return Played(trajectory=trajectory, program=programs[seed], sampled=engine.sampled, renderer=renderer)


def defect_of(played: Played) -> str:
    """What is wrong with what would be trained; empty if it is exactly what was sampled."""
    trajectory = played.trajectory
    if trajectory.stop is not StopReason.DONE:
        return f"ended by {trajectory.stop}: {trajectory.info.get('error')} {trajectory.info.get('traceback')}"
    if len(played.sampled) != played.program.calls:
        return f"{len(played.sampled)} answers were sampled for {played.program.calls} calls"
    trained, sequences = trained_tokens(trajectory)
    if trained != Counter(played.sampled):
        return "other tokens are trained than were sampled, or after others"
    if trajectory.turns[-1].reward != 1.0 or trajectory.reward != 1.0:
        return "the reward is not on the last turn"
    try:
        check_ledger(trajectory, played.renderer)
    except ValueError as error:
        return str(error)
    enough = played.program.openings + _retold(trajectory) * ("</think>" in played.renderer._template)
    return f"{sequences} sequences, where {enough} are enough" if sequences > enough else ""


def _retold(trajectory: Trajectory) -> int:
    """How many calls follow words that the program put into the model's mouth.

    A template that drops reasoning may trim these words when the next message comes, and no sampled token is in their
    place: such a call opens a sequence.
    """
    retold = set[int]()
    for call in sorted((turn.call for turn in trajectory.turns if turn.call), key=lambda call: call["number"]):
        if call["after"] in retold or any(message["role"] == "assistant" for message in call["messages"]):
            retold.add(call["number"])
    return len(retold)


def trained_tokens(trajectory: Trajectory) -> tuple[Counter[tuple[tuple[int, ...], tuple[int, ...]]], int]:
    """Every sampled turn of the packed batch with the tokens before it, and the number of sequences."""
    batch = pack([Group(id="one", trajectories=[trajectory])])
    ids, turn_T, sequence_T = batch.ids_T.tolist(), batch.turn_T.tolist(), batch.sequence_T.tolist()
    trained = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    for turn in range(batch.turns):
        places = [place for place, own in enumerate(turn_T) if own == turn]
        assert bool(batch.sampled_T[places].all())
        first = sequence_T.index(sequence_T[places[0]])
        trained[tuple(ids[first : places[0]]), tuple(ids[place] for place in places)] += 1
    return trained, int(batch.length_S.shape[0])
