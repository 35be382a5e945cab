"""Operators that `make test` leaves out, since half an hour of building is too much for it: `make test-operators`."""

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.box import Box
from tests.kubernetes.conftest import install
from tests.kubernetes.driven import Driven
from tests.kubernetes.local_fleet import Fleet
from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.fixtures import shared
from tests.rig.kwok import Kwok
from tests.rig.processes import Rig

NODES = "operators"  # the label `rig` of the fake nodes
Drive = Callable[..., Driven]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for each file: operators share names of custom resources, and act on jobs of others."""
    with Rig(tmp_path_factory.mktemp("control-plane")) as rig, shared(ControlPlane(rig)) as made:
        yield made


@pytest.fixture(scope="module")
def kwok(plane: ControlPlane) -> Kwok:
    made = Kwok(plane)
    made.nodes(NODES, 2)
    return made


@pytest.fixture(scope="module")
def fleet(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """`sentinel controller`, which leads. Jobs in a namespace without a policy are none of its business."""
    folder = tmp_path_factory.mktemp("fleet")
    install(plane)
    box = Box(folder / "box")
    made = Fleet(plane, box, folder)
    made.controller("one").said("leads, epoch", 60.0)
    yield made
    box.close()
    assert "Traceback" not in made.story()


@pytest.fixture
def drive(plane: ControlPlane, kwok: Kwok, fleet: Fleet) -> Drive:
    """A job of so many ranks under that controller, in a namespace of its own; its other objects are there first."""

    def make(job: Object, size: int, *others: Object, space: str = "") -> Driven:
        made = Driven(plane.admin, space or plane.namespace(), job, fleet, kwok, size)
        plane.admin.apply(others, namespace=made.space)
        return made

    return make
