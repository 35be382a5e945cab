"""The page over real sockets, with HTTP clients that share no code with the server."""

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser

import msgspec
import pytest

from sentinel.metrics.registry import Metrics
from sentinel.util.errors import PermanentError
from sentinel.web.server import MAX_CONNECTIONS, Server, parse_listen, serve
from sentinel.web.view import View
from tests.web import samples

TIMEOUT_S = 120.0
SECTIONS = ["job", "warnings", "numbers", "course", "ranks", "incidents", "findings", "events"]


class Running:
    """A server on an event loop in a thread, as its clients see it."""

    def __init__(self, view: Callable[[], View], listen: str = "127.0.0.1:0") -> None:
        self.metrics = Metrics()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.server: Server = self.do(serve(listen, view, self.metrics))
        self.address = self.server.url.removeprefix("http://")
        self.port = int(self.address.rpartition(":")[2])

    def do(self, work):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)

    def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, str]:
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            return response, response.read().decode()
        finally:
            connection.close()

    def end(self) -> None:
        try:
            self.do(self.server.close())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(TIMEOUT_S)
            self.loop.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def make(view: Callable[[], View] = samples.view, listen: str = "127.0.0.1:0") -> Running:
        running.append(Running(view, listen))
        return running[-1]

    yield make
    for server in running:
        server.end()


