"""Ctrl-C: one press may come twice, and whoever presses on is heard."""

import asyncio
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from sentinel.core.recovery.events import EndRequested
from sentinel.local_run import orders as session_orders
from sentinel.local_run.orders import SessionOrders
from tests.controller_world import World


def pressed(state: Path, monkeypatch: pytest.MonkeyPatch, *at_s: float) -> list[EndRequested]:
    """What is asked of the controller where Ctrl-C arrives at these times."""

    async def run() -> list[EndRequested]:
        world = World(state)
        await world.launch()
        asked: list[EndRequested] = []
        monkeypatch.setattr(world.controller, "request_end", lambda _, end: asked.append(end))
        orders = SessionOrders("j", world.controller, None, None, lambda: None, lambda: None)  # type: ignore[arg-type]
        for now_s in at_s:
            monkeypatch.setattr(session_orders, "time", SimpleNamespace(monotonic=lambda now_s=now_s: now_s))
            orders.signalled(signal.SIGINT)
        await world.controller.close()
        return asked

    return asyncio.run(run())


@pytest.mark.parametrize(
    "at_s",
    [
        (
            100.0,
            100.1,
            102.0,
        ),  # the terminal's, the same passed on by a program that runs Sentinel, a second one
        (100.0, 100.2, 100.4),  # a person in a hurry
    ],
)
def test_a_second_ctrl_c_kills_and_one_that_comes_twice_is_one(
    at_s: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pressed(tmp_path, monkeypatch, *at_s)
    assert (first.save, first.grace_s) == (True, 30.0)
    assert (second.save, second.grace_s) == (False, 0.0)


def test_one_that_comes_twice_kills_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(pressed(tmp_path, monkeypatch, 100.0, 100.1)) == 1
