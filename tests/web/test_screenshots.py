"""The pictures of the docs are those that `make screenshots` makes."""

import re
from pathlib import Path

from tests.web import screenshots

REPO = Path(__file__).parents[2]


def test_the_pictures_that_the_docs_show_are_made_by_one_command(tmp_path: Path) -> None:
    screenshots.main(tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    texts = [path.read_text("utf-8") for path in (REPO / "README.md", *(REPO / "docs").rglob("*.md"))]
    shown = {name for text in texts for name in re.findall(r"images/([\w-]+\.webp)", text)}
    assert made == shown == {path.name for path in (REPO / "docs" / "images").glob("*.webp")}
    for path in tmp_path.iterdir():
        head = path.read_bytes()[:12]
        assert (head[:4], head[8:]) == (b"RIFF", b"WEBP"), path.name
