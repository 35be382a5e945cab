"""Every row of rules/job_kinds.toml: what a job of it is, its ranks, and what stops, starts and changes it."""

import re
from pathlib import Path

import pytest

from sentinel.core.job.kinds import JobKind, KeepOff, Means, Resize, Role, Trap, problems_of, row_of
from sentinel.core.job.paths import read
from sentinel.core.job.ranks import ranks, selector
from sentinel.core.job.sizes import never_changes, not_elastic
from sentinel.core.job.start import keep_off_nodes, start
from sentinel.core.job.state import SENTINEL, living, size_of, standing
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Plan, Reason, Refusal, Verb
from sentinel.rules.job_kinds import job_table, load_job_table
from sentinel.rules.tables import RuleError
from tests.core.job_objects import GROUPS, OBJECTS, applied, gone, pods_of, row_named, seen, template, writes

ROWS = [row.title for row in job_table().rows]
NO_SIZE = ("Pod/v1", "ElasticDLJob.training.kubedl.io/v1alpha1")  # their objects name no ranks
HELD = [row.title for row in job_table().rows if row.holds]


def test_every_row_has_an_object_here() -> None:
    assert set(ROWS) == set(OBJECTS) == set(GROUPS)


def test_every_trap_has_a_test(repo: Path) -> None:
    """Of its name: that of trap a-b-c is test_a_b_c."""
    files = (repo / "tests/core").glob("test_job_traps*.py")
    tests = [name for file in files for name in re.findall(r"^def test_(\w+)", file.read_text("utf-8"), re.M)]
    assert sorted(tests) == sorted(trap.replace("-", "_") for trap in job_table().traps)


@pytest.mark.parametrize("title", ROWS)
def test_an_object_leads_to_its_row_and_to_no_other(title: str) -> None:
    found = row_of(job_table().rows, OBJECTS[title])
    assert found is not None
    assert found.title == title


@pytest.mark.parametrize("title", ROWS)
def test_a_job_is_read(title: str) -> None:
    now = standing(seen(title))
    assert (now.namespace, now.name, now.uid, now.resource_version, now.generation) == (
        "lab", "train", "u-train", "7", 2,
    )  # fmt: skip
    assert now.size == (None if title in NO_SIZE else 4)
    assert (now.stopped, now.stopped_by, now.ended, now.ending, now.kept_off) == (False, "", "", False, ())


@pytest.mark.parametrize("title", ROWS)
def test_each_pod_of_ranks_is_one_rank_and_the_others_are_none(title: str) -> None:
    row, found = row_named(title), ranks(seen(title))
    assert len(found) == len(pods_of(title))
    numbered = {one.rank: one for one in found if one.rank is not None}
    assert sorted(numbered) == list(range(0 if title == NO_SIZE[1] else 4))
    assert all((one.role is Role.RANK) == (one.rank is not None) for one in found)
    assert {one.group.lower() for one in found if one.role is not Role.RANK} == {
        group for group in GROUPS[title] if row.role(group) is not Role.RANK
    }
    first = [
        group for group in ("chief", "master") if group in GROUPS[title] and row.role(group) is Role.RANK
    ]
    if first:
        assert numbered[0].group.lower() == first[0]
    assert all(one.node == f"node-{one.name}" for one in found)


@pytest.mark.parametrize("title", ROWS)
def test_its_pods_are_found_by_labels(title: str) -> None:
    row = row_named(title)
    found = selector(row, OBJECTS[title])
    if not row.pods:
        assert found is None
        return
    wanted = "train-x7k" if row.kind == "RayJob" else "train"
    assert found is not None
    assert found.partition(",")[0].endswith(f"={wanted}")
    assert "{" not in found


