"""The files of the custom resources are those of the code, and explain themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.config import crds

REPO = Path(__file__).parents[2]


def test_the_files_are_those_of_the_code() -> None:
    """Made by: make generated"""
    rendered = crds.rendered()
    assert {path.name for path in (REPO / "deploy/crds").iterdir()} == set(rendered)
    for name, text in rendered.items():
        assert (REPO / "deploy/crds" / name).read_text() == text, name


@pytest.mark.parametrize("plural", crds.definitions())
def test_every_field_is_explained(plural: str) -> None:
    def walk(schema: dict[str, Any], path: str) -> Iterator[str]:
        for name, below in schema.get("properties", {}).items():
            if not below.get("description", "").endswith((".", "?")) and path:
                yield f"{path}.{name}"
            yield from walk(below, f"{path}.{name}")
        if "items" in schema:
            yield from walk(schema["items"], path)

    schema = crds.definitions()[plural]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert list(walk(schema["properties"]["spec"], "spec")) == []
    assert list(walk(schema["properties"]["status"], "status")) == []
