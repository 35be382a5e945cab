"""Whom a job's mails go to. Pure.

The first of these that names anybody: its policy (`owner.emails`), the annotation `sentinel.dev/owner` of the job, that
of its namespace, the administrators' mapping (`owners` of the settings). What has no owner goes to administrators.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

OWNER = "sentinel.dev/owner"  # addresses between commas, semicolons or blanks
MOST = 20  # addresses of one job
EMAIL_SHAPE = r"[^@\s,;<>]{1,64}@[^@\s,;<>]{1,190}"
_EMAIL = re.compile(EMAIL_SHAPE)
_BETWEEN = re.compile(r"[\s,;]+")


class Rule(Protocol):
    """`sentinel.settings.OwnerRule`: what is not written fits every job."""

    @property
    def namespace(self) -> str: ...
    @property
    def match_labels(self) -> Mapping[str, str]: ...
    @property
    def emails(self) -> Sequence[str]: ...


class Owners(Struct, frozen=True):
    """`emails` empty: administrators. `source`: where they stand. `wrong`: what an annotation has besides addresses."""

    emails: tuple[str, ...] = ()
    source: str = "administrators"
    wrong: tuple[str, ...] = ()


def owners(
    asked: Sequence[str],
    *,
    namespace: str,
    labels: Mapping[str, str],
    job_notes: Mapping[str, str],
    namespace_notes: Mapping[str, str],
    rules: Iterable[Rule],
) -> Owners:
    """`asked`: by the policy. `labels` and `job_notes` (annotations) are the job's own."""
    if asked:
        return Owners(tuple(asked), "policy")
    wrong: list[str] = []
    for notes, source in ((job_notes, "job"), (namespace_notes, "namespace")):
        found, other = addresses(notes.get(OWNER, ""))
        wrong += other
        if found:
            return Owners(found, source, tuple(wrong))
    for rule in rules:
        here = rule.namespace in ("", namespace)
        if here and all(labels.get(key) == value for key, value in rule.match_labels.items()):
            return Owners(tuple(rule.emails), "settings", tuple(wrong))
    return Owners(wrong=tuple(wrong))


def is_address(text: str) -> bool:
    """Control characters would let an address write mail headers."""
    return _EMAIL.fullmatch(text) is not None and text.isprintable()


def addresses(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(addresses, what is none of the words) of an annotation that anybody may have written."""
    words = dict.fromkeys(word for word in _BETWEEN.split(text) if word)
    found = tuple(word for word in words if is_address(word))
    return found[:MOST], tuple(word[:100] for word in words if not is_address(word))[:MOST]
