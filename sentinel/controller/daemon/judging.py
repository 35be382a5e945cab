"""Judges JobPolicies of a cluster as `sentinel validate` does, in a child: neither YAML nor the schema library stays
in the controller's memory, and a policy that is made to hurt has an end.

The child is a Python that calls `main`: it reads {settings, documents} on standard input and prints a list of verdicts.
"""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from sentinel.core.people.protection import Judged
from sentinel.settings import Settings
from sentinel.util.children import ChildError, OutOfTime, ask, our_python
from sentinel.util.errors import TemporaryError

TIMEOUT_S = 60.0
MOST_BYTES = 1 << 24  # of all verdicts; an object of an API server has less than a tenth of that
AGAIN_S = 5.0
MAX_PROBLEMS = 100


class _Asked(Struct):
    settings: Settings
    documents: list[dict[str, Any]]


def judge(settings: Settings) -> Callable[[Sequence[dict[str, Any]]], Awaitable[list[Judged]]]:
    """`settings` hold the administrators' caps. The judge raises TemporaryError where the child gave no answer."""

    async def verdicts_on(documents: Sequence[dict[str, Any]]) -> list[Judged]:
        body = msgspec.json.encode(_Asked(settings, list(documents)))
        command = our_python("sentinel.controller.daemon.judging")
        try:
            ended = await ask(command, body, limit_s=TIMEOUT_S, most_bytes=MOST_BYTES)
        except OutOfTime:
            raise TemporaryError(f"judging took longer than {TIMEOUT_S:g} s", AGAIN_S) from None
        except ChildError as error:
            raise TemporaryError(f"policies cannot be judged: {error}", AGAIN_S) from error
        if ended.code != 0:
            raise TemporaryError(f"the judge ended with code {ended.code}: {ended.last_line}", AGAIN_S)
        try:
            verdicts = msgspec.json.decode(ended.answer, type=list[Judged])
        except msgspec.DecodeError as error:
            raise TemporaryError(f"the judge's answer cannot be read: {error}", AGAIN_S) from error
        if len(verdicts) != len(documents):
            raise TemporaryError(f"{len(verdicts)} verdicts on {len(documents)} policies", AGAIN_S)
        return verdicts

    return verdicts_on


def main() -> int:
    from sentinel.config.document import Document
    from sentinel.config.problems import ConfigErrors
    from sentinel.validate.policies import judged_policy

    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=_Asked)
    verdicts = []
    for data in asked.documents:
        try:
            policy, summary = judged_policy(Document("", data, {}, {}), asked.settings)
            verdicts.append(Judged(policy, summary))
        except ConfigErrors as errors:
            told = [str(problem) for problem in errors.problems[:MAX_PROBLEMS]]
            if len(errors.problems) > MAX_PROBLEMS:
                told.append(f"and {len(errors.problems) - MAX_PROBLEMS} more problems")
            verdicts.append(Judged(problems=tuple(told)))
    sys.stdout.buffer.write(msgspec.json.encode(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
