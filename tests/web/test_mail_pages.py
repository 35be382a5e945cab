"""Mails in a real Chromium, as a phone shows them: nothing sticks out, and all of it can be read in both modes."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from sentinel.core.model import Stage
from sentinel.notify.compose import MailRequest, digest_request
from sentinel.notify.compose_many import nodes_digest
from sentinel.notify.compose_nodes import node_request
from sentinel.notify.message import Renderer
from sentinel.settings import Settings
from tests.core.fleet_world import OPEN, World, a_nic_finding
from tests.notify.mail_world import HOST, OPENED_WALL_S
from tests.notify.test_mail_nodes import PLACE, Told, a_lost_rack, isolated, settings_for, the
from tests.web.browser import Browser
from tests.web.fleet_samples import troubled
from tests.web.screenshots import of_a_job, summary

SETTINGS = Settings(page_url="https://sentinel.example", dashboard_url="https://grafana.example")
LONG = "/mnt/" + "a-folder-with-a-long-name/" * 12 + "step_000000042.pt"


def of_a_node() -> MailRequest:
    record = the(isolated("gpu-7"))
    return node_request(record, record.mails[0], settings_for(1), PLACE, 0.0)


def digest() -> MailRequest:
    return digest_request([of_a_job(Stage.STARTED, (LONG,)), of_a_node()] * 3, SETTINGS, HOST, OPENED_WALL_S)


def digest_of_nodes() -> MailRequest:
    """The first happened on the day before."""
    world = isolated(*(f"gpu-{number:05}.rack-17.cluster.example" for number in range(6)))
    requests = [
        node_request(record, record.mails[0], settings_for(1), PLACE, 0.0, brief=True)
        for record in world.records.values()
    ]
    earlier = structs.replace(requests[0], at_wall_s=requests[0].at_wall_s - 86_400)
    return nodes_digest([earlier, *requests[1:]], SETTINGS, PLACE, world.now.wall_s)


def of_many(world: World) -> MailRequest:
    """The one that tells of most of them."""
    told = Told(world, settings_for(1))
    keys = Counter(one.request.message_id for one in told.notifier._requests(world.now))
    ((most, _),) = keys.most_common(1)
    return next(
        one for one in told.notifier._requests(world.now) if one.request.message_id == most
    ).complete()


def of_a_network() -> MailRequest:
    names = [f"gpu-{number:05}.rack-17.cluster.example" for number in range(6)]
    world = World(names, OPEN)
    for name in names:
        world.shows(name, a_nic_finding(evidence=(f"mlx5_0/1 of {name} is down",)))
    world.decide()
    return of_many(world)


def of_a_cause() -> MailRequest:
    world = isolated(*(f"gpu-{number:05}.rack-17.cluster.example" for number in range(9)), cause_nodes=3)
    return of_many(world)


MAILS = {
    "started": lambda: of_a_job(Stage.STARTED, (LONG,)),
    "recovered": lambda: of_a_job(Stage.RECOVERED, (LONG,)),
    "gave up": lambda: of_a_job(Stage.GAVE_UP, (LONG,)),
    "notice": lambda: of_a_job(Stage.NOTICE, (LONG,)),
    "network incident": of_a_network,
    "one code on many nodes": of_a_cause,
    "lost rack": lambda: of_many(a_lost_rack()[0]),
    "summary": lambda: summary(troubled(size=64, jobs=20)),
    "node": of_a_node,
    "digest": digest,
    "digest of nodes": digest_of_nodes,
}


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as made:
        made.size(390, 844, phone=True)
        yield made


@pytest.mark.parametrize(("dark", "stripped"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("what", list(MAILS))
def test_a_mail_fits_a_phone_and_can_be_read(
    phone: Browser, tmp_path: Path, what: str, dark: bool, stripped: bool
) -> None:
    """Contrast of text on its ground is at least 4.5 (WCAG 2.1, AA). `stripped`: by a reader that takes no styles but
    those of single elements, as several do: https://www.caniemail.com/features/html-style/"""
    contrast = Path(__file__).with_name("contrast.js").read_text()
    page = tmp_path / "mail.html"
    html = Renderer().html(MAILS[what]())
    if stripped:
        html, styles = re.subn(r"<style>.*?</style>", "", html, flags=re.S)
        assert styles == 1
    page.write_text(html)
    phone.dark(dark)
    phone.open(page.as_uri())
    assert phone.run("document.documentElement.scrollWidth") <= 390
    assert phone.run(f"({contrast})(document.body)") == []
    if what != "summary":  # nothing is asked for
        todo = "document.querySelector('.todo').getBoundingClientRect().bottom <= innerHeight"
        assert phone.run(todo), "what to do stands on the first screen"
