"""Whom a job's mails go to."""

import pytest

from sentinel.core.people.owners import OWNER, Owners, addresses, owners
from sentinel.settings import OwnerRule

RULES = (
    OwnerRule(namespace="research", match_labels={"team": "nlp"}, emails=("nlp@example.com",)),
    OwnerRule(namespace="research", emails=("research@example.com",)),
    OwnerRule(match_labels={"team": "vision"}, emails=("vision@example.com", "lead@example.com")),
)


def of(
    asked: tuple[str, ...] = (),
    *,
    namespace: str = "research",
    labels: dict[str, str] | None = None,
    job: str = "",
    space: str = "",
) -> Owners:
    return owners(
        asked,
        namespace=namespace,
        labels=labels or {},
        job_notes={OWNER: job} if job else {},
        namespace_notes={OWNER: space} if space else {},
        rules=RULES,
    )


def test_the_first_who_names_anybody_is_heard() -> None:
    everything = {"job": "job@example.com", "space": "space@example.com", "labels": {"team": "nlp"}}
    assert of(("own@example.com",), **everything) == Owners(("own@example.com",), "policy")  # type: ignore[arg-type]
    assert of(**everything) == Owners(("job@example.com",), "job")  # type: ignore[arg-type]
    assert of(space="space@example.com", labels={"team": "nlp"}) == Owners(
        ("space@example.com",), "namespace"
    )


@pytest.mark.parametrize(
    ("namespace", "team", "expected"),
    [
        ("research", "nlp", ("nlp@example.com",)),
        ("research", "vision", ("research@example.com",)),
        ("other", "vision", ("vision@example.com", "lead@example.com")),
        ("other", "nlp", ()),
    ],
)
def test_of_the_administrators_mapping_the_first_that_fits_counts(
    namespace: str, team: str, expected: tuple[str, ...]
) -> None:
    found = of(namespace=namespace, labels={"team": team})
    assert (found.emails, found.source) == (expected, "settings" if expected else "administrators")


def test_an_annotation_that_holds_no_address_is_told_and_passed_over() -> None:
    found = of(job="ask bert", space="anna@example.com; carl@example.com,\n anna@example.com <x@y")
    assert found.emails == ("anna@example.com", "carl@example.com")
    assert found.source == "namespace"
    assert found.wrong == ("ask", "bert", "<x@y")


def test_no_address_can_write_the_headers_of_a_mail_and_none_are_without_end() -> None:
    assert addresses("a@b\r\nBcc:x@y.z") == (("a@b", "Bcc:x@y.z"), ())
    assert addresses("a@b\x00c.d")[0] == ()
    assert len(addresses(" ".join(f"a{number}@b.c" for number in range(1000)))[0]) == 20
    assert len(addresses("x " * 10 + " ".join(f"w{number}" for number in range(100)))[1]) == 20
