"""Records become documents and come back with nothing lost, whatever stands in them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sentinel.core.fleet.model import NodeQuarantine
from sentinel.core.model import Incident, ProtectedJob
from sentinel.core.policy_model import Policy
from sentinel.util.documents import document_name, from_document, merged, time_of, time_text, to_document
from tests.kubernetes.records import records

WALL_TIMES = st.floats(0, 4e9, allow_nan=False)


@given(WALL_TIMES)
def test_a_time_comes_back_as_the_same_number(wall_s: float) -> None:
    near = 1e-9  # soon after 1970 a float is finer than a nanosecond, which no clock tells
    assert time_of(time_text(wall_s)) == pytest.approx(wall_s, abs=near, rel=0)
    if wall_s > 1e9:
        assert time_of(time_text(wall_s)) == wall_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-21T10:00:00Z", 1795255200.0),
        ("2026-11-21t10:00:00.5z", 1795255200.5),
        ("2026-11-21T12:00:00.250000000+02:00", 1795255200.25),
    ],
)
def test_times_that_others_wrote_are_read(text: str, seconds: float) -> None:
    assert time_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-11-21", "2026-11-21T10:00:00", "2026-13-40T10:00:00Z"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|month|day"):
        time_of(text)


@pytest.mark.parametrize("record", [ProtectedJob, Incident, NodeQuarantine])
def test_any_record_comes_back_through_json(record: type[Struct]) -> None:
    @settings(max_examples=60)
    @given(records(record))
    def holds(one: Struct) -> None:
        text = msgspec.json.encode(to_document(one))
        assert from_document(record, msgspec.json.decode(text)) == one

    holds()


def test_a_document_speaks_the_words_of_kubernetes() -> None:
    policy = Policy(restart=None, start_timeout_s=60.0)
    assert to_document(policy) == {"restart": None, "startTimeoutSeconds": 60.0}
    assert document_name("since_wall_s") == "since"
    assert document_name("phase_mono_s") == "phaseMonotonicSeconds"
    assert document_name("baseline_ms") == "baselineMilliseconds"


def test_a_broken_document_is_refused_with_the_place() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.incarnation"):
        from_document(ProtectedJob, {"name": "a", "policy": {}, "incarnation": "many"})
    with pytest.raises(msgspec.ValidationError, match="RFC 3339"):
        from_document(ProtectedJob, {"name": "a", "policy": {}, "created": "soon"})


def test_what_a_newer_sentinel_wrote_is_kept() -> None:
    old: dict[str, Any] = {
        "name": "a",
        "policy": {"resume": {"newKnob": 3, "maxResumes": 1}, "later": [1]},
        "state": "error",
        "fromTheFuture": {"x": 1},
    }
    job = from_document(ProtectedJob, old)
    again = merged(ProtectedJob, old, to_document(msgspec.structs.replace(job, incarnation=2)))
    assert again == {**old, "incarnation": 2}
    healed = msgspec.structs.replace(job, state=ProtectedJob(name="", policy=Policy()).state)
    assert "state" not in merged(ProtectedJob, old, to_document(healed)), "what has its default again goes"
