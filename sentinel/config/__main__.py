"""`python -m sentinel.config --policy FILE --settings FILE`: one JSON document on standard output for a process
that may not import YAML and pydantic itself, or the readable problems on standard error and exit code 78."""

import argparse
import os
import sys
from pathlib import Path

import msgspec

from sentinel.config.client import Loaded
from sentinel.config.document import parse, read_text
from sentinel.config.load import load_settings, policies_of
from sentinel.config.problems import ConfigErrors, Problem
from sentinel.core.people.caps import capped
from sentinel.core.policy_model import Policy
from sentinel.settings import Settings


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sentinel.config")
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--settings", type=Path)
    args = parser.parse_args(argv)
    problems: list[Problem] = []
    settings, policy = Settings(), None
    try:
        if args.settings:
            settings = load_settings(args.settings)
    except ConfigErrors as errors:
        problems += errors.problems
    try:
        policy = _one_policy(args.policy, settings) if args.policy else capped(Policy(), settings.caps)
    except ConfigErrors as errors:
        problems += errors.problems
    if problems or policy is None:
        print(ConfigErrors(problems), file=sys.stderr)
        return os.EX_CONFIG
    sys.stdout.buffer.write(msgspec.json.encode(Loaded(policy=policy, settings=settings)) + b"\n")
    return 0


def _one_policy(path: Path, settings: Settings) -> Policy:
    documents = parse(read_text(path), str(path))
    policies = policies_of(documents, settings)
    if len(policies) > 1:
        raise ConfigErrors([documents[1].problem((), "one policy for one job", f"{len(policies)} policies")])
    return policies[0]


if __name__ == "__main__":
    sys.exit(main())
