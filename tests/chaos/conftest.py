"""A control plane of the file's own for controllers that are hurt, as those of tests/kubernetes have."""

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.kubernetes.conftest import own_plane, plane

__all__ = ["own_plane", "plane"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The agents of this process say each time that nobody leads."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()
