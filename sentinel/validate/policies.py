"""One policy as `sentinel validate` judges it."""

from collections.abc import Iterator

from sentinel.config.document import Document
from sentinel.config.load import policies_of
from sentinel.config.problems import ConfigErrors, Problem, show
from sentinel.core.people.policy_words import policy_words
from sentinel.core.policy_model import Policy
from sentinel.logs.formats import check_row, owned_row
from sentinel.logs.match import check_pattern
from sentinel.settings import Settings


def judged_policy(document: Document, settings: Settings) -> tuple[Policy, str]:
    """One policy, and what it says in words. Raises ConfigErrors."""
    (policy,) = policies_of([document], settings)
    if problems := list(unmatchable(policy, [document])):
        raise ConfigErrors(problems)
    return policy, policy_words(policy)


def unmatchable(policy: Policy, documents: list[Document]) -> Iterator[Problem]:
    """Patterns that RE2 takes and the engine that scans logs does not."""
    document = next(one for one in documents if one.data["metadata"]["name"] == policy.name)
    checkpoint = policy.resume.checkpoint if policy.resume else None
    patterns: list[tuple[tuple[str | int, ...], str]] = [
        (("spec", "logRules", index, "pattern"), rule.pattern) for index, rule in enumerate(policy.log_rules)
    ]
    if checkpoint and checkpoint.proof and checkpoint.proof.log_pattern:
        path = ("spec", "resume", "checkpoint", "proof", "logPattern")
        patterns.append((path, checkpoint.proof.log_pattern))
    for place, pattern in patterns:
        problem = check_pattern(pattern)
        if problem:
            yield document.problem(place, f"a pattern for logs: {problem}", show(pattern))
    for index, form in enumerate(policy.timing_formats):
        row = owned_row(form)
        for problem in check_row(row):
            where, _, said = problem.partition(": ")
            place = ("spec", "timingFormats", index, where)
            yield document.problem(place, f"a timing format: {said}", show(getattr(row, where)))
