"""The life of an installation by its chart, on real kubelets under a job that trains: what docs/install.md and
`make cluster` say, by the commands that they print."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.e2e.agent_node import XID_79
from tests.gate.rights import needs_root
from tests.kubernetes.conftest import NAMESPACE, QUARANTINES
from tests.kubernetes.real_cluster import MANY, Cluster
from tests.kubernetes.real_training import BATCH, Training
from tests.notify.mail_world import Certificates, MailServer
from tests.rig.fixtures import shared

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.node import Node

REPO = Path(__file__).parents[2]
LOGIN, PASSWORD = "sentinel", "open-Sesame-4711"
SECRET = "login-of-mail"  # not the name that the chart has by itself
ADMINS, NIGHT = "ops@example.com", "night@example.com"
RELEASE = f"sentinel deploy/chart -n {NAMESPACE}"
UPGRADE = f"helm upgrade {RELEASE} -f"


class Installed(Cluster):
    """What `make cluster` brings up, with a mail server that wants a login."""

    def __init__(self, plane: "ControlPlane", mails: MailServer, ca: str) -> None:
        from tests.rig.__main__ import Shown
        from tests.rig.binaries import helm
        from tests.rig.installed import Sentinel, sentinel_image

        self.plane, self.admin = plane, plane.admin
        programs = (helm().path("helm"), plane.binaries.path("kubectl"), Path(sys.executable))
        folders = ":".join(str(program.parent) for program in programs)
        self._env = {"PATH": f"{folders}:/usr/bin:/bin", "KUBECONFIG": str(plane.kubeconfig)}
        self._env["HOME"] = str(plane.rig.folder / "home")
        self.sh(f"kubectl create namespace {NAMESPACE}")
        secret = f"kubectl -n {NAMESPACE} create secret generic {SECRET}"
        self.sh(f"{secret} --from-literal=password={PASSWORD} --from-file=ca.crt={ca}")
        mail = {
            "host": plane.network.address, "port": mails.port, "tls": "starttls", "username": LOGIN,
            "passwordFile": "/etc/sentinel-mail/password", "caFile": "/etc/sentinel-mail/ca.crt",
            "admins": [ADMINS],
        }  # fmt: skip
        fleet = {"isolations": MANY, "poolIsolations": MANY, "agentSilent": "30s"}  # much for three nodes
        self.shown = Shown(plane.rig, mails, mailSecret=SECRET, settings={"mail": mail, "fleet": fleet})
        self.shown.bring_up(plane, sentinel_image())
        self.nodes = list(self.shown.nodes.values())
        self.sentinel = Sentinel(plane, install=False)

    def sh(self, command: str) -> str:
        """As a person types it in a checkout."""
        done = self.tried(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def tried(self, command: str) -> "subprocess.CompletedProcess[str]":
        words = ["sh", "-c", command]
        return subprocess.run(words, env=self._env, cwd=REPO, capture_output=True, text=True, timeout=300)

    def printed(self, pattern: str) -> "re.Match[str]":
        """Of what `make cluster` would print now."""
        text = self.shown.help(self.plane)
        found = re.search(pattern, text)
        assert found, text
        return found

    def values(self, path: Path, change: Callable[[Any], None]) -> Path:
        """The whole file again, with this change."""
        given = yaml.safe_load(self.shown.values.read_text())
        change(given)
        path.write_text(yaml.safe_dump(given))
        return path

    def is_heard(self) -> None:
        """Each node's agent by a controller; of one that is not, what its page says."""
        from tests.rig.processes import until

        for node in self.nodes:
            until(partial(self.sentinel.reports, node), partial(self.page_of, node))

    def page_of(self, node: "Node") -> str:
        look = ("busybox", "wget", "-qO-", "http://127.0.0.1:9810/metrics")
        return f"{node.name}: {node.run(*look, check=False)}\n{self.sentinel.story()}"

    def spare(self, training: Training) -> "Node":
        """The node that has no rank."""
        return next(node for node, ranks in training.ranks_by_node().items() if not ranks)

    def programs(self, part: str) -> list[Path]:
        """The program of each pod of a part: its folder below /proc."""
        pids = (pid for pod in self.sentinel.pods(part) for node in self.nodes for pid in node.pids(pod))
        return [path for pid in pids if is_program(path := Path(f"/proc/{pid}"), part)]


