"""How commands for people reach a cluster, and what they say when they cannot. Nothing of this is resident."""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.console.tables import complain

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.client import Client
    from sentinel.cluster.kubernetes.objects import Lease

EXIT_NOT_DONE = 1
EXIT_UNREACHABLE = 69
EXIT_UNANSWERED = 75  # it stands, and is followed when a controller leads
EXIT_FORBIDDEN = 77
WAIT_S = 30.0
ROLES = "the roles sentinel-reader and sentinel-operator are for that"
LATE_S = 3.0  # after that it is said what is waited for


def add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubeconfig", metavar="FILE", default="", help="default: $KUBECONFIG, the pod's, ~/.kube/config"
    )
    parser.add_argument(
        "--system", metavar="NAMESPACE", default="", help="where the controllers run (sentinel-system)"
    )


def add_wait(parser: argparse.ArgumentParser) -> None:
    from sentinel.cli.options import duration_s

    parser.add_argument(
        "--wait",
        metavar="TIME",
        type=duration_s,
        default=WAIT_S,
        help=f"for the controller's answer, like 1m (default: {WAIT_S:g}s)",
    )


def namespace_of(args: argparse.Namespace) -> str:
    return args.system or os.environ.get("POD_NAMESPACE", "") or "sentinel-system"


def identity_there() -> bool:
    """Does anything here say how to reach a cluster?"""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    return in_pod or bool(os.environ.get("KUBECONFIG")) or (Path.home() / ".kube" / "config").exists()


def of_cluster(args: argparse.Namespace, state_dir: Path, name: str = "") -> bool:
    """A cluster is asked for; or this machine has no jobs, and something says how to reach one."""
    if args.kubeconfig or args.namespace or "/" in name:
        return True
    return not (state_dir / "state.db").exists() and identity_there()


def asked(args: argparse.Namespace, work: Callable[["Client"], Awaitable[int]], *, roles: str = ROLES) -> int:
    """Run `work` at the API server; its exit code, or that of the error that it met, which is told.

    `roles`: who may.
    """
    try:
        from sentinel.cluster.kubernetes import access
        from sentinel.cluster.kubernetes.client import Client
    except ImportError as error:
        complain(
            f"the Kubernetes client is not installed ({error.name}): pip install 'sentinel-gpu[controller]'"
        )
        return EXIT_UNREACHABLE
    from sentinel.cluster.kubernetes.errors import Forbidden
    from sentinel.util.errors import PermanentError, TemporaryError

    url = ""

    async def run() -> int:
        nonlocal url
        async with Client(await access.load(args.kubeconfig), user_agent="sentinel-cli") as client:
            url = client.url
            return await work(client)

    try:
        return asyncio.run(run())
    except Forbidden as error:
        complain(_refusal(str(error), roles))
        return EXIT_FORBIDDEN
    except TemporaryError as error:
        complain(f"no API server answers at {url}: {error}")
        return EXIT_UNREACHABLE
    except PermanentError as error:
        complain(str(error))
        return EXIT_UNREACHABLE if error.reason == "Unreachable" else EXIT_NOT_DONE


def _refusal(said: str, roles: str) -> str:
    """What the API server says without the request; and what helps."""
    if ": 401" in said:
        return f"the API server does not know you (a token or certificate that has expired? log in again): {said}"
    _, _, why = said.partition("403 Forbidden ")
    return f"you may not: {why or said} ({roles})"


@contextlib.contextmanager
def late(what: str) -> Iterator[None]:
    """Who waits at a terminal for longer than a moment is told for what."""

    def tell() -> None:
        if sys.stderr.isatty():
            complain(f"waits for {what} (Ctrl-C ends it) ...")

    told = asyncio.get_running_loop().call_later(LATE_S, tell)
    try:
        yield
    finally:
        told.cancel()


async def who_am_i(client: "Client") -> str:
    """As the API server knows us; "" where it does not tell."""
    from msgspec import Struct

    from sentinel.cluster.kubernetes.client import Resource
    from sentinel.util.errors import PermanentError, TemporaryError

    class User(Struct):
        username: str = ""

    class Status(Struct, rename="camel"):
        user_info: User

    class Review(Struct):
        status: Status

    kind = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", namespaced=False)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        return (await client.create(kind.path(), body, Review)).status.user_info.username
    except (TemporaryError, PermanentError):  # before Kubernetes 1.28
        return ""


def silent(before: "Lease | None", after: "Lease | None", wait_s: float) -> str:
    """Why nobody answered in `wait_s`."""
    if after is None or not after.spec.holder_identity:
        return "no controller leads now"
    if before is not None and before.spec.renew_time == after.spec.renew_time:
        return f"no controller leads: {after.spec.holder_identity} did, and was last heard {_at(after)}"
    return f"the controller {after.spec.holder_identity} did not answer within {wait_s:g} s"


def _at(found: "Lease") -> str:
    from sentinel.util.documents import time_of
    from sentinel.web.words import when

    try:
        return f"at {when(time_of(found.spec.renew_time or ''))}"
    except ValueError:
        return "at a time that cannot be read"