@pytest.mark.parametrize("title", HELD)
def test_a_stopped_job_is_stopped_by_sentinel_and_starts_as_it_was(title: str) -> None:
    before = seen(title)
    stopped = applied(before, stop(before, "lab.train-0001"))
    if before.row.stop is Means.COMMAND:
        stopped = seen(
            title, pods=(), status__state__phase="Aborted", metadata__annotations=_notes(stopped.job)
        )
    now = standing(stopped)
    assert (now.stopped, now.stopped_by, now.mark) == (True, SENTINEL, "lab.train-0001")
    assert now.size == standing(before).size
    again = stop(gone(stopped), "lab.train-0002")
    assert isinstance(again, Plan)
    assert again.writes == ()
    plan = start(gone(stopped))
    started = applied(gone(stopped), plan)
    assert isinstance(plan, Plan)
    assert plan.costs == before.row.start_costs
    if before.row.stop is Means.COMMAND:
        return  # what follows is its operator's
    assert not standing(started).stopped
    assert standing(started).mark == ""
    job, first = started.job, dict(before.job)
    assert _without_version(job) == _without_version(
        {**first, "spec": {**first["spec"], **_unsuspended(job)}}
    )


def _notes(job: object) -> object:
    return read(job, "metadata.annotations")


def _unsuspended(job: dict) -> dict:
    """A field that was not there is now false."""
    if "suspend" in job["spec"]:
        return {"suspend": False}
    return {"runPolicy": {"suspend": False}} if "runPolicy" in job["spec"] else {}


def _without_version(job: dict) -> dict:
    return {**job, "metadata": {**job["metadata"], "resourceVersion": ""}}


@pytest.mark.parametrize(
    "title", [t for t in ROWS if t not in HELD and "evicting-all-fails" not in row_named(t).traps]
)
def test_a_kind_without_a_stop_has_its_pods_evicted(title: str) -> None:
    before = seen(title)
    plan = stop(before, "lab.train-0001", grace_s=120)
    evicted = {one.name for one in writes(plan) if one.verb is Verb.EVICT}
    spared = {one.name for one in ranks(before) if one.group.lower() in before.row.spare}
    assert evicted | spared == {pod["metadata"]["name"] for pod in before.pods}
    assert all(one.body["deleteOptions"]["gracePeriodSeconds"] == 120 for one in writes(plan))
    after = applied(before, plan)
    assert {one["metadata"]["name"] for one in living(after.pods)} == spared


@pytest.mark.parametrize("title", ROWS)
def test_every_write_names_what_it_rests_on(title: str) -> None:
    before = seen(title)
    plans = [stop(before, "lab.train-0001"), keep_off_nodes(before, ["n1"])]
    checked = False
    for plan in plans:
        for one in plan.writes if isinstance(plan, Plan) else ():
            assert one.uid
            if one.verb is Verb.PATCH:
                assert one.request("8")["metadata"]["uid"] == "u-train"
                assert one.request("8")["metadata"]["resourceVersion"] == ("8" if one.follows else "7")
            if one.verb is Verb.EVICT:
                assert one.body["deleteOptions"]["preconditions"] == {"uid": one.uid}
            checked = True
    assert checked


@pytest.mark.parametrize("title", ROWS)
def test_it_is_kept_off_a_node_by_its_means_or_says_why_not(title: str) -> None:
    before = seen(title)
    how = before.row.keep_off
    if how is KeepOff.NONE:
        refused = keep_off_nodes(before, ["n1"])
        assert isinstance(refused, Refusal)
        assert refused.reason is Reason.CANNOT_KEEP_OFF
        assert "n1" in refused.sentence
        return
    if how is KeepOff.TEMPLATE:
        kept = applied(before, keep_off_nodes(before, ["n1"]))
    else:
        assert keep_off_nodes(before, ["n1"]).reason is Reason.NOT_STOPPED  # type: ignore[union-attr]
        stopped = gone(applied(before, stop(before, "lab.train-0001")))
        if how is KeepOff.CHILDREN:
            assert start(stopped, hosts=["n1"]).reason is Reason.CHILDREN_UNKNOWN  # type: ignore[union-attr]
            return  # shown by the trap affinity-in-children
        if how is KeepOff.SELECTOR:
            assert start(stopped, hosts=["n1"]).reason is Reason.LABEL_NEEDED  # type: ignore[union-attr]
            return  # shown by the trap overrides-are-pruned
        kept = applied(stopped, start(stopped, hosts=["n1"]))
    assert standing(kept).kept_off == ("n1",)
    told = _affinities(kept.job)
    assert told
    assert all(one["values"] == ["n1"] for one in told)
    assert _affinities(before.job) == []


