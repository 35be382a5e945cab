"""What a node's agent serves on loopback: /metrics, /healthz and /findings."""

import socket
from typing import TYPE_CHECKING, Any

import msgspec

from sentinel import __version__
from sentinel.core.health import CheckResult
from sentinel.core.now import Now
from sentinel.metrics import declared
from sentinel.metrics.exposition import CONTENT_TYPE
from sentinel.util.clock import system_now

if TYPE_CHECKING:
    from sentinel.agent.node import NodeAgent
    from sentinel.web.server import Route

Answer = tuple[int, str, bytes]


def routes(agent: "NodeAgent") -> "tuple[Route, ...]":
    from sentinel.web.server import Route

    return (
        Route("/metrics", lambda: numbers(agent)),
        Route("/healthz", lambda: health(agent)),
        Route("/findings", lambda: findings(agent)),
    )


def numbers(agent: "NodeAgent") -> Answer:
    """Ages and findings as they are now, then all numbers."""
    now, metrics = system_now(), agent.metrics
    metrics.findings(agent.runner.book.active())
    for result in agent.runner.results():
        metrics.check_age(result.check, max(0.0, now.mono_s - result.at_mono_s))
    metrics.loop_lag(agent.health.lag_s(agent.health.now_s()))
    metrics.degraded(len(agent.health.troubles))
    metrics.replace(declared.AGENT, {(agent.link.node,): 1})
    agent.link.measure()
    return 200, CONTENT_TYPE, metrics.render()


def health(agent: "NodeAgent") -> Answer:
    """503 with the reasons where the agent itself cannot do its work. What it finds wrong with the node, and a check
    that hangs in a driver, are findings: to start the agent again would not help."""
    problems = agent.health.problems(agent.health.now_s(), agent.runner.late(system_now()))
    text = "".join(f"{problem}\n" for problem in problems) or "ok\n"
    return 503 if problems else 200, "text/plain; charset=utf-8", text.encode()


def findings(agent: "NodeAgent") -> Answer:
    now = system_now()
    document = {
        "node": socket.gethostname(),
        "boot_id": agent.runner.boot_id,
        "version": __version__,
        "at_wall_s": now.wall_s,
        "agent_healthy": not agent.health.problems(agent.health.now_s(), agent.runner.late(now)),
        "findings": agent.runner.book.active(),
        "dropped": agent.runner.book.dropped,
        "checks": [_check(result, now) for result in agent.runner.results()],
    }
    return 200, "application/json", msgspec.json.encode(document) + b"\n"


def _check(result: CheckResult, now: Now) -> dict[str, Any]:
    return {
        "check": result.check,
        "state": result.state.value,
        "detail": result.detail,
        "took_s": result.took_s,
        "age_s": max(0.0, now.mono_s - result.at_mono_s),
        "findings": len(result.findings),
    }
