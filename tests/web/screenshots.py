"""Pictures of the status page and of a mail for the docs: `python -m tests.web.screenshots docs/images`."""

import sys
import tempfile
from pathlib import Path

from sentinel.core.model import Pace, Stage
from sentinel.notify.compose import mail_request
from sentinel.notify.message import Renderer
from sentinel.settings import Settings
from tests.notify.mail_world import HOST, OPENED_WALL_S, a_job, an_incident
from tests.web.browser import Browser
from tests.web.fleet_samples import JOB, Site, troubled

WIDE, PHONE = (1100, 900), (390, 844)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    world = troubled(size=1024, jobs=60)
    site = Site(world)
    node = list(world.nodes)[3]
    shots = (
        ("page-fleet", "/", WIDE, False),
        ("page-job", f"/jobs/{JOB}", WIDE, False),
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
            _mail(browser, folder / "mail-dark.webp", Path(place))
    finally:
        site.close()


def _mail(browser: Browser, path: Path, place: Path) -> None:
    before = [Pace(OPENED_WALL_S - 3.3 * (20 - k), 3300.0 if k != 18 else 12_000.0) for k in range(20)]
    after = [Pace(OPENED_WALL_S + 120 + 3.4 * k, 3400.0) for k in range(5)]
    incident = an_incident(stages=(Stage.STARTED, Stage.RECOVERED), pace=(*before, *after))
    settings = Settings(page_url="https://sentinel.example")
    request = mail_request(incident, a_job(), Stage.RECOVERED, settings, HOST, OPENED_WALL_S + 200)
    (place / "mail.html").write_text(Renderer().html(request))
    browser.size(430, 900, phone=True)
    browser.dark(True)
    browser.open((place / "mail.html").as_uri())
    path.write_bytes(browser.picture("webp"))
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