def is_program(process: Path, part: str) -> bool:
    """And none of its children, which end at any moment."""
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return words[-4:] == [part.encode(), b"--settings", b"/etc/sentinel/settings.yaml", b""]


class Trained(Training):
    """The job `train` of `make cluster`."""

    cluster: Installed

    def __init__(self, cluster: Installed) -> None:
        self.cluster, self.admin, self.kind = cluster, cluster.admin, BATCH
        self.space, self.folder = "default", cluster.shown.checkpoints

    def ranks(self) -> set[str]:
        """The uids of its pods that run and were never started again."""
        return {
            pod["metadata"]["uid"]
            for pod in self.pods()
            if "deletionTimestamp" not in pod["metadata"]
            and not any(one["restartCount"] for one in pod["status"]["containerStatuses"])
        }

    def steps_on(self, ranks: set[str]) -> None:
        """It makes steps from now on, by these pods."""
        done = len(self.line())  # some of them again, since a checkpoint
        self.until(lambda: len(self.line()) > done + 5)
        assert self.ranks() == ranks
        assert self.every_step_counts()

    def breaks(self, command: str) -> "Object":
        """The incident that this leads to, when all ranks run again."""
        self.until(lambda: self.record().get("state") == "running")
        for part in self.folder.glob("rank-*"):
            part.unlink()
        self.save(ranks=2)
        saved, known, before = self.steps(), len(self.incidents()), self.ranks()
        self.until(lambda: self.steps() > saved + 5)
        self.cluster.sh(command)
        self.until(lambda: len(self.incidents()) > known and self.phases()[-1:] == ["Recovered"], 240.0)
        assert len(self.incidents()) == known + 1, self.records_told()
        assert self.went_on_from_its_checkpoint()
        assert len(self.ranks()) == 2
        assert not self.ranks() & before, "each rank was started again"
        self.steps_on(self.ranks())
        return self.incidents()[-1]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ControlPlane]":
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig(tmp_path_factory.mktemp("cluster")) as rig, shared(ControlPlane(rig)) as made:
        yield made


