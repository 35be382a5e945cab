"""Which job of a cluster is meant: NAMESPACE/NAME, NAMESPACE/KIND/NAME, or NAME in a namespace that stands besides."""

import argparse
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from sentinel.console.tables import complain

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.client import Client
    from sentinel.cluster.kubernetes.orders import Place

FORMS = "NAMESPACE/NAME or NAMESPACE/KIND/NAME, or with -n NAMESPACE: NAME or KIND/NAME"
NAMED = 10  # jobs that one message names


class Target(Struct, frozen=True):
    namespace: str  # "": any
    kind: str  # pytorchjob or pytorchjob.kubeflow.org; "": any
    name: str

    @property
    def title(self) -> str:
        return "/".join(part for part in (self.namespace, self.kind, self.name) if part)

    def fits(self, job: str) -> bool:
        """`job`: ProtectedJob.name."""
        namespace, kind, name = (*job.split("/", 2), "", "")[:3]
        asked = self.kind.lower()
        return (
            name == self.name
            and self.namespace in ("", namespace)
            and (not asked or kind == asked or kind.partition(".")[0] == asked)
        )


def add_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", default="", help="of jobs of a cluster (default: the context's)"
    )


def parse(text: str, namespace: str) -> Target:
    """`namespace`: named by an option. Raises ValueError."""
    parts = text.split("/")
    if namespace:
        parts = [namespace, *parts]
    if not all(parts) or len(parts) > 3:
        raise ValueError(f"{text!r} names no job: {FORMS}")
    if len(parts) == 1:
        return Target("", "", text)
    return Target(parts[0], parts[1] if len(parts) == 3 else "", parts[-1])


def target_of(client: "Client", text: str, namespace: str) -> Target:
    """A name alone is one of the namespace that the kubeconfig's context names. Raises ValueError, PermanentError."""
    found = parse(text, namespace)
    return found if found.namespace else Target(client.namespace(), "", found.name)


async def place_of(client: "Client", text: str, namespace: str) -> "Place | None":
    """The record of the job that is meant; None where there is none or more than one, which is told."""
    from sentinel.cluster.kubernetes.objects import PROTECTED_JOBS, FullMeta
    from sentinel.cluster.kubernetes.orders import Place
    from sentinel.status.fleet_read import listed

    class Spec(Struct):
        name: str = ""

    class Head(Struct):
        metadata: FullMeta
        spec: Spec = msgspec.field(default_factory=Spec)

    try:
        target = target_of(client, text, namespace)
    except ValueError as error:
        complain(str(error))
        return None
    there = await listed(client, PROTECTED_JOBS, Head, target.namespace)
    fitting = [one for one in there if target.fits(one.spec.name)]
    if len(fitting) == 1:
        (one,) = fitting
        return Place(PROTECTED_JOBS, one.metadata.name, one.spec.name, one.metadata.namespace)
    complain(missing(target, [one.spec.name for one in there], [one.spec.name for one in fitting]))
    return None


def missing(target: Target, there: list[str], fitting: list[str]) -> str:
    """Why `target` means no job, or more than one."""
    if fitting:
        return f"{target.title} is the name of more than one job: {_named(fitting)}"
    where = f"namespace {target.namespace}" if target.namespace else "the cluster"
    known = f"; protected there: {_named(there)}" if there else f", nor any other in {where}"
    return f"there is no protected job {target.title}{known}"


def _named(jobs: list[str]) -> str:
    more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
    return ", ".join(sorted(jobs)[:NAMED]) + more
