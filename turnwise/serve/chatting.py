"""A conversation in the terminal with a chat model behind an address."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from turnwise.chat_endpoint import ChatEndpoint

HELP = "/reset forgets the conversation, /quit ends it"


@dataclass(kw_only=True)
class Chat:
    """Reads lines, streams answers: `Chat(endpoint=..., write=print, remark=print).run(["Hello", "/quit"])`."""

    endpoint: ChatEndpoint
    write: Callable[[str], None]
    """Shows the model's text as it comes, without a line break."""
    remark: Callable[[str], None]
    """Shows what the model did not say, in the same way."""
    system: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def run(self, lines: Iterable[str]) -> None:
        """Answer line by line until /quit or the end."""
        self._reset()
        for line in lines:
            said = line.strip()
            if said == "/quit":
                return
            if said == "/reset":
                self._reset()
                self.remark("(forgotten)\n")
            elif said.startswith("/"):
                self.remark(f"{HELP}\n")
            elif said:
                self._ask(said)

    def _reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def _ask(self, said: str) -> None:
        """A question that gets no answer leaves the conversation as it was."""
        asked, answer = [*self.messages, {"role": "user", "content": said}], ""
        try:
            for part in self.endpoint.stream(asked):
                answer += part
                self.write(part)
        except ConnectionError as error:
            self.remark(f"\n({error})\n")
            return
        except KeyboardInterrupt:
            self.remark("\n(stopped)\n")  # what was said so far is kept
        else:
            if answer.strip():
                self.write("\n")
            else:
                self.remark("(the model said nothing)\n")
        self.messages = [*asked, {"role": "assistant", "content": answer}]
