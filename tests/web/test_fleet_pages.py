"""A cluster's pages in a real Chromium: what they show, that text cannot act, and that they work for everybody."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from sentinel.core.fleet.model import Brake, CodeWord, Kind, Say, State
from sentinel.web import runbooks
from sentinel.web.server import Asked, Place, Told
from tests.web import samples
from tests.web.browser import Browser
from tests.web.fleet_samples import HOSTILE_NODE, JOB, WALL_S, Site, World, troubled

HOSTILE = (
    "</td></table><script>window.hit=1</script><img src=x onerror='window.hit=1'>\x1b[2J\u202e"
    + samples.HOSTILE
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as made:
        made.size(1100, 900)
        yield made


@pytest.fixture
def sites() -> Iterator[list[Site]]:
    made: list[Site] = []
    yield made
    for one in made:
        one.close()


def serve(sites: list[Site], world: World, *places: Place) -> Site:
    sites.append(Site(world, list(places)))
    return sites[-1]


def text(browser: Browser) -> str:
    return str(browser.run("document.querySelector('main').innerText"))


def test_the_fleet_is_seen_at_a_glance_and_each_thing_leads_to_its_page(
    browser: Browser, sites: list[Site]
) -> None:
    site = serve(sites, troubled())
    browser.open(site.url)
    shown = text(browser)
    for told in (
        "40\nnothing known against 36",
        "gpu-00003",
        "held back",
        "unreachable",
        "by anna@example.com",
    ):
        assert told in shown, told
    assert "as many nodes as are allowed at a time are out of service, and nobody" in shown
    assert "research/llama-70b" in shown
    assert "5 of 4" in shown, "the brake"
    browser.click("a[href='/nodes/gpu-00003']")
    browser.until("location.pathname === '/nodes/gpu-00003' && document.title.startsWith('gpu-00003')")
    shown = text(browser)
    for told in (
        "isolated",
        "XID 79",
        "pool a100",
        "The last protected pod has left it.",
        "llama-70b-worker-3",
    ):
        assert told in shown, told
    assert browser.run("document.querySelectorAll('#history details').length") == 2, "earlier records too"
    browser.click(f"a[href='/jobs/{JOB}']")
    browser.until("document.querySelector('#ranks table') !== null")
    shown = text(browser)
    for told in ("41874", "gpu-00002", "Rank 2 was killed by signal 9.", "RoomFound", "0.67"):
        assert told in shown, told
    browser.run("history.back()")
    browser.until("document.querySelector('#history') !== null")
    browser.open(f"{site.url}/nodes/nobody")
    assert "There is no node nobody" in text(browser)
    assert not browser.problems


def test_what_many_nodes_have_and_what_people_say_of_it_stands_at_the_top(
    browser: Browser, sites: list[Site]
) -> None:
    world = troubled()
    (found,) = world.isolate("gpu-00020").findings
    found = structs.replace(found, code=f"XID 31 {HOSTILE}")
    for name in ("gpu-00021", "gpu-00022"):
        world.isolate(
            name, state=State.HELD, held_by=Brake.COMMON_CAUSE, cause=(found.code,), findings=(found,)
        )
    word = CodeWord(code="XID 45", say=Say.IGNORE, by="anna", why=HOSTILE)
    world.fleet.codes, world.fleet.codes_problem = (word,), "what is said of XID 9 cannot be read"
    site = serve(sites, world)
    for path in ("/", "/nodes"):
        browser.open(site.url + path)
        shown = text(browser)
        assert "COMMON CAUSE: more nodes have XID 31" in shown
        assert "2 nodes wait for a person's word" in shown
        assert "No node is isolated for XID 45: ignored by anna" in shown
        assert "what is said of XID 9 cannot be read" in shown
        assert browser.run("window.hit === undefined")
    connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=20)
    connection.request("GET", "/api/v1/status")
    assert len(msgspec.json.decode(connection.getresponse().read())["notes"]) == 3
    connection.close()


def test_a_lost_rack_stands_at_the_top(browser: Browser, sites: list[Site]) -> None:
    world = troubled()
    for number in range(30, 34):
        since = {"reason": "Unreachable", "since_wall_s": WALL_S - 7200.0}
        world.isolate(f"gpu-{number:05}", kind=Kind.SILENCE, findings=(), **since)
    site = serve(sites, world)
    for path in ("/", "/nodes"):
        browser.open(site.url + path)
        assert "LOST TOGETHER: 4 nodes fell silent within" in text(browser)


def test_what_logs_and_names_say_is_text_and_nothing_else(browser: Browser, sites: list[Site]) -> None:
    world = troubled()
    world.add(HOSTILE_NODE, "'\"><script>window.hit=1</script>")
    world.isolate(HOSTILE_NODE, line=HOSTILE, sentence=HOSTILE, by=HOSTILE, running_there=(HOSTILE,))
    job, newest = world.jobs[0]
    world.jobs[0] = structs.replace(job, sentence=HOSTILE), newest
    world.troubles.append(HOSTILE)
    site = serve(sites, world)
    for path in (
        "/",
        "/nodes",
        "/nodes?q=%3Cscript%3E",
        f"/jobs/{JOB}",
        "/nodes/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
    ):
        browser.open(site.url + path)
        assert browser.run("window.hit === undefined"), path
        assert (
            browser.run("document.querySelectorAll('main script, main img, main [onerror]').length") == 0
        ), path
        assert not set("\x1b\u202e") & set(browser.run("document.documentElement.innerHTML")), path
    browser.open(site.url)
    link = "[...document.querySelectorAll('#wrong a')].find((one) => one.textContent.startsWith('<img'))"
    browser.run(f"{link}.click()")
    browser.until("document.querySelector('#node h1')?.textContent.startsWith('<img')")
    assert not browser.problems, "no policy was broken, no script failed"


def test_the_policy_of_the_page_runs_nothing_but_its_own_script(browser: Browser, sites: list[Site]) -> None:
    site = serve(sites, troubled())
    browser.open(site.url)
    browser.run(
        "(() => { const one = document.createElement('script'); one.textContent = 'window.hit = 1';"
        " document.body.append(one); const two = document.createElement('img'); two.src = 'https://192.0.2.1/x';"
        " document.body.append(two); })()"
    )
    while len(browser.problems) < 2:  # both are refused, and the browser says so
        browser.run("new Promise((done) => setTimeout(done, 50))")
    assert browser.run("window.hit === undefined")
    browser.problems.clear()


def test_it_is_live_and_keeps_what_the_reader_opened(browser: Browser, sites: list[Site]) -> None:
    world = troubled()
    site = serve(sites, world)
    browser.open(f"{site.url}/nodes/gpu-00003")
    browser.run("document.querySelectorAll('#history summary')[1].click()")
    browser.run("document.querySelectorAll('#history summary')[1].focus()")
    world.isolate("gpu-00003", id="gpu-00003-0002", sentence="It happened again.")
    site.later()
    browser.until("document.querySelector('main').innerText.includes('It happened again.')")
    record = "document.getElementById('record-gpu-00003-0000')"
    assert browser.run(f"{record}.open")
    assert browser.run("document.activeElement.id") == "record-gpu-00003-0000-title"
    site.close()
    sites.remove(site)
    browser.until("!document.getElementById('lost').hidden")


def test_a_job_shows_its_step_time_over_time_with_its_incidents_and_goes_on_by_itself(
    browser: Browser, sites: list[Site]
) -> None:
    world = troubled()
    site = serve(sites, world)
    browser.open(f"{site.url}/jobs/{JOB}")
    drawing = "document.querySelector('#course svg')"
    line = f"{drawing}.querySelector('.step').getAttribute('d')"
    first = browser.run(line)
    assert first.count("M") == 2, "a line on each side of the time in which nothing stepped"
    box = f"{drawing}.querySelector('.step').getBoundingClientRect()"
    assert browser.run(f"{box}.width") > 300
    assert browser.run(f"{drawing}.querySelectorAll('.mark').length") == 1
    mark = f"{drawing}.querySelector('.mark path').getBoundingClientRect()"
    assert browser.run(f"{mark}.left >= {box}.right - 2"), "its line ends where the incident begins"
    browser.call("Accessibility.enable")
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    (spoken,) = [
        one["name"]["value"]
        for one in tree
        if one.get("role", {}).get("value") in ("img", "image", "graphics-document")
    ]
    for told in ("lately", "3.52 s usually", "at most 12.5 s", "Hardware ratio 0.58", "Incidents: "):
        assert told in spoken, spoken
    browser.run("window.same = true")
    last = world.course[-1]
    world.course = (*world.course, structs.replace(last, wall_s=WALL_S - 1, step_ms=5100.0))
    site.later()
    browser.until(f"{line} !== {first!r}")
    assert "5.10 s lately" in text(browser)
    assert browser.run("window.same"), "without loading the page again"
    world.course = world.course[:2]
    site.later()
    browser.until(f"{drawing} === null")
    assert not browser.problems


@pytest.mark.parametrize("dark", [True, False])
def test_an_alerts_link_opens_its_runbook_on_a_laptop_and_on_a_phone(
    browser: Browser, sites: list[Site], dark: bool
) -> None:
    """In both modes; nobody signs in for it, and its script leaves it as it is."""
    contrast = Path(__file__).with_name("contrast.js").read_text()
    site = serve(sites, World(), *runbooks.places())
    browser.dark(dark)
    section = "document.getElementById('sentinelmailnotsent').getBoundingClientRect()"
    try:
        for width, phone in ((1100, False), (390, True)):
            browser.size(width, 844, phone=phone)
            browser.open(f"{site.url}/runbooks#sentinelmailnotsent")
            browser.until(f"{section}.top > -4 && {section}.top < 400")
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert browser.run(f"({contrast})(document.body)") == []
        browser.run("scrollTo(0, 0)")
        browser.click("a[href='#sentinelnobodyleads']")
        browser.until("document.getElementById('sentinelnobodyleads').getBoundingClientRect().top < 400")
        asked = browser.run("fetch('/fragment/runbooks').then((one) => one.text())")
        assert asked == browser.run(
            "document.querySelector('main').innerHTML.replaceAll(' data-plain=\"\"', ' data-plain')"
        )
    finally:
        browser.size(1100, 900)
    assert not browser.problems


def test_ten_thousand_nodes_come_in_pages_and_are_found_by_name_pool_and_state(
    browser: Browser, sites: list[Site]
) -> None:
    site = serve(sites, troubled(size=10_000, jobs=2000))
    browser.open(f"{site.url}/nodes")
    rows = "[...document.querySelectorAll('#rows tbody tr')].map((one) => one.cells[0].innerText.trim())"
    first = browser.run(rows)
    assert len(first) == 100
    assert first[0] == "gpu-00009", "what matters most is first"
    assert "1 to 100 of 10000 nodes" in text(browser)
    browser.click("#next")
    browser.until("location.search === '?start=100'")
    assert not set(browser.run(rows)) & set(first)
    browser.run("document.getElementById('q').value = 'GPU-0999'")
    browser.click("form[role=search] button")
    browser.until("document.querySelector('main').innerText.includes('10 found among 10000')")
    assert browser.run(rows)[0] == "gpu-09990"
    for query, found in (
        ("h100", "6666 found"),
        ("held back", "1 of 1 found"),
        ("nothing-like-it", "No such node."),
    ):
        browser.open(f"{site.url}/nodes?q={query.replace(' ', '+')}")
        assert found in text(browser), query
    browser.open(f"{site.url}/jobs?q=run-1999")
    assert "1 to 1 of 1 found among 2000 jobs" in text(browser)
    assert not browser.problems


def test_a_rendering_serves_all_who_look_and_is_not_sent_twice(sites: list[Site]) -> None:
    world = troubled()
    site = serve(sites, world)
    asked = []
    world.controller.brake_uses = lambda uses=world.controller.brake_uses: asked.append(1) or uses()

    def get(tag: str = "") -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=20)
        connection.request("GET", "/fragment", headers={"If-None-Match": tag} if tag else {})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.headers["ETag"], body

    status, tag, body = get()
    assert status == 200
    assert body.startswith(b"<section")
    assert get(tag) == (304, tag, b"")
    assert len(asked) == 1
    site.later()
    assert get(tag)[0] == 304, "nothing has changed"
    assert len(asked) == 2
    world.isolate("gpu-00020")
    site.later()
    assert get(tag)[0] == 200


def test_it_is_worked_by_keyboard(browser: Browser, sites: list[Site]) -> None:
    site = serve(sites, troubled())
    browser.open(site.url)
    browser.press("Tab")
    assert browser.run("document.activeElement.className") == "skip"
    browser.press("Enter")
    seen = []
    for _ in range(4):
        browser.press("Tab")
        seen.append(browser.run("document.activeElement.textContent"))
    assert seen[:4] == ["Fleet", "Nodes", "Jobs", "gpu-00009"]
    browser.press("Enter")
    browser.until("document.querySelector('#node h1')?.textContent === 'gpu-00009'")
    assert browser.run("document.activeElement.id") == "main", "what is read aloud next is the new page"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    browser.press("Tab")
    assert browser.run(outline) == "solid", "where the keyboard is can be seen"


def test_an_order_is_given_by_keyboard_while_the_page_changes(browser: Browser, sites: list[Site]) -> None:
    """The keyboard stays on a button that is made anew under it, also while a dialog is open over it."""
    world = troubled()
    site, asked = serve_orders(sites, world)
    browser.open(f"{site.url}/nodes/gpu-00003")

    def tab_to(what: str) -> None:
        for _ in range(40):
            browser.press("Tab")
            if browser.run(f"document.activeElement.matches({json.dumps(what)})"):
                return
        raise AssertionError(f"no Tab leads to {what}")

    def changes(pool: str) -> None:
        """What stands beside the button."""
        world.add("gpu-00003", pool)
        site.later()
        around = "document.querySelector('[data-order=release]').closest('section').innerText"
        browser.until(f"{around}.includes({json.dumps(pool)})")

    tab_to("#sign")
    browser.press("Space")
    browser.until("document.getElementById('signing').open")
    browser.type("secret")
    browser.press("Enter")
    browser.until("!document.getElementById('signing').open && document.activeElement.id === 'sign'")
    tab_to("[data-order=release]")
    changes("b200")
    on_it = "document.activeElement.dataset.order"
    assert browser.run(on_it) == "release"
    browser.press("Space")
    browser.until("document.getElementById('ordering').open")
    changes("gb300")
    browser.press("Escape")
    browser.until("!document.getElementById('ordering').open")
    browser.until(f"{on_it} === 'release'")  # a dialog says a moment later that it was closed
    browser.press("Enter")
    browser.until("document.getElementById('ordering').open")
    browser.type("reseated")
    browser.press("Enter")
    browser.until("!document.getElementById('said').hidden")
    assert [msgspec.json.decode(body)["why"] for _, body in asked] == ["reseated"]
    browser.until(f"{on_it} === 'release'")
    del world.records["gpu-00003-0001"]
    site.later()
    browser.until("document.querySelector('[data-order=release]') === null")
    assert browser.run("document.activeElement.id") == "main", "its button is gone: what is next is the page"


PAGES = ["/", "/nodes", "/jobs", "/nodes/gpu-00003", f"/jobs/{JOB}"]


@pytest.mark.parametrize("path", PAGES)
def test_on_a_phone_nothing_sticks_out(browser: Browser, sites: list[Site], path: str) -> None:
    site = serve(sites, troubled())
    browser.size(390, 844, phone=True)
    try:
        browser.open(site.url + path)
        assert browser.run("document.documentElement.scrollWidth") <= 390
        wide = "[...document.querySelectorAll('.log')].filter(one => one.scrollWidth > one.parentElement.clientWidth)"
        assert browser.run(f"{wide}.length") == 0, "no line of a list is cut off"
        assert browser.run("parseFloat(getComputedStyle(document.body).fontSize)") >= 14
    finally:
        browser.size(1100, 900)


@pytest.mark.parametrize("path", PAGES)
def test_in_dark_mode_everything_can_still_be_read(browser: Browser, sites: list[Site], path: str) -> None:
    """Contrast of text on its ground is at least 4.5 (WCAG 2.1, AA), in both modes."""
    contrast = Path(__file__).with_name("contrast.js").read_text()
    site = serve(sites, troubled())
    for dark in (True, False):
        browser.dark(dark)
        browser.open(site.url + path)
        browser.run("document.body.classList.add('signed')")
        assert browser.run(f"({contrast})(document.body)") == []
        light = browser.run("getComputedStyle(document.body).backgroundColor")
        assert (light == "rgb(18, 22, 28)") is dark


@pytest.mark.parametrize("dark", [True, False])
def test_the_questions_before_an_order_fit_a_phone_and_can_be_read(
    browser: Browser, sites: list[Site], dark: bool
) -> None:
    contrast = Path(__file__).with_name("contrast.js").read_text()
    site, _ = serve_orders(sites, troubled())
    browser.size(390, 844, phone=True)
    browser.dark(dark)
    try:
        browser.open(f"{site.url}/nodes/gpu-00003")
        browser.run("document.body.classList.add('signed')")
        for button, box in (("#sign", "signing"), ("[data-order=release]", "ordering")):
            browser.click(button)
            browser.until(f"document.getElementById('{box}').open")
            assert browser.run(f"({contrast})(document.getElementById('{box}'))") == []
            at = browser.run(f"JSON.stringify(document.getElementById('{box}').getBoundingClientRect())")
            place = json.loads(at)
            assert place["left"] >= 0, at
            assert place["right"] <= 390, at
            assert place["bottom"] <= 844, at
            browser.press("Escape")
            browser.until(f"!document.getElementById('{box}').open")
    finally:
        browser.size(1100, 900)
        browser.dark(False)


def test_without_a_script_it_is_still_a_page(browser: Browser, sites: list[Site]) -> None:
    site = serve(sites, troubled())
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.call("Page.navigate", url=f"{site.url}/nodes?q=gpu-00003")
        time_is_up = time.monotonic() + 30
        shown = ""
        while "1 to 1 of 1 found" not in shown and time.monotonic() < time_is_up:
            with contextlib.suppress(AssertionError):  # it is being loaded
                tree = browser.call("DOM.getDocument", depth=0)["root"]["nodeId"]
                shown = browser.call("DOM.getOuterHTML", nodeId=tree)["outerHTML"]
        assert "1 to 1 of 1 found" in shown
        assert 'http-equiv="refresh"' in shown
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_standby_says_who_leads_and_takes_no_orders(browser: Browser, sites: list[Site]) -> None:
    world = troubled()
    world.election.leading = False
    site = serve(sites, world)
    browser.open(site.url)
    shown = text(browser)
    assert "This controller stands by. sentinel-controller-7c9-x2-1f leads (10.0.3.7:8443)" in shown
    assert "port-forward pod/sentinel-controller-7c9-x2 9810" in shown
    assert browser.run("document.querySelectorAll('.act').length") == 0


def serve_orders(sites: list[Site], world: World) -> tuple[Site, list[tuple[str, bytes]]]:
    """Who knows the token `secret` may order, and what was ordered."""
    asked: list[tuple[str, bytes]] = []

    async def me(one: Asked) -> Told:
        known = one.token == "secret"
        body = {"name": "anna"} if known else {"sentence": "<b>unknown</b>"}
        return Told(
            body=msgspec.json.encode(body), content_type="application/json", status=200 if known else 401
        )

    async def order(one: Asked) -> Told:
        asked.append((one.token, one.body))
        body = msgspec.json.encode({"done": True, "sentence": "Node was <b>released</b>."})
        return Told(body=body, content_type="application/json")

    places = (Place("/api/v1/me", me, post=True), Place("/api/v1/orders", order, post=True))
    return serve(sites, world, *places), asked


def test_who_is_not_signed_in_sees_no_buttons_and_who_is_is_asked_again(
    browser: Browser, sites: list[Site]
) -> None:
    """Orders themselves are followed in tests/kubernetes/test_page.py, by a real API server."""
    site, asked = serve_orders(sites, troubled())
    browser.open(f"{site.url}/nodes/gpu-00003")
    visible = "[...document.querySelectorAll('.act')].filter((one) => one.offsetParent).length"
    assert browser.run(visible) == 0
    browser.click("#sign")
    browser.type("wrong")
    browser.press("Enter")
    browser.until("document.querySelector('#signing .told').textContent === '<b>unknown</b>'")
    browser.run("document.getElementById('token').value = ''; document.getElementById('token').focus()")
    browser.type("secret")
    browser.press("Enter")
    browser.until("!document.getElementById('signing').open")
    assert browser.run(visible) == 3
    assert "secret" not in browser.run(
        "document.documentElement.innerHTML + JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie"
    )
    browser.click("a[href='/nodes']")
    browser.until("location.pathname === '/nodes'")
    browser.run("history.back()")
    browser.until("document.querySelector('#node') !== null")
    assert browser.run(visible) == 3, "who signed in stays so on all pages"
    browser.click("[data-order=release]")
    assert browser.run("document.querySelector('#ordering h2').textContent") == "Release gpu-00003"
    browser.press("Escape")
    assert asked == []
    browser.click("[data-order=release]")
    browser.type("reseated")
    browser.press("Enter")
    browser.until("!document.getElementById('said').hidden")
    assert browser.run("document.getElementById('said').textContent") == "Node was <b>released</b>."
    (token, body), *_ = asked
    assert token == "secret"
    assert msgspec.json.decode(body) == {"order": "release", "node": "gpu-00003", "why": "reseated"}
    browser.click("#sign")
    assert browser.run(visible) == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "application/json", "Sec-Fetch-Site": "same-site"},
        {"Content-Type": "application/json", "Origin": "https://evil.example"},
        {"Content-Type": "application/json", "Origin": "null"},
    ],
)
def test_what_another_site_could_make_a_browser_send_is_no_order(
    sites: list[Site], headers: dict[str, str]
) -> None:
    asked: list[Asked] = []

    async def order(one: Asked) -> Told:
        asked.append(one)
        return Told(body=b"{}", content_type="application/json")

    site = serve(sites, troubled(), Place("/api/v1/orders", order, post=True))
    connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=20)
    connection.request("POST", "/api/v1/orders", b"{}", headers)
    assert connection.getresponse().status == 403
    connection.close()
    assert asked == []
