"""A hub on the loopback: the few routes that huggingface_hub calls to make a repository and to commit files to it."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OID = "a" * 40


@dataclass
class Hub:
    """What the hub was told: `hub.files["me/model"]["README.md"]`."""

    address: str = ""
    token: str = "hf_secret"
    created: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    files: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    commits: list[str] = field(default_factory=list[str])


@contextmanager
def a_hub() -> Iterator[Hub]:
    """A hub until the end of the block."""
    hub = Hub()

    class Routes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._answer(401, {"error": "Invalid user token."})
            elif self.path == "/api/repos/create":
                said = json.loads(body)
                hub.created.append(said)
                name = f"{said['organization']}/{said['name']}"
                hub.files.setdefault(name, {})
                self._answer(200, {"url": f"{hub.address}/{name}", "name": name})
            elif self.path == "/api/validate-yaml":
                self._answer(200, {"warnings": [], "errors": []})
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", self.path):
                files = json.loads(body)["files"]
                plain = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in files]
                self._answer(200 if found[1] in hub.files else 404, {"files": plain})
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", self.path):
                self._commit(found[1], [json.loads(line) for line in body.decode().splitlines()])
            else:
                self._answer(404, {"error": f"no route {self.path}"})

        def _commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
            hub.commits += [line["value"]["summary"] for line in lines if line["key"] == "header"]
            files = [line["value"] for line in lines if line["key"] == "file"]
            hub.files[repo] |= {each["path"]: base64.b64decode(each["content"]) for each in files}
            url = f"{hub.address}/{repo}/commit/{OID}"
            self._answer(200, {"success": True, "commitOid": OID, "commitUrl": url, "pullRequestUrl": None})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            encoded = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Routes) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join(60)
