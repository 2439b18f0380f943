"""A chat API that writes a terminal task and solves it."""

from __future__ import annotations

import json
from typing import Any

from tests.rollout.planner_server import PlannerServer

WORDS = "Write the number of lines of /home/user/list.txt, alone, to /home/user/lines.txt."
DESCRIPTION = f'<task>{WORDS}</task>\n<truth>{{"lines": 3}}</truth>'
TREE = (
    "<think>A list.</think><setup>\n```bash\nprintf 'a\\nb\\nc\\n' > /home/user/list.txt\n```\n</setup>"
    "<test>\n```python\nimport os, sys\n"
    "sys.exit(os.path.exists('/home/user/lines.txt') or not os.path.exists('/home/user/list.txt'))\n```\n</test>"
)
TEST = (
    "<test>\nimport json, sys\n"
    "sys.exit(int(open('/home/user/lines.txt').read()) != json.load(sys.stdin)['lines'])\n</test>"
)
SOLUTION = "<think>Count.</think><command>wc -l < /home/user/list.txt > /home/user/lines.txt</command>"


class TaskWriter(PlannerServer):
    """Answers each stage by what it asks for; `answers` replaces some of the answers by stage."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__()
        self.answers = {"description": DESCRIPTION, "initial": TREE, "final": TEST, "solve": SOLUTION, **answers}

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        chat = body["messages"]
        stage = _stage(chat[0]["content"])
        text = self.answers[stage]
        if stage == "solve" and len(chat) > 1:
            text = "<action>done</action>"
        return {"role": "assistant", "content": text}


def _stage(question: str) -> str:
    signs = {"Invent a task": "description", "Write a bash script": "initial", "checks them after": "final"}
    return next((stage for sign, stage in signs.items() if sign in question), "solve")


def stages_asked(server: TaskWriter) -> list[str]:
    """Which stages the server was asked about, in order."""
    return [_stage(json.loads(json.dumps(body))["messages"][0]["content"]) for body in server.asked]
