"""The shipped table of failure classes, and what is said about a broken one."""

from pathlib import Path

import pytest

from sentinel.core.triage.verdict import AGREED
from sentinel.rules.failures import failure_classes, load_failures
from sentinel.rules.tables import RuleError, data_dir


def test_the_shipped_table_holds_every_agreed_class_with_advice_and_source() -> None:
    table = failure_classes()
    assert AGREED <= table.keys()
    for row in table.values():
        assert row.title, row.id
        assert row.advice.endswith("."), row.id
        assert row.source, row.id
        assert not row.sentence.endswith("."), row.id


def test_all_errors_of_a_table_are_listed_at_once(tmp_path: Path) -> None:
    text = (data_dir("rules") / "failures.toml").read_text()
    text = (
        text.replace('id = "hang"', 'id = "hangs"')
        .replace("({exit})", "({exits})")
        .replace("signals = [9]", "signals = [11]")
    )
    path = tmp_path / "failures.toml"
    path.write_text(text)
    with pytest.raises(RuleError) as caught:
        load_failures(path)
    problems = "\n".join(caught.value.problems)
    assert "class 'hang' is missing" in problems
    assert "'exits'" in problems
    assert "signal 11 is already claimed by 'segfault'" in problems


def test_an_unknown_key_or_word_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "failures.toml"
    path.write_text('[[class]]\nid = "x"\nrestart = "perhaps"\n')
    with pytest.raises(RuleError) as caught:
        load_failures(path)
    assert "class[0]" in caught.value.problems[0]
