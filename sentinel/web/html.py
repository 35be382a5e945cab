"""HTML of the status pages: what a job's page and a cluster's have in common. Everything that is shown goes through
`esc`: names, log lines and what people wrote are untrusted text."""

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import quote

from sentinel.web.words import printable

MAX_SHOWN = 400  # characters of a cell: one line of a log must not push everything else off the page


def esc(value: object) -> str:
    """Text for HTML and its attributes: no mark-up, no control characters, no reordering of the line."""
    return html.escape(printable(str(value)))


def short(text: str) -> str:
    """Escaped, and cut where it is longer than anybody reads in a table."""
    return esc(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…")


def link(text: str, *parts: str) -> str:
    """To the page at these parts of a path, whatever characters they have."""
    return f'<a href="/{"/".join(quote(part, safe="") for part in parts)}">{esc(text)}</a>'


@cache
def assets() -> tuple[str, str]:
    """The pages' style and script."""
    folder = Path(__file__).parent
    return (folder / "page.css").read_text("utf-8"), (folder / "page.js").read_text("utf-8")


@cache
def content_security_policy() -> str:
    """Only the one inline style and the one inline script, by their hashes, and requests and forms to ourselves."""
    style, script = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in assets())
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


def document(title: str, fragment: str, version: str, *, sign_in: bool = False) -> str:
    """A whole page. Without JavaScript the browser loads it again every five seconds. `sign_in`: to order something."""
    style, script = assets()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<noscript><meta http-equiv="refresh" content="5"></noscript>'
        f'<link rel="icon" href="data:,"><title>{esc(title)} · Sentinel</title>'
        f"<style>{style}</style></head><body>"
        f'<a class="skip" href="#main">Skip to what matters</a><div class="frame">'
        '<p class="banner bad" id="lost" role="alert" hidden>Sentinel does not answer: what is shown is old.</p>'
        + ('<button type="button" id="sign" hidden>Sign in</button>' if sign_in else "")
        + '<p class="banner good" id="said" role="status" hidden></p>'
        f'<main id="main" tabindex="-1">{fragment}</main>'
        '<footer class="foot"><button type="button" id="pause" aria-pressed="false" hidden>Pause updates</button>'
        + '<a href="/api/v1/status" data-plain>JSON</a><a href="/metrics" data-plain>Metrics</a>'
        f'<a href="/healthz" data-plain>Health</a><span>Sentinel {esc(version)}</span></footer></div>'
        + (_DIALOGS if sign_in else "")
        + f"<script>{script}</script></body></html>"
    )


_DIALOGS = (
    '<dialog id="signing" aria-labelledby="signing-title"><form method="dialog"><h2 id="signing-title">Sign in</h2>'
    "<p>With a token of the cluster, such as <code>kubectl create token NAME</code> prints. It stays in this page's "
    "memory until you leave it, and is shown to the API server alone.</p>"
    '<label for="token">Token</label><input id="token" type="password" autocomplete="off" spellcheck="false" required>'
    '<p class="told" role="alert"></p><p class="row"><button type="submit" class="do">Sign in</button>'
    '<button type="button" class="no">Cancel</button></p></form></dialog>'
    '<dialog id="ordering" aria-labelledby="ordering-title"><form method="dialog"><h2 id="ordering-title"></h2>'
    '<p class="what"></p><label for="why">Why (stands in the record, for those who come after)</label>'
    '<input id="why" maxlength="300" autocomplete="off"><p class="told" role="alert"></p><p class="row">'
    '<button type="submit" class="do"></button><button type="button" class="no">Cancel</button></p></form></dialog>'
)


def sections(parts: Iterable[tuple[str, str]]) -> str:
    """Each with an id: what the script fetches and swaps."""
    return "".join(f'<section id="{name}">{content}</section>' for name, content in parts)


def card(title: str, content: str, empty: str = "") -> str:
    if not content and not empty:
        return ""
    body = content or f'<p class="soft lead">{empty}</p>'
    return f'<div class="card"><h2>{title}</h2>{body}</div>'


def badge(text: str, kind: str = "") -> str:
    return f'<span class="badge {kind}">{esc(text)}</span>'


def banner(kind: str, text: str) -> str:
    return f'<p class="banner {kind}">{esc(text)}</p>'


def tiles(shown: Iterable[tuple[str, str, str]]) -> str:
    """(name, value, note)."""
    cells = "".join(
        f"<div><dt>{esc(name)}</dt><dd>{esc(value)}<small>{esc(note)}</small></dd></div>"
        for name, value, note in shown
    )
    return f'<dl class="tiles">{cells}</dl>'


def _named(row: str, heads: Sequence[tuple[str, str]]) -> str:
    start, *cells = row.split("<td")
    named = (f' data-head="{head}"' if css == "number" else "" for head, css in heads)
    return start + "".join(f"<td{name}{cell}" for name, cell in zip(named, cells, strict=True))


def table(heads: Iterable[tuple[str, str]], rows: Iterable[str], kind: str = "") -> str:
    """Of (title, class), and of rows of escaped cells. Without rows nothing. On a phone, where a table of kind `log`
    has no head, its numbers say themselves what they are."""
    heads = list(heads)
    head = "".join(f'<th scope="col" class="{css}">{name}</th>' for name, css in heads)
    body = "".join(f"<tr>{_named(row, heads) if kind == 'log' else row}</tr>" for row in rows)
    shown = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{shown}</div>' if body else ""