@pytest.fixture(scope="module")
def certificates(plane: "ControlPlane", tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"), plane.network.address)


@pytest.fixture(scope="module")
def mails(plane: "ControlPlane", certificates: Certificates) -> Iterator[MailServer]:
    """Where pods reach it; it takes nothing without STARTTLS and the login."""
    login = (LOGIN, PASSWORD)
    with MailServer(host=plane.network.address, tls=certificates.server, login=login) as server:
        yield server


@pytest.fixture(scope="module")
@needs_root
def cluster(plane: "ControlPlane", mails: MailServer, certificates: Certificates) -> Installed:
    return Installed(plane, mails, certificates.ca_file)


@pytest.fixture
def training(cluster: Installed) -> "Iterator[Trained]":
    yield Trained(cluster)
    if cluster.sentinel.pods("agent"):  # the last test has none
        cluster.mend()


def to(mails: MailServer, address: str, *texts: str) -> bool:
    """Did a mail with these texts in its subject go to this address?"""
    return any(
        address in addresses and all(text in str(mail["Subject"]) for text in texts)
        for addresses, mail in list(mails.mails)
    )


# ---------------------------------------------------------------- a secret


def test_mails_leave_with_the_login_of_the_secret_that_the_chart_names_and_it_is_nowhere_else(
    training: Trained, cluster: Installed, mails: MailServer
) -> None:
    node, ranks = cluster.spare(training), training.ranks()
    node.kernel_says(XID_79)
    cluster.until(lambda: cluster.isolated(node))
    cluster.until(lambda: to(mails, ADMINS, node.name))
    assert set(mails.logins) == {LOGIN}

    controllers, agents = cluster.programs("controller"), cluster.programs("agent")
    assert len(controllers) == 4, "process 1 of each is the parent of the other"
    assert len(agents) == 3
    secret = PASSWORD.encode()
    for process in controllers:
        file = process / "root/etc/sentinel-mail/password"
        assert file.read_bytes() == secret
        assert (file.stat().st_mode & 0o777, file.stat().st_gid) == (0o440, 65532)
        kept = [path for path in (process / "root/var/lib/sentinel").rglob("*") if path.is_file()]
        assert kept
        assert not any(secret in path.read_bytes() for path in kept)
    for process in (*controllers, *agents):
        assert secret not in (process / "environ").read_bytes()
        assert secret not in (process / "cmdline").read_bytes()
    pods = [*cluster.sentinel.pods("controller"), *cluster.sentinel.pods("agent")]
    said = [cluster.sentinel.log(pod) for pod in pods]
    assert all(said)
    shown = [cluster.sh("sentinel status"), cluster.sh("sentinel status -o json"), page(cluster)]
    kinds = "configmaps,pods,events,leases,quarantines,incidents,protectedjobs,deployments,daemonsets"
    for text in (*said, *shown, cluster.sh(f"kubectl get {kinds} -A -o yaml")):
        assert PASSWORD not in text

    cluster.sh(f"sentinel release {node.name} --why 'I have seen to it'")
    cluster.until(lambda: not cluster.unschedulable(node))
    training.steps_on(ranks)


def page(cluster: Installed) -> str:
    """Everything that the controller that leads shows to everybody."""
    pod = f"/api/v1/namespaces/{NAMESPACE}/pods/{cluster.leader()}:9810/proxy"
    return str(cluster.admin.get(f"{pod}/")) + str(cluster.admin.get(f"{pod}/metrics"))


# ---------------------------------------------------------------- an upgrade


def test_an_upgrade_and_a_rollback_are_taken_up_while_a_job_steps_on_and_a_held_node_stays_away(
    training: Trained, cluster: Installed, mails: MailServer, tmp_path: Path
) -> None:
    node, ranks, known = cluster.spare(training), training.ranks(), len(training.incidents())
    cluster.sh(f"sentinel hold {node.name} --why 'a look inside'")
    cluster.until(lambda: cluster.isolated(node))
    held = hold_of(cluster, node)
    agents = uids(cluster, "agent")

    def change(values: Any) -> None:
        values["controller"]["settings"]["mail"]["admins"] = [NIGHT]
        values["agent"] = {"settings": {"listen": "127.0.0.1:9811"}}

    def rolls(command: str, port: int) -> None:
        """What it leads to on agents and controllers."""
        old = uids(cluster, "controller")
        cluster.sh(command)

        def rolled() -> bool:
            pods = cluster.sentinel.pods("controller")
            assert sum(map(ready, pods)) >= 1, "one leads while the other is replaced"
            assert cluster.isolated(node)
            return len(pods) == 2 and all(map(ready, pods)) and not uids(cluster, "controller") & old

        cluster.until(rolled)
        cluster.until(lambda: all(hears(one, port) for one in cluster.nodes))
        assert not any(hears(one, {9810: 9811, 9811: 9810}[port]) for one in cluster.nodes)
        assert uids(cluster, "agent") == agents, "agents read their settings without a restart"
        assert cluster.leader() in {pod["metadata"]["name"] for pod in cluster.sentinel.pods("controller")}
        assert hold_of(cluster, node) == held
        assert f"{node.name}" in cluster.sh(f"sentinel status {node.name}")

    rolls(f"{UPGRADE} {cluster.values(tmp_path / 'sentinel.yaml', change)}", 9811)
    node.kernel_says(XID_79)
    cluster.until(lambda: to(mails, NIGHT, node.name))
    assert hold_of(cluster, node) == held

    rolls(f"helm rollback sentinel -n {NAMESPACE}", 9810)
    told = len(mails.mails)
    cluster.sh(f"sentinel release {node.name} --why 'it is well'")
    cluster.until(lambda: not cluster.unschedulable(node) and not cluster.taints(node))
    cluster.until(lambda: len(mails.mails) > told)
    assert all(addresses == [ADMINS] for addresses, _ in mails.mails[told:])
    training.steps_on(ranks)
    assert len(training.incidents()) == known


def ready(pod: "Object") -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def uids(cluster: Installed, part: str) -> set[str]:
    """Of its pods, each with how often its container was started again."""
    return {
        f"{pod['metadata']['uid']} {sum(one['restartCount'] for one in pod['status']['containerStatuses'])}"
        for pod in cluster.sentinel.pods(part)
        if "containerStatuses" in pod["status"]
    }


def hears(node: "Node", port: int) -> bool:
    """An agent answers at this port of its node, and a controller hears it."""
    page = node.run("busybox", "wget", "-qO-", f"http://127.0.0.1:{port}/metrics", check=False).stdout
    return "\nsentinel_controller_connected 1\n" in page


def hold_of(cluster: Installed, node: "Node") -> tuple[str, str, str, str]:
    """Of the one record that a person's hold has: which object it is, and what it says."""
    found = cluster.admin.items(QUARANTINES)
    (one,) = (
        one
        for one in found
        if (one["spec"]["node"], one["spec"]["kind"], one["spec"]["state"]) == (node.name, "hold", "active")
    )
    assert "a look inside" in str(one["spec"])
    return one["metadata"]["uid"], one["spec"]["id"], one["spec"]["since"], one["spec"]["state"]


# ---------------------------------------------------------------- what `make cluster` breaks


def test_a_rank_that_is_killed_starts_all_ranks_again_from_the_last_checkpoint(
    training: Trained, cluster: Installed
) -> None:
    incident = training.breaks(cluster.printed(r"\S+/kill-rank 1\n")[0])
    assert (incident["verdict"]["symptom"], incident["verdict"]["rank"]) == ("rank lost", 1)
    assert not any(cluster.taints(node) for node in cluster.nodes)


def test_a_node_that_is_killed_is_left_and_the_job_goes_on_without_it(
    training: Trained, cluster: Installed
) -> None:
    command, name = cluster.printed(r"(kill -9 \d+)\n        # a node: (\S+) is lost").groups()
    incident = training.breaks(command)
    assert incident["verdict"]["failure"] == "node-lost"
    assert name not in {pod["spec"]["nodeName"] for pod in training.pods()}
    assert cluster.removals(name)
    lost = cluster.shown.nodes[name]
    lost.kill()  # what is left of it in the rig
    lost.start()
    cluster.until(lambda: cluster.told(name, "silence")[-1] == "SpeaksAgain" and not cluster.taints(lost))


# ---------------------------------------------------------------- away, and back


def documented(page: str, heading: str) -> list[str]:
    """The commands of the first block below a heading, without comments."""
    text = (REPO / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].lstrip("\n")
    block = text.split("\n\n")[0].splitlines()
    assert all(line.startswith("    ") for line in block)
    return [line.partition("#")[0].strip() for line in block]


RECORDS = {"Incident", "JobPolicy", "ProtectedJob", "Quarantine"}
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
STAYS = {  # until its own command: definitions, admission policies, and what is in the namespace
    "APIService/v1alpha1.sentinel.dev",
    *(f"CustomResourceDefinition/{name}.sentinel.dev" for name in ("incidents", "jobpolicies")),
    *(f"CustomResourceDefinition/{name}.sentinel.dev" for name in ("protectedjobs", "quarantines")),
    *(f"{kind}/sentinel-epoch-{name}" for kind in POLICIES for name in ("nodes", "records", "status")),
    f"Namespace/{NAMESPACE}",
    "ServiceAccount/default",
    "ConfigMap/kube-root-ca.crt",
    "ConfigMap/sentinel-ca",
    "Lease/sentinel-controller",
    "Secret/sentinel-controller-tls",
    f"Secret/{SECRET}",  # of the person who made it
}


def test_removed_as_the_page_says_nothing_of_it_is_left_and_a_new_installation_takes_up_the_records(
    training: Trained, cluster: Installed
) -> None:
    helm_uninstall, uninstall, *rest = documented("kubernetes.md", "Removing")
    assert helm_uninstall == f"helm uninstall sentinel -n {NAMESPACE} --wait"
    ranks, job = training.ranks(), training.record()
    faulty, held = cluster.spare(training), training.node_of(0)
    faulty.kernel_says(XID_79)
    cluster.sh(f"sentinel hold {held.name} --why 'a look inside'")
    cluster.until(lambda: cluster.isolated(faulty) and cluster.isolated(held))
    fault = cluster.until(lambda: cluster.record(faulty, "fault"))

    cluster.sh(helm_uninstall)
    check = cluster.tried(f"{uninstall} --check")
    assert check.returncode == 1
    assert f"node {faulty.name}: taint sentinel.dev/quarantined" in check.stdout
    assert cluster.isolated(faulty), "a check only looks"
    told = cluster.sh(uninstall)
    assert told.count(": ended. Its record said: ") == 2
    assert "Nothing is left to take away." in told
    assert "Nothing is left to take away." in cluster.sh(f"{uninstall} --check")
    assert not cluster.unschedulable(faulty)
    assert cluster.unschedulable(held), "a person holds it"
    there = {name for name in left(cluster) if name.partition("/")[0] not in RECORDS}
    ours = {name for name in there if name.startswith(("Job/train ", "Pod/train-"))}
    assert there - ours == STAYS, "what is said of the job goes with it"
    training.steps_on(ranks)
    incidents = training.incidents()

    cluster.sh(f"helm install {RELEASE} -f {cluster.shown.values}")
    cluster.is_heard()
    cluster.until(lambda: cluster.isolated(faulty))
    again = cluster.until(lambda: cluster.record(faulty, "fault"))
    assert again["id"] != fault["id"]
    (before,) = (one for one in cluster.sentinel.quarantines(faulty.name) if one["id"] == fault["id"])
    assert (before["state"], before["endedBy"]) == ("released", "uninstalled")
    assert not cluster.record(held, "hold"), "it must be ordered again"
    training.until(lambda: training.record().get("state") == "running")
    assert training.incidents() == incidents
    for name in ("usedInfrastructure", "usedJob", "usedFree", "incarnation"):
        assert training.record().get(name) == job.get(name)
    assert "Restarts" in cluster.sh("sentinel status train -n default")
    training.steps_on(ranks)

    for command in (helm_uninstall, uninstall, *rest):
        cluster.sh(command)
    assert left(cluster) == ours
    cluster.sh(f"kubectl uncordon {held.name}")
    training.steps_on(ranks)


def left(cluster: Installed) -> set[str]:
    """What there is of Sentinel: KIND/NAME of what bears its name, KIND/NAME WHAT of what it wrote on others' objects.
    Without events, which go by themselves."""
    kinds = cluster.sh("kubectl api-resources --verbs=list -o name").split()
    asked = ",".join(kind for kind in kinds if not kind.startswith("events"))
    found = set()
    for one in json.loads(cluster.sh(f"kubectl get {asked} -A -o json"))["items"]:
        meta = one["metadata"]
        name = f"{one['kind']}/{meta['name']}"
        if "sentinel" in f"{meta['name']} {meta.get('namespace')} {one['apiVersion']}":
            found.add(name)
            continue
        written = {
            **meta.get("labels", {}),
            **meta.get("annotations", {}),
            **dict.fromkeys(meta.get("finalizers", ())),
            **{taint["key"]: taint for taint in one.get("spec", {}).get("taints", ())},
            **{f"{part['type']} {part.get('reason')}": 0 for part in conditions(one)},
        }
        found |= {f"{name} {key}" for key in written if "sentinel" in key.lower()}
    return found


def conditions(one: "Object") -> "list[Object]":
    status = one.get("status")
    return status.get("conditions") or [] if isinstance(status, dict) else []
