"""What people say of codes, as a ConfigMap holds it."""

from datetime import UTC, datetime

import pytest

from sentinel.cli import main
from sentinel.cluster.kubernetes import codes
from sentinel.cluster.kubernetes.objects import ConfigMap, FullMeta
from sentinel.core.fleet_model import CodeWord, Say

NOON = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC)


def a_map(**data: str) -> ConfigMap:
    return ConfigMap(metadata=FullMeta(name=codes.NAME), data=data)


def test_what_is_written_is_read_again() -> None:
    text = codes.written("XID 79", Say.GO_ON, "anna", "the cooling failed", NOON)
    said = codes.read(a_map(any=text))
    word = CodeWord(
        code="XID 79", say=Say.GO_ON, by="anna", why="the cooling failed", at_wall_s=NOON.timestamp()
    )
    assert said == codes.Said((word,), ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"say": "ignore"}', "missing required field `code`"),
        ('{"code": " ", "say": "ignore"}', "it names no code"),
        ('{"code": "XID 79", "say": "yes"}', "Invalid enum value 'yes'"),
        ('{"code": "XID 79", "say": "ignore", "until": 1}', "unknown field `until`"),
        ('{"code": "XID 79", "say": "go-on"}', '"at" must say from when'),
        ('{"code": "XID 79", "say": "go-on", "at": "2026-11-24T13:00:00"}', '"at" must say from when'),
        ('{"code": "XID 79", "say": "go-on", "at": "today"}', "Invalid RFC3339"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_rest_counts(text: str, why: str) -> None:
    said = codes.read(a_map(bad=text, good='{"code": "XID 31", "say": "ignore"}'))
    assert [word.code for word in said.words] == ["XID 31"]
    (trouble,) = said.troubles
    assert trouble.startswith("the ConfigMap sentinel-codes says nothing readable in bad: ")
    assert why in trouble


def test_a_flood_of_words_is_bounded_and_said() -> None:
    said = codes.read(a_map(**{f"k{n:04}": f'{{"code": "C{n}", "say": "ignore"}}' for n in range(500)}))
    assert len(said.words) == codes.MAX_WORDS
    assert said.troubles == ("the ConfigMap sentinel-codes names 500 codes: only the first 100 count",)


def test_the_keys_of_a_code_are_found_whatever_a_person_has_named_them() -> None:
    one = codes.written("XID 79", Say.IGNORE, "", "", NOON)
    found = a_map(mine=one, other='{"code": "XID 31", "say": "ignore"}', **{"XID-79": "{"})
    assert codes.keys_of(found, "XID 79") == {"mine", "XID-79"}
    assert codes.keys_of(found, "XID 48") == set()


@pytest.mark.parametrize(
    "words", [["code"], ["code", "XID 79"], ["code", "--ignore"], ["code", "--off", "--why", "x"]]
)
def test_a_command_that_says_too_little_asks_for_the_rest(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "--go-on, --ignore, --off" in capsys.readouterr().err
