"""The status page of real controllers in a real Chromium: people sign in with tokens of a real API server, whose RBAC
says what they may order."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sentinel.controller.daemon.page_orders import PageOrders
from sentinel.web.server import Asked, Told
from tests.e2e.agent_node import XID_79
from tests.e2e.box import Box
from tests.kubernetes.conftest import NAMESPACE, PAUSE
from tests.kubernetes.local_fleet import Fleet, Page
from tests.rig.control_plane import ControlPlane
from tests.web.browser import Browser

RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def site(plane: ControlPlane, tmp_path: Path) -> Iterator[Fleet]:
    box = Box(tmp_path / "box")
    made = Fleet(plane, box, tmp_path)
    made.settings = {"listen": "127.0.0.1:0"}
    yield made
    box.close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path) as made:
        made.size(1100, 900)
        yield made


def somebody(plane: ControlPlane, name: str, role: str) -> str:
    """The token of a service account that a person may have, with a role of `deploy/`."""
    plane.service_account(NAMESPACE, name)
    subject = [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]
    whole = {"kind": "ClusterRoleBinding", "metadata": {"name": name}}
    whole["roleRef"] = {"apiGroup": RBAC, "kind": "ClusterRole", "name": role}
    bindings: list[dict[str, Any]] = [whole]
    if role == "sentinel-operator":
        reference = {"apiGroup": RBAC, "kind": "Role", "name": role}
        meta = {"name": name, "namespace": NAMESPACE}
        bindings.append({"kind": "RoleBinding", "metadata": meta, "roleRef": reference})
    plane.admin.apply([{"apiVersion": f"{RBAC}/v1", "subjects": subject, **one} for one in bindings])
    return plane.token(NAMESPACE, name)


def posted(page: Page, path: str, body: object, headers: Mapping[str, str]) -> int:
    """The status of the answer."""
    typed = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(page.url.rstrip("/") + path, json.dumps(body).encode(), typed)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def sign_in(browser: Browser, token: str) -> None:
    if browser.run("document.body.classList.contains('signed')"):
        browser.click("#sign")
    browser.click("#sign")
    browser.run("document.getElementById('token').value = ''")
    browser.type(token)
    browser.press("Enter")


def order(browser: Browser, what: str, why: str) -> None:
    browser.click(f"[data-order={what}]")
    browser.run("document.getElementById('why').value = ''")
    browser.type(why)
    browser.press("Enter")


def told(browser: Browser, dialog: str, words: str) -> None:
    browser.until(f"document.querySelector('#{dialog} .told').textContent.includes({json.dumps(words)})")


def done(browser: Browser, words: str) -> None:
    browser.until(f"document.getElementById('said').textContent.includes({json.dumps(words)})")


def test_people_hold_release_and_pause_with_the_rights_that_the_cluster_gives_them(
    site: Fleet, browser: Browser
) -> None:
    reader = somebody(site.plane, "rita", "sentinel-reader")
    operator = somebody(site.plane, "otto", "sentinel-operator")
    first = site.controller("first")
    page = Page(first)
    node = site.agent("gpu-1", first)
    site.until(lambda: page.number("nodes", pool="", state="in-service") == 1)
    node.machine.log(XID_79)
    site.until(lambda: site.isolated("gpu-1"))

    browser.open(f"{page.url}/nodes/gpu-1")
    browser.until("document.querySelector('#standing').textContent.startsWith('Isolated')")
    browser.until("document.querySelector('#findings').textContent.includes('79')")
    assert browser.run("[...document.querySelectorAll('.act')].every((one) => !one.offsetParent)")

    # Who the cluster does not know, and a token of the cluster that is not meant for its API server.
    sign_in(browser, "nonsense")
    told(browser, "signing", "does not know this token")
    browser.run("document.querySelector('#signing .no').click()")
    sign_in(browser, site.plane.token(NAMESPACE, "otto", audience="sentinel-controller"))
    told(browser, "signing", "does not know this token")
    browser.run("document.querySelector('#signing .no').click()")

    # Who may read may not order: the very verb on the very object is asked for.
    sign_in(browser, reader)
    browser.until("document.body.classList.contains('signed')")
    order(browser, "release", "I wish")
    told(browser, "ordering", "system:serviceaccount:sentinel-system:rita may not")
    told(browser, "ordering", "patch nodes/gpu-1")
    browser.press("Escape")
    assert site.isolated("gpu-1")

    # Neither without a token nor what another site has a browser send, with whatever token.
    body = {"order": "release", "node": "gpu-1", "why": "I wish"}
    for status, headers in (
        (401, {}),
        (403, {"Authorization": f"Bearer {operator}", "Origin": "https://evil.example"}),
        (403, {"Authorization": f"Bearer {operator}", "Sec-Fetch-Site": "cross-site"}),
    ):
        assert posted(page, "/api/v1/orders", body, headers) == status, headers
    assert site.isolated("gpu-1")

    sign_in(browser, operator)
    browser.until("document.getElementById('sign').textContent.endsWith('otto')")
    order(browser, "acknowledge", "it is at the vendor's")
    done(browser, "was acknowledged by system:serviceaccount:sentinel-system:otto: it is at the vendor's")
    browser.until("document.querySelector('[data-order=acknowledge]') === null")
    order(browser, "release", "reseated")
    done(browser, "was released by system:serviceaccount:sentinel-system:otto: reseated")
    site.until(lambda: not site.taints("gpu-1"))
    (record,) = site.records("gpu-1")
    assert (record["by"], record["endedBy"]) == ("system:serviceaccount:sentinel-system:otto", "person")
    browser.until("document.querySelector('#history').textContent.includes('reseated')")

    order(browser, "hold", "new NIC")
    done(browser, "is kept out of service by system:serviceaccount:sentinel-system:otto: new NIC")
    site.until(lambda: site.isolated("gpu-1"))

    # The brake. What waits is what is new: a person's own orders go on.
    browser.open(page.url)
    sign_in(browser, reader)
    browser.until("document.body.classList.contains('signed')")
    order(browser, "pause", "no")
    told(browser, "ordering", f"create configmaps/sentinel-pause in namespace {NAMESPACE}")
    browser.press("Escape")
    sign_in(browser, operator)
    browser.until("document.getElementById('sign').textContent.endsWith('otto')")
    order(browser, "pause", "upgrade")
    browser.until("document.querySelector('#warnings').textContent.includes('PAUSED by')")
    assert site.admin.get(PAUSE)["data"]["who"] == "system:serviceaccount:sentinel-system:otto"
    order(browser, "unpause", "")
    site.until(lambda: site.admin.find(PAUSE) is None)
    browser.until("!document.querySelector('#warnings').textContent.includes('PAUSED')")

    # Audited: who, what, why, and what became of it.
    lines = [json.loads(line) for line in (site.folder / "first" / "controller.log").read_text().splitlines()]
    orders = [
        (one["order"], one["by"].rpartition(":")[2], one["why"])
        for one in lines
        if one["event"] == "page_order"
    ]
    assert orders == [
        ("acknowledge", "otto", "it is at the vendor's"),
        ("release", "otto", "reseated"),
        ("hold", "otto", "new NIC"),
        ("pause", "otto", "upgrade"),
        ("unpause", "otto", ""),
    ]
    refused = [one["by"].rpartition(":")[2] for one in lines if one["event"] == "page_order_forbidden"]
    assert refused == ["rita", "rita"]
    whole = (site.folder / "first" / "controller.log").read_text() + first.err
    assert not any(token in whole for token in (reader, operator)), "no token is written anywhere"
    assert not browser.problems


def test_a_standby_shows_what_the_records_say_and_names_the_leader(site: Fleet, browser: Browser) -> None:
    operator = somebody(site.plane, "otto", "sentinel-operator")
    first = site.controller("first")
    page = Page(first)
    site.agent("gpu-2", first)
    site.until(lambda: page.number("nodes", pool="", state="in-service") == 1)
    browser.open(f"{page.url}/nodes/gpu-2")
    sign_in(browser, operator)
    browser.until("document.body.classList.contains('signed')")
    order(browser, "hold", "broken fan")
    done(browser, "is kept out of service")
    second = site.controller("second")
    standby = Page(second)
    site.until(lambda: "This controller stands by. first-" in standby.get("/")[1])
    site.until(lambda: "gpu-2" in standby.get("/nodes")[1])  # what the cluster's records say it knows too
    assert 'data-order="' not in standby.get("/nodes/gpu-2")[1]
    assert standby.get("/nodes/nobody")[0] == 404
    status = json.loads(page.get("/api/v1/status")[1])
    assert (status["leader"]["leads"], [row["node"] for row in status["rows"]]) == (True, ["gpu-2"])
    assert not browser.problems


def test_no_token_is_taken_where_others_can_listen_and_none_means_nobody() -> None:
    """Neither asks the API server."""
    nobody: Any = None
    orders = PageOrders(nobody, nobody, NAMESPACE, lambda: True)

    async def ask(*, private: bool, token: str) -> Told:
        return await orders.order(Asked(names={}, query={}, token=token, private=private, body=b"{}"))

    clear = asyncio.run(ask(private=False, token="t"))
    assert (clear.status, b"port-forward" in clear.body) == (403, True)
    assert asyncio.run(ask(private=True, token="")).status == 401
