"""Real HTTP servers that webhooks are told by, and what one who gets a message checks: its body and its signature."""

import copy
import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.notify.mail_world import REPO

KEY = "s3cret"
SCHEMA: dict[str, Any] = json.loads((REPO / "docs" / "webhook.schema.json").read_text())


def validator() -> Draft202012Validator:
    """By the schema in the docs, which lets fields be added later: here none is there that it does not name."""
    assert SCHEMA["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    Draft202012Validator.check_schema(SCHEMA)
    closed = copy.deepcopy(SCHEMA)
    for one in closed["$defs"].values():
        one["additionalProperties"] = False
    return Draft202012Validator(closed)


def against_schema(body: Any) -> list[str]:
    """What is wrong with it, each with where it is."""
    return [f"{error.json_path}: {error.message}" for error in validator().iter_errors(body)]


def texts(body: Any) -> list[str]:
    """All that is written in it, as it is shown: JSON would show control characters escaped."""
    if isinstance(body, str):
        return [body]
    parts = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return [text for part in parts for text in texts(part)]


def signature(headers: dict[str, str], body: bytes, key: str = KEY) -> str:
    """What docs/mail.md tells a receiver to compare with."""
    signed = headers["X-Sentinel-Timestamp"].encode() + b"." + body
    return f"sha256={hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()}"


def key_file(folder: Path, text: str = KEY, mode: int = 0o600, name: str = "key") -> str:
    path = folder / name
    path.write_text(text + "\n")
    path.chmod(mode)
    return str(path)


class Hook:
    """A server that keeps what it is sent. `answer(number)` gives status and body."""

    def __init__(self, answer: Callable[[int], tuple[int, str]] = lambda number: (200, "ok")) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.got.append((dict(self.headers), body))
                status, text = answer(len(hook.got))
                self.send_response(status)
                if status in (301, 302, 307):
                    self.send_header("Location", f"{hook.url}/elsewhere")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def bodies(self) -> list[Any]:
        """Each that is not Slack's is one by the schema."""
        found = [(headers, json.loads(body)) for headers, body in self.got]
        for headers, body in found:
            if "X-Sentinel-Delivery" in headers:
                assert against_schema(body) == []
        return [body for _, body in found]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hooks() -> Iterator[list[Hook]]:
    made: list[Hook] = []
    yield made
    for one in made:
        one.close()
    for one in made:
        one.bodies()


def serve(hooks: list[Hook], answer: Callable[[int], tuple[int, str]] = lambda number: (200, "ok")) -> Hook:
    hooks.append(Hook(answer))
    return hooks[-1]
