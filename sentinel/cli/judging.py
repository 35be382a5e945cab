"""Judges JobPolicies of a cluster as `sentinel validate` does, in a child: neither YAML nor the schema library stays
in the controller's memory, and a policy that is made to hurt has an end.

`python -m sentinel.cli.judging` reads {settings, documents} on standard input and prints a list of verdicts.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from sentinel.core.protection import Judged
from sentinel.errors import TemporaryError
from sentinel.settings import Settings

TIMEOUT_S = 60.0
AGAIN_S = 5.0
MAX_PROBLEMS = 100
# As sentinel.config.child starts one: nothing of the working directory comes into its path.
_CHILD = (
    "import sys; sys.path.append(sys.argv.pop(1)); from sentinel.cli.judging import main; sys.exit(main())"
)


class _Asked(Struct):
    settings: Settings
    documents: list[dict[str, Any]]


def judge(settings: Settings) -> Callable[[Sequence[dict[str, Any]]], Awaitable[list[Judged]]]:
    """`settings` hold the administrators' caps. The judge raises TemporaryError where the child gave no answer."""

    async def ask(documents: Sequence[dict[str, Any]]) -> list[Judged]:
        command = (sys.executable, "-P", "-c", _CHILD, str(Path(__file__).parents[2]))
        body = msgspec.json.encode(_Asked(settings, list(documents)))
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise TemporaryError(f"policies cannot be judged: {error}", AGAIN_S) from error
        try:
            async with asyncio.timeout(TIMEOUT_S):
                out, errors = await child.communicate(body)
        except TimeoutError:
            raise TemporaryError(f"judging took longer than {TIMEOUT_S:g} s", AGAIN_S) from None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        if child.returncode != 0:
            last = (errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise TemporaryError(f"the judge ended with code {child.returncode}: {last}", AGAIN_S)
        try:
            verdicts = msgspec.json.decode(out, type=list[Judged])
        except msgspec.DecodeError as error:
            raise TemporaryError(f"the judge's answer cannot be read: {error}", AGAIN_S) from error
        if len(verdicts) != len(documents):
            raise TemporaryError(f"{len(verdicts)} verdicts on {len(documents)} policies", AGAIN_S)
        return verdicts

    return ask


def main() -> int:
    from sentinel.cli.validate import judged_policy
    from sentinel.config.document import Document
    from sentinel.config.problems import ConfigErrors

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
