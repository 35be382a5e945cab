"""The page of `sentinel run` in a real Chromium: on a phone, in the dark, by keyboard, and with a hostile log."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.web import samples
from tests.web.browser import Browser
from tests.web.test_server import Running, start

__all__ = ["start"]
CONTRAST = Path(__file__).with_name("contrast.js").read_text()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as made:
        made.size(390, 844, phone=True)
        yield made


@pytest.mark.parametrize("dark", [True, False])
def test_it_fits_a_phone_and_can_be_read_in_both_modes(
    browser: Browser, start: Callable[[], Running], dark: bool
) -> None:
    """Contrast of text on its ground is at least 4.5 (WCAG 2.1, AA)."""
    browser.dark(dark)
    browser.open(start().server.url)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run("parseFloat(getComputedStyle(document.body).fontSize)") >= 14
    assert browser.run(f"({CONTRAST})(document.body)") == []
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(18, 22, 28)") is dark


def test_what_its_log_says_is_nothing_but_text(browser: Browser, start: Callable[[], Running]) -> None:
    browser.open(start().server.url)
    shown = browser.run("document.querySelector('main').innerText")
    assert "<script>alert(1)</script>" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert browser.run("document.querySelectorAll('main script, main img').length") == 0
    assert not browser.problems


def test_the_story_of_an_incident_is_opened_by_keyboard(
    browser: Browser, start: Callable[[], Running]
) -> None:
    browser.open(start().server.url)
    where = "document.activeElement.closest('#incidents summary') !== null"
    for _ in range(60):
        browser.press("Tab")
        if browser.run(where):
            break
    assert browser.run(where), "no Tab leads to an incident"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert browser.run(outline) == "solid", "where the keyboard is can be seen"
    opened = browser.run("document.activeElement.parentElement.open")
    browser.press("Enter")
    browser.until(f"document.activeElement.parentElement.open !== {str(bool(opened)).lower()}")
    assert samples.view().incidents
