"""What people say of codes, as a ConfigMap holds it."""

import re
from datetime import UTC, datetime

import pytest

from sentinel.cli import main
from sentinel.cluster.kubernetes import codes
from sentinel.cluster.kubernetes.objects import ConfigMap, FullMeta
from sentinel.core.fleet.model import CodeWord, Say

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
        ('{"code": " ", "say": "ignore"}', "a code has 1 to 300 characters"),
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
    found = a_map(mine=one, other='{"code": "XID 31", "say": "ignore"}', **{codes.key_of("XID 79"): "{"})
    assert codes.keys_of(found, "XID 79") == {"mine", codes.key_of("XID 79")}
    assert codes.keys_of(found, "XID 48") == set()


def test_each_code_has_a_key_of_its_own_that_kubernetes_takes() -> None:
    names = ["XID 31", "XID-31", "XID:31", "温度", "电源", ".", "..", "-", "x" * 300, "a/b\n"]
    keys = {codes.key_of(name) for name in names}
    assert len(keys) == len(names)
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) and key not in (".", "..") for key in keys)


def test_a_go_on_of_long_ago_is_taken_away_with_the_next_word() -> None:
    old = codes.written("XID 79", Say.GO_ON, "", "", NOON)
    kept = codes.written("XID 31", Say.IGNORE, "", "", NOON)
    assert codes.stale(a_map(old=old, kept=kept), NOON.timestamp() + codes.KEPT_S + 1) == {"old"}
    assert codes.stale(a_map(old=old), NOON.timestamp() + 86_400) == set()


@pytest.mark.parametrize(
    "words", [["code"], ["code", "XID 79"], ["code", "--ignore"], ["code", "--off", "--why", "x"]]
)
def test_a_command_that_says_too_little_asks_for_the_rest(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "--go-on, --ignore, --off" in capsys.readouterr().err


def test_a_full_disk_is_no_fault_that_could_be_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["code", "disk-space", "--ignore"]) == 2
    assert "`fleet.disks`" in capsys.readouterr().err
