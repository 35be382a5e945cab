"""Which policy protects which job."""

from msgspec import structs

from sentinel.core.fleet.model import Mode
from sentinel.core.people.protection import (
    Asked,
    Job,
    Judged,
    Protection,
    Selector,
    conflicts,
    picks,
    protection,
)
from sentinel.core.policy_model import Checkpoint, LostNode, Policy, Resume

JOB = Job("PyTorchJob", "kubeflow.org", "research", "llama", {"team": "nlp", "size": "big"})
POLICY = Policy(
    restart=None,
    resume=Resume(graceful_stop_s=60.0, checkpoint=Checkpoint(timeout_s=300.0)),
    lost_node=LostNode(force_after_s=900.0),
)

EVERY = Selector()


def asked(
    name: str = "p", selector: Selector | None = EVERY, policy: Policy | None = POLICY, at: int = 1
) -> Asked:
    return Asked("research", name, f"uid-{name}", f"2026-11-21T10:00:{at:02d}Z", selector, Judged(policy))


def test_everything_that_a_selector_names_must_fit() -> None:
    for selector, fits in (
        (Selector(), True),
        (Selector(kinds=("Job", "PyTorchJob")), True),
        (Selector(kinds=("PyTorchJob.kubeflow.org",)), True),
        (Selector(kinds=("PyTorchJob.training.kubedl.io",)), False),
        (Selector(kinds=("Job",)), False),
        (Selector(match_labels={"team": "nlp", "size": "big"}), True),
        (Selector(match_labels={"team": "nlp", "size": "small"}), False),
        (Selector(name="llama"), True),
        (Selector(name="llama2", match_labels={"team": "nlp"}), False),
        (None, False),
    ):
        assert picks(asked(selector=selector), JOB) is fits
    assert not picks(asked(), structs.replace(JOB, namespace="other"))


def test_what_is_known_by_its_pods_alone_is_picked_by_that_word_only() -> None:
    pods = Job("GangJob", "example.com", "research", "llama", {"team": "nlp"}, by_pods=True)
    for selector, fits in (
        (Selector(), False),
        (Selector(match_labels={"team": "nlp"}), False),
        (Selector(kinds=("GangJob",)), False),
        (Selector(kinds=("Job", "Pod")), True),
        (Selector(kinds=("Pod",), match_labels={"team": "nlp"}, name="llama"), True),
        (Selector(kinds=("Pod",), match_labels={"team": "cv"}), False),
        (Selector(kinds=("Pod",), name="llama2"), False),
    ):
        assert picks(asked(selector=selector), pods) is fits
    assert not picks(asked(selector=Selector(kinds=("Pod",))), JOB)


def test_the_oldest_accepted_policy_is_in_force_and_newer_ones_are_told_for_which_jobs() -> None:
    old, new = asked("z-old", at=1), asked("a-new", at=2, policy=Policy())
    assert protection([new, old], JOB) == Protection(force_after_s=900.0, stop_s=360.0, removal=Mode.ENFORCE)
    others = [structs.replace(JOB, name=f"job-{number:02d}") for number in range(12)]
    (told,) = conflicts([new, old], others).items()
    assert told[0] == "uid-a-new"
    assert told[1].startswith("The older policy z-old stays in force for PyTorchJob research/job-00, ")
    assert told[1].endswith("job-09 and 2 more.")
    assert not conflicts([old, asked("n", Selector(name="another"), at=3)], [JOB])


def test_a_refused_policy_neither_rules_nor_conflicts_but_keeps_harm_away() -> None:
    refused = asked("old", policy=None, at=1)
    assert protection([refused], JOB) == Protection()
    assert protection([structs.replace(refused, judged=None)], JOB) == Protection()
    good = asked("new", at=2)
    assert protection([refused, good], JOB) == protection([good], JOB) != Protection()
    assert not conflicts([refused, good], [JOB])
    assert protection([asked(selector=Selector(name="another"))], JOB) is None


def test_nothing_is_removed_or_timed_on_the_word_of_a_policy_that_only_observes_or_restarts() -> None:
    assert protection([asked(policy=structs.replace(POLICY, mode="observe"))], JOB) == Protection(
        removal=Mode.OBSERVE
    )
    assert protection([asked(policy=Policy())], JOB) == Protection(removal=Mode.ENFORCE)
