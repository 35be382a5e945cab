"""What a person comes for stands on the first screen, without scrolling: on a laptop and on a phone."""

from collections.abc import Iterator

import pytest

from sentinel.web.server import Place
from tests.web.browser import Browser
from tests.web.fleet_samples import JOB, Site, troubled

SCREENS = {"laptop": (1280, 720), "phone": (390, 844)}
# Each is the text of an element, or of a part of one, that is seen as a whole.
WRONG = {
    "/": (
        "1024",  # nodes
        "Isolated",
        "1 recovering",
        "gpu-00009",
        "unreachable",
        "Node gpu-00009 cannot be reached: its agent and its kubelet are silent. It may still run.",
        "back when: it is heard again, or proved dead and gone",
    ),
    "/jobs": ("research/llama-70b", "Starting", "There is room for 8 pods on 8 nodes, without gpu-00009."),
    f"/jobs/{JOB}": (
        "Starting",
        "There is room for 8 pods on 8 nodes, without gpu-00009.",
        "GPU 0000:18:00.0 fell off the bus (XID 79), which ended rank 2.",
        "Reset or reseat the GPU; the node needs a cold boot.",
        "41874",  # iteration
        "3 of 5",  # restarts left
    ),
    "/jobs/research/job.batch/run-0003": (
        "error",
        "No module named 'flash_attn'. A restart cannot help.",
    ),
    "/nodes/gpu-00003": (
        "isolated",
        "GPU 0000:18:00.0: XID 79 GPU has fallen off the bus.",
        "the node must be restarted; then no such finding may stand for 10 min",
        "llama-70b",  # what runs there
        "fatal",
    ),
}
SEEN = """((said) => {
  const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const at = node.data.indexOf(said);
    if (at < 0) continue;
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + said.length);
    const box = range.getBoundingClientRect();
    if (box.height && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth) return true;
  }
  return false;
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Nodes in trouble, Sentinel itself in more of it, jobs that recover and that were given up."""
    world = troubled(size=1024, jobs=60)
    world.troubles += [f"The copy of a kind is {number} min old: its watch breaks." for number in range(9)]
    made = Site(world, list[Place]())
    yield made
    made.close()


@pytest.mark.parametrize("path", WRONG)
@pytest.mark.parametrize("screen", SCREENS)
def test_the_answer_stands_on_the_first_screen(browser: Browser, site: Site, screen: str, path: str) -> None:
    width, height = SCREENS[screen]
    browser.size(width, height, phone=screen == "phone")
    browser.open(site.url + path)
    below = [one for one in WRONG[path] if not browser.run(f"{SEEN}({one!r})")]
    assert below == [], browser.run("document.querySelector('main').innerText.slice(0, 2000)")
