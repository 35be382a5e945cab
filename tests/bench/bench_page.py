"""The status page of a cluster of 10 000 nodes and 2 000 jobs in a real Chromium.

Pages, HTTP, script and browser are the real ones; the picture that they are made of is one of tests/web, in a process
of its own as a controller's is, of which 500 nodes are isolated. Load: from the navigation to the page's being laid out
and its script's having begun. Update: from a node's isolation in that picture to its being seen on a page that was open
already, which asks every 2 s. Rendering: what one look costs the controller's loop, which nothing else can use
meanwhile; who looks at the same page within a second costs nothing, and an unchanged one is not sent (304).
"""

import asyncio
import contextlib
import gc
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sentinel.core.now import Now
from sentinel.web.server import Asked, Place, Told
from tests.bench.harness import Row, at_most
from tests.web.browser import Browser
from tests.web.fleet_samples import Site, troubled

NODES, JOBS, ISOLATED = 10_000, 2000, 500
PATHS = {"fleet": "/", "nodes": "/nodes", "nodes, found by name": "/nodes?q=gpu-0777", "jobs": "/jobs"}


def world() -> Any:
    made = troubled(size=NODES, jobs=JOBS)
    for name in list(made.nodes)[100 : 100 + ISOLATED]:
        made.isolate(name)
    return made


def _serving(link: Connection) -> None:
    """The controller's side. Each order isolates a node."""
    made = world()
    site = Site(made)
    made_at_s = time.monotonic()

    def now() -> Now:
        return Now(mono_s=9000.0 + time.monotonic() - made_at_s, wall_s=made.now.wall_s)

    site.site._clock = now
    link.send(site.url)
    while (name := link.recv()) is not None:
        made.isolate(name)
        link.send(name)
    site.close()


@contextlib.contextmanager
def served() -> Iterator[tuple[str, Connection]]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serving, args=(theirs,))
    process.start()
    try:
        yield ours.recv(), ours
        ours.send(None)
        process.join(30)
    finally:
        process.kill()


def rendering(rounds: int) -> dict[str, list[float]]:
    """Seconds that one look at each page takes the loop."""
    made = world()
    site = Site(made)
    places = {place.path: place for place in site.site.places()}
    taken: dict[str, list[float]] = {name: [] for name in PATHS}

    async def asks(place: Place, asked: Asked) -> Told:
        return await place.answer(asked)

    try:
        for _ in range(rounds):
            for name, path in PATHS.items():
                site.later()
                where, _, query = path.partition("?q=")
                asked = Asked(names={}, query={"q": query} if query else {})
                place = places["/fragment" if where == "/" else f"/fragment{where}"]
                begun_s = time.perf_counter()
                asyncio.run(asks(place, asked))
                taken[name].append(time.perf_counter() - begun_s)
    finally:
        site.close()
    return taken


def run(quick: bool) -> list[Row]:
    rounds = 5 if quick else 30
    gc.collect()
    rows = [
        at_most(f"rendering: {name}, median", 0.1, statistics.median(taken), "s")
        for name, taken in rendering(rounds).items()
    ]
    with tempfile.TemporaryDirectory() as folder, served() as (url, link), Browser(Path(folder)) as browser:
        browser.size(1100, 900)
        for name, path in PATHS.items():
            loads, bodies = [], []
            for _ in range(rounds):
                browser.open(url + path)
                browser.until("performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
                loads.append(browser.run("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000)
                bodies.append(
                    browser.run("performance.getEntriesByType('navigation')[0].encodedBodySize") / 1024
                )
            rows.append(at_most(f"load: {name}, median", 1.0, statistics.median(loads), "s"))
            rows.append(at_most(f"size: {name}", 256.0, max(bodies), "KiB"))
        browser.open(f"{url}/nodes/gpu-09000")
        updates, swaps = [], []
        for number in range(rounds // 2):
            node = f"gpu-{9000 + number:05d}"
            browser.open(f"{url}/nodes/{node}")
            begun_s = time.monotonic()
            link.send(node)
            link.recv()
            browser.until("document.querySelector('#standing').textContent.startsWith('Isolated')")
            updates.append(time.monotonic() - begun_s)
        for _ in range(rounds):
            browser.open(f"{url}/nodes")
            script = (
                "(async () => { const text = await (await fetch('/fragment/nodes')).text();"
                " const begun = performance.now();"
                " const one = document.createElement('template'); one.innerHTML = text;"
                " document.getElementById('rows').replaceWith(one.content.getElementById('rows'));"
                " document.body.offsetHeight; return performance.now() - begun; })()"
            )
            swaps.append(browser.run(script) / 1000)
        rows.append(at_most("isolated → seen on an open page, median", 3.0, statistics.median(updates), "s"))
        rows.append(
            at_most("a table of 100 nodes swapped and laid out, median", 0.1, statistics.median(swaps), "s")
        )
    return rows