def _affinities(held: object) -> list[dict]:
    """Every expression on hostnames in an object."""
    if isinstance(held, list):
        return [one for item in held for one in _affinities(item)]
    if not isinstance(held, dict):
        return []
    if held.get("key") == "kubernetes.io/hostname":
        return [held]
    return [one for item in held.values() for one in _affinities(item)]


@pytest.mark.parametrize("title", ROWS)
def test_its_size_changes_in_one_patch_or_says_why_not(title: str) -> None:
    before = seen(title)
    if (never := never_changes(before)) is not None:
        assert before.row.resize in (Resize.FIXED, Resize.RECREATE)
        assert never.reason in (Reason.SIZE_FIXED, Reason.SIZE_BY_RECREATING)
        return
    if title not in HELD:
        assert not_elastic(before).reason is Reason.SIZE_FIXED  # type: ignore[union-attr]
        return
    stopped = gone(applied(before, stop(before, "lab.train-0001")))
    if before.row.stop is Means.COMMAND:
        stopped = seen(
            title, pods=(), status__state__phase="Aborted", metadata__annotations=_notes(stopped.job)
        )
    for size in (2, 6):
        plan = start(stopped, size=size)
        assert len([one for one in writes(plan) if one.verb is Verb.PATCH]) == 1
        assert size_of(applied(stopped, plan)) == size
    for size in (0, -1):
        assert start(stopped, size=size).reason is Reason.OUT_OF_BOUNDS  # type: ignore[union-attr]


@pytest.mark.parametrize("title", [t for t in ROWS if row_named(t).succeeded])
def test_its_end_is_read_and_what_has_ended_is_left_alone(title: str) -> None:
    row = row_named(title)
    for ends, said in ((row.succeeded, "succeeded"), (row.failed, "failed")):
        for end in ends:
            if row.phase:
                over = seen(title, **{row.phase.replace(".", "__"): end})
            else:
                conditions = [
                    {"type": "Running", "status": "False"},
                    {"type": end, "status": "True", "reason": "Because", "message": "it is so"},
                ]
                over = seen(title, status__conditions=conditions)
            now = standing(over)
            assert now.ended == said
            assert now.why_ended.startswith(end)
            for plan in (stop(over, "x"), start(over, size=2), keep_off_nodes(over, ["n1"])):
                assert isinstance(plan, Refusal)
                assert plan.reason is Reason.ENDED


# ---------------------------------------------------------------- the table itself

INVENTED = """
[[kind]]
kind = "SparkTrainJob"
group = "training.example.com"
version = "v1"
plural = "sparktrainjobs"
source = "nowhere"
tried = "schema"
pods = "example.com/job={name}"
role_label = "example.com/role"
roles = { driver = "launcher" }
index = ["annotation:example.com/number"]
groups = [{ at = "spec.roles[]", name = "role", size = "count", templates = ["pod"] }]
stop = "suspend"
suspend = "spec.paused"
keep_off = "template"
resize = "stopped"
phase = "status.phase"
succeeded = ["Done"]
failed = ["Broken"]
limits = [{ at = "spec.tries", default = 5, used = "status.tried" }]
traps = ["made-up"]

[[trap]]
id = "made-up"
text = "It does not exist."
so = "Nothing is done about it."
"""