class Outline(HTMLParser):
    """Sections, tags and text of a page as an HTML parser understands them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: list[str | None] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "section":
            self.sections.append(dict(attrs).get("id"))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_says_what_a_person_wants_to_know(start: Callable[..., Running]) -> None:
    response, page = start().ask("/")
    assert response.status == 200
    outline = Outline(page)
    assert outline.sections == SECTIONS
    for told in (
        "llama-7b",
        "running",
        "41874",
        "3.33 s",
        "0.66",
        "3.77 s lately, 3.52 s usually, at most 12.5 s",
        "3 of 5",
        "1 infrastructure, 1 job, 1 free",
        "16h 56m",
        "GPU 0000:18:00.0 fell off the bus (XID 79), which ended rank 2.",
        "Reset or reseat the GPU",
        "Iteration 41001 was seen.",
        "873 iterations, 1m 04s, 256 GPU-seconds",
        "skipped, rank 2 is lost",
        "Degraded: The log of rank 3 vanished.",
        "rank 0 pid 4711\n  allreduce (torch/distributed.py:2050)\n  train (train.py:88)",
        "4714",
        "XID 79",
        "4 ranks run.",
    ):
        assert told in outline.text, told
    assert "secret-token" not in page


def test_text_from_logs_is_shown_and_can_do_nothing(start: Callable[..., Running]) -> None:
    response, page = start().ask("/")
    outline = Outline(page)
    assert outline.tags.count("script") == 1
    assert "<script>alert(1)</script>" in outline.text
    assert not {"onerror", "onclick", "style"} & outline.attributes
    assert not set("\x1b\x07\u202e") & set(page)
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == 2


def test_the_fragment_is_the_same_sections_for_the_script(start: Callable[..., Running]) -> None:
    running = start()
    assert Outline(running.ask("/fragment")[1]).sections == SECTIONS
    assert running.ask("/fragment")[1] in running.ask("/")[1]


def test_the_json_is_the_view(start: Callable[..., Running]) -> None:
    response, body = start().ask("/api/v1/status")
    assert response.headers["Content-Type"].startswith("application/json")
    assert msgspec.json.decode(body, type=View) == samples.view()
    assert json.loads(body)["restarts"]["left"] == 3


def test_metrics_are_served_in_the_text_format(start: Callable[..., Running]) -> None:
    running = start()
    running.metrics.decision("NoRoom")
    response, body = running.ask("/metrics")
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'sentinel_decisions_total{reason="NoRoom"} 1' in body


def test_health_tells_the_truth_about_the_control_loop(start: Callable[..., Running]) -> None:
    age_s: list[float | None] = [0.1]
    running = start(lambda: samples.view(loop_age_s=age_s[0]))
    assert running.ask("/healthz")[0].status == 200
    age_s[0] = 60.0
    response, body = running.ask("/healthz")
    assert (response.status, body) == (503, "the control loop has not turned for 60 s\n")
    assert "has not turned for 1m 00s" in running.ask("/")[1]
    age_s[0] = None
    assert running.ask("/healthz")[0].status == 503


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9810", "127.0.0.1.evil.example", "192.0.2.1", "[::2]"]
)
@pytest.mark.parametrize("path", ["/", "/api/v1/status", "/metrics", "/nothing"])
def test_a_foreign_host_name_is_refused(start: Callable[..., Running], host: str, path: str) -> None:
    response, body = start().ask(path, headers={"Host": host})
    assert response.status == 421
    assert "llama" not in body


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "127.0.0.2:80", "[::1]:9810", "[::1]"]
)
def test_loopback_names_are_served_on_any_port(start: Callable[..., Running], host: str) -> None:
    assert start().ask("/healthz", headers={"Host": host})[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_page_takes_no_orders(start: Callable[..., Running], method: str) -> None:
    response, _ = start().ask("/", method)
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"


def test_head_answers_without_a_body(start: Callable[..., Running]) -> None:
    response, body = start().ask("/", "HEAD")
    assert (response.status, body) == (200, "")


def test_an_unknown_path_is_not_found(start: Callable[..., Running]) -> None:
    assert start().ask("/nothing")[0].status == 404


def test_a_request_that_fails_is_counted_and_the_next_one_served(start: Callable[..., Running]) -> None:
    views: list[Callable[[], View]] = [samples.view]

    def broken() -> View:
        raise RuntimeError("a secret of the inside")

    running = start(lambda: views[0]())
    views[0] = broken
    response, body = running.ask("/")
    assert response.status == 500
    assert "secret" not in body
    views[0] = samples.view
    assert running.ask("/")[0].status == 200
    assert 'sentinel_exceptions_total{place="request"} 1\n' in running.ask("/metrics")[1]


def test_a_taken_port_falls_back_to_a_free_one(start: Callable[..., Running]) -> None:
    first = start()
    second = start(listen=f"127.0.0.1:{first.port}")
    assert second.port != first.port
    assert second.ask("/healthz")[0].status == 200


def test_idle_connections_do_not_lock_anybody_out(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest is served at once and the oldest are closed to make room, not only when they are old."""
    monkeypatch.setattr("sentinel.web.server.CONNECTION_S", 1000.0)
    running = start()
    idle = [
        socket.create_connection(("127.0.0.1", running.port), TIMEOUT_S) for _ in range(4 * MAX_CONNECTIONS)
    ]
    try:
        assert running.ask("/healthz")[0].status == 200
        assert idle[0].recv(1) == b""
    finally:
        for client in idle:
            client.close()


def test_a_client_that_never_finishes_its_request_is_closed(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.web.server.CONNECTION_S", 0.2)
    with socket.create_connection(("127.0.0.1", start().port), TIMEOUT_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert client.recv(1) == b""


def test_after_close_nobody_listens(start: Callable[..., Running]) -> None:
    running = start()
    running.do(running.server.close())
    with pytest.raises(ConnectionRefusedError):
        running.ask("/healthz")


@pytest.mark.parametrize("listen", ["0.0.0.0:9810", "192.0.2.1:80", "[::]:9810", "example.org:80", ":9810"])
def test_only_loopback_is_listened_on(listen: str) -> None:
    with pytest.raises(PermanentError, match="loopback"):
        parse_listen(listen)


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000", ""])
def test_a_listen_address_without_a_port_is_explained(listen: str) -> None:
    with pytest.raises(PermanentError, match="ADDRESS:PORT"):
        parse_listen(listen)


def test_an_ipv6_address_is_split_from_its_port() -> None:
    assert parse_listen("[::1]:0") == ("::1", 0)
    assert parse_listen("localhost:9810") == ("127.0.0.1", 9810)
