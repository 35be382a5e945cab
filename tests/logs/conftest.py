import pytest

from sentinel.logs.ruleset import RuleSet, load_ruleset


@pytest.fixture(scope="session")
def shipped() -> RuleSet:
    """The shipped rules, compiled once."""
    return load_ruleset()