def test_a_new_kind_is_one_row(tmp_path: Path) -> None:
    """Found, read, numbered, stopped, kept off a node, resized and started: with no code for it."""
    from sentinel.core.job.limits import limits
    from sentinel.core.job.state import Seen

    (tmp_path / "kinds.toml").write_text(INVENTED)
    row = load_job_table(tmp_path / "kinds.toml").rows[0]
    roles = [{"role": "driver", "count": 1, "pod": {}}, {"role": "executor", "count": 3, "pod": template()}]
    job = {
        "apiVersion": "training.example.com/v1",
        "kind": "SparkTrainJob",
        "metadata": {"namespace": "lab", "name": "s", "uid": "u-train", "resourceVersion": "1"},
        "spec": {"roles": roles},
        "status": {"phase": "Going", "tried": 2},
    }
    pods = tuple(
        {
            "metadata": {
                "name": f"{role}-{n}",
                "uid": f"{role}-{n}",
                "labels": {"example.com/role": role},
                "annotations": {"example.com/number": str(n)},
            },
            "spec": {},
        }
        for role, count in (("driver", 1), ("executor", 3))
        for n in range(count)
    )
    assert row_of([*job_table().rows, row], job) is row
    before = Seen(row=row, job=job, pods=pods)
    assert selector(row, job) == "example.com/job=s"
    assert standing(before).size == 3
    assert [(one.name, one.rank) for one in ranks(before)] == [
        ("executor-0", 0), ("executor-1", 1), ("executor-2", 2), ("driver-0", None),
    ]  # fmt: skip
    assert [(one.limit, one.left) for one in limits(before)] == [(5, 3)]
    stopped = gone(applied(before, stop(before, "lab.s-0001")))
    assert stopped.job["spec"]["paused"] is True
    plan = start(stopped, size=2, hosts=["n7"])
    assert len(writes(plan)) == 1
    started = applied(stopped, plan)
    assert (standing(started).stopped, standing(started).size, standing(started).kept_off) == (
        False,
        2,
        ("n7",),
    )
    job["status"]["phase"] = "Done"
    assert standing(before).ended == "succeeded"


def test_a_table_that_does_not_fit_together_is_refused_with_all_problems(tmp_path: Path) -> None:
    wrong = INVENTED.replace('suspend = "spec.paused"\n', "").replace('templates = ["pod"]', "templates = []")
    wrong = wrong.replace('traps = ["made-up"]', 'traps = ["not-there"]') + INVENTED.split("[[trap]]")[0]
    (tmp_path / "kinds.toml").write_text(wrong)
    with pytest.raises(RuleError) as refused:
        load_job_table(tmp_path / "kinds.toml")
    said = "\n".join(refused.value.problems)
    for part in ("needs the field", "no template", "no trap 'not-there'", "stands twice"):
        assert part in said


def test_a_row_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kinds.toml").write_text(INVENTED.replace("plural =", 'colour = "red"\nplural ='))
    with pytest.raises(RuleError, match="colour"):
        load_job_table(tmp_path / "kinds.toml")


def test_a_trap_that_no_kind_has_is_refused() -> None:
    assert problems_of([], {"lonely": Trap("lonely", "It is alone.", "Nothing.")}) == [
        "trap 'lonely': no kind has it"
    ]


def test_each_resource_is_followed_once_and_pods_are_not() -> None:
    followed = [(row.group, row.version, row.plural) for row in job_table().followed]
    assert len(followed) == len(set(followed)) == len(ROWS) - 2
    assert ("", "v1", "pods") not in followed


def test_an_object_of_no_known_kind_is_left_to_the_fallback() -> None:
    strange: dict = {"apiVersion": "example.com/v1", "kind": "Strange"}
    found = row_of(job_table().rows, strange)
    assert isinstance(found, JobKind)
    assert found.fallback
    assert row_of([row for row in job_table().rows if not row.fallback], strange) is None
