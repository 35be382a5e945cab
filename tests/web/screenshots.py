"""Pictures of the status page and of mails for the docs: `python -m tests.web.screenshots docs/images`."""

import sys
import tempfile
from pathlib import Path
from zoneinfo import ZoneInfo

from msgspec import structs

from sentinel.controller.daemon.daily import gathered
from sentinel.core.fleet.model import Kind, NodeMail
from sentinel.core.model import Pace, Phase, Stage, Step
from sentinel.notify.compose import MailRequest, mail_request
from sentinel.notify.compose_nodes import Place, node_request
from sentinel.notify.compose_summary import STAGE, summary_request
from sentinel.notify.message import Renderer
from sentinel.settings import Mail as MailSettings
from sentinel.settings import Settings
from tests.notify.mail_world import HOST, OPENED_WALL_S, a_job, an_incident
from tests.web.browser import Browser
from tests.web.fleet_samples import JOB, Site, Sources, World, troubled
from tests.web.samples import HOSTILE

SETTINGS = Settings(page_url="https://sentinel.example", mail=MailSettings(admins=("admins@example.com",)))
PLACE = Place(name="sentinel-system", cluster="https://cluster.example")
WIDE, TALL, PHONE = (1100, 900), (1100, 1750), (390, 844)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    world = troubled(size=1024, jobs=60)
    _as_usual(world)
    site = Site(world)
    node = list(world.nodes)[3]
    shots = (
        ("page-fleet", "/", WIDE, False),
        ("page-job", f"/jobs/{JOB}", TALL, False),
        ("page-node-dark", f"/nodes/{node}", WIDE, True),
        ("page-phone", "/", PHONE, False),
    )
    try:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place,
            Browser(Path(place)) as browser,
        ):
            for name, path, (width, height), dark in shots:
                browser.size(width, height, phone=width < 500)
                browser.dark(dark)
                browser.open(site.url + path)
                browser.run("document.body.classList.add('signed')")
                path = folder / f"{name}.webp"
                path.write_bytes(browser.picture("webp"))
                print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")
            _mail(browser, folder / "mail-dark.webp", Path(place), of_a_job(Stage.RECOVERED), dark=True)
            _mail(browser, folder / "mail-gave-up.webp", Path(place), of_a_job(Stage.GAVE_UP), dark=False)
            _mail(browser, folder / "mail-node.webp", Path(place), _of_a_node(world, node), dark=False)
            _mail(browser, folder / "mail-summary.webp", Path(place), summary(world), dark=False)
    finally:
        site.close()


def _as_usual(world: World) -> None:
    """Without the lines that tests put there to break the page."""
    (job, newest), *others = world.jobs
    if newest is not None:
        verdict = structs.replace(newest.verdict, evidence=newest.verdict.evidence[:1])
        newest = structs.replace(newest, verdict=verdict)
    world.jobs = [(job, newest), *others]
    world.events = tuple(one for one in world.events if HOSTILE not in one.sentence)


def of_a_job(stage: Stage, stacks: tuple[str, ...] = ()) -> MailRequest:
    before = [Pace(OPENED_WALL_S - 3.3 * (20 - k), 3300.0 if k != 18 else 12_000.0) for k in range(20)]
    after = [Pace(OPENED_WALL_S + 120 + 3.4 * k, 3400.0) for k in range(5)]
    incident = an_incident(stages=(Stage.STARTED, stage), pace=(*before, *after), stacks=stacks)
    if stage is Stage.GAVE_UP:
        said = "Processes that cannot be ended: rank 3 (pid 4142, state D). A reboot is needed."
        end = Step(phase=Phase.FAILED, wall_s=OPENED_WALL_S + 61, reason="StopStuck", sentence=said)
        over = {"phase": end.phase, "reason": end.reason, "sentence": said}
        incident = structs.replace(
            incident, **over, steps=(incident.steps[0], end), pace=tuple(before), lost=None
        )
    return mail_request(incident, a_job(), stage, SETTINGS, HOST, OPENED_WALL_S + 200)


def _of_a_node(world: World, node: str) -> MailRequest:
    (record,) = (one for one in world.records.values() if one.node == node and one.state.open)
    mail = NodeMail(stage=_TOLD[record.kind], wall_s=record.since_wall_s)
    told = structs.replace(record, mails=(mail,))
    return node_request(told, mail, SETTINGS, PLACE, world.now.wall_s)


_TOLD = {Kind.FAULT: "FatalFinding", Kind.HOLD: "HeldByPerson", Kind.SILENCE: "Unreachable"}


def summary(world: World) -> MailRequest:
    """Of the day of that cluster."""
    until_s = world.now.wall_s
    incident = an_incident(
        stages=(Stage.STARTED, Stage.RECOVERED),
        job=JOB,
        opened_wall_s=until_s - 990,
        closed_wall_s=until_s - 900,
    )
    for id, record in world.records.items():
        stage = "Braked" if record.held_by else _TOLD[record.kind]
        world.records[id] = structs.replace(
            record, mails=(NodeMail(stage=stage, wall_s=record.since_wall_s),)
        )
    day = structs.replace(
        gathered(Sources(world), [], until_s - 86_400, until_s, world.now),
        incidents=[(incident, a_job(name=JOB))],
    )
    mail = NodeMail(stage=STAGE, wall_s=until_s)
    return summary_request(day, mail, SETTINGS, PLACE, ZoneInfo("Europe/Berlin"), until_s)


def _mail(browser: Browser, path: Path, place: Path, request: MailRequest, *, dark: bool) -> None:
    (place / "mail.html").write_text(Renderer().html(request))
    browser.size(430, 900, phone=True)
    browser.dark(dark)
    browser.open((place / "mail.html").as_uri())
    path.write_bytes(browser.picture("webp"))
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
