"""docs/runbooks.md as the sections of a page, which every controller serves under /runbooks:

python scripts/runbooks.py > sentinel/web/runbooks.html

Of Markdown it knows what that file has: headings, paragraphs, lists, code in a line. Anything else is refused.
"""

import html
import re
import sys
from pathlib import Path

RUNBOOKS = Path(__file__).parents[1] / "docs" / "runbooks.md"
OTHER = re.compile(r"^(#{3,}|\||```|\d+\. | {4})|\]\(|\*\*", re.MULTILINE)


def document() -> str:
    text = RUNBOOKS.read_text("utf-8")
    if found := OTHER.search(text):
        raise ValueError(f"{RUNBOOKS.name}: {found[0]!r}: this is not turned into HTML")
    first, *alerts = re.split(r"^## ", text, flags=re.MULTILINE)
    title, _, body = first.removeprefix("# ").partition("\n")
    links = "".join(
        f'<li><a href="#{name.lower()}" data-plain>{name}</a></li>' for name in map(_name, alerts)
    )
    made = f'<section id="about">\n<h1>{_line(title)}</h1>\n{_blocks(body)}<ul class="names">{links}</ul>\n</section>\n'
    for alert in alerts:
        name, body = _name(alert), alert.partition("\n")[2]
        made += f'<section id="{name.lower()}">\n<div class="card"><h2>{name}</h2>\n{_blocks(body)}</div>\n</section>\n'
    return made


def _name(alert: str) -> str:
    name = alert.partition("\n")[0].strip()
    if not name.isalnum():
        raise ValueError(f"{RUNBOOKS.name}: {name!r}: not the name of an alert")
    return name


def _blocks(text: str) -> str:
    made = ""
    for block in re.split(r"\n{2,}", text.strip()):
        if block.startswith("- "):
            items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
            made += "<ul>" + "".join(f"<li>{_line(item)}</li>" for item in items) + "</ul>\n"
        elif block:
            made += f"<p>{_line(block)}</p>\n"
    return made


def _line(text: str) -> str:
    parts = html.escape(" ".join(text.split()), quote=False).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


if __name__ == "__main__":
    sys.stdout.write(document())
