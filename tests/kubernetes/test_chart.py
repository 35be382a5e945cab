"""The chart by the real Helm: what it refuses, what its values do, and its life on a real API server."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from scripts import chart
from sentinel.config.load import load_settings
from sentinel.config.settings_schema import SettingsDocument
from sentinel.settings import CertificateFiles
from tests.kubernetes.conftest import QUARANTINES, quarantine, wait_served
from tests.kubernetes.jobs_site import policy
from tests.rig.binaries import helm

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane

REPO = Path(__file__).parents[2]
SPACE = "gpu-ops"
# `helm package --version 0.1.0-alpha.1` of the chart at 9a0942c (28 November 2026); a release takes its place.
OLDER = Path(__file__).parent / "charts/sentinel-0.1.0-alpha.1.tgz"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
IMAGE = "registry.example.com/gpu/sentinel"
FILES, KEYS = ("cert_file", "key_file", "ca_file"), ("tls.crt", "tls.key", "ca.crt")
ON = [
    f"--set={name}.enabled=true" for name in ("podMonitor", "prometheusRule", "dashboards", "networkPolicy")
]


def run(*words: str | Path, kubeconfig: str = "") -> "subprocess.CompletedProcess[str]":
    home = {"HOME": "/nonexistent", "HELM_DRIVER": "secret"} | (
        {"KUBECONFIG": kubeconfig} if kubeconfig else {}
    )
    command = [helm().path("helm"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=home)


def written(tmp_path: Path, values: Any) -> Path:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def template(tmp_path: Path, *options: str, **values: Any) -> "list[Object]":
    given = {"image": {"repository": IMAGE}, **values}
    words = ("--kube-version=1.30.0", "--namespace", SPACE, "-f", written(tmp_path, given), *options)
    done = run("template", "sentinel", chart.CHART, *words)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of(objects: "list[Object]", kind: str, name: str) -> "Object":
    (found,) = (one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def pod(objects: "list[Object]", part: str) -> "Object":
    kind = {"agent": "DaemonSet", "controller": "Deployment"}[part]
    return of(objects, kind, f"sentinel-{part}")["spec"]["template"]


# ---------------------------------------------------------------- what is generated


def test_what_is_generated_is_that_of_today() -> None:
    """Made by: make generated"""
    kept = {
        str(path.relative_to(chart.CHART)): path.read_text()
        for path in (*(chart.CHART / "crds").rglob("*"), *(chart.CHART / "files").rglob("*"))
        if path.is_file()
    }
    kept["values.schema.json"] = (chart.CHART / "values.schema.json").read_text()
    assert kept == chart.copies()


@pytest.mark.parametrize("name", chart.MANIFESTS)
def test_a_plain_manifest_is_what_helm_makes(name: str) -> None:
    """Made by: make generated"""
    template, *options = chart.MANIFESTS[name]
    assert (chart.DEPLOY / name).read_text() == chart.rendered(template, *options)


def test_helm_finds_nothing_to_complain_of() -> None:
    done = run("lint", chart.CHART, "--strict", f"--set=image.repository={IMAGE}", *ON)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 chart(s) failed" in done.stdout


# ---------------------------------------------------------------- values


def test_an_unknown_value_is_refused_by_its_name_and_all_at_once(tmp_path: Path) -> None:
    bad = {
        "image": {"repositry": IMAGE},
        "controller": {
            "replica": 3,
            "settings": {
                "mail": {"perhour": 4},
                "certificates": {"certFile": "/c.pem", "keyFile": "/k.pem"},
                "fleet": {"mode": "watch", "isolations": {"atATime": {"atleast": 1}}},
                "stateDir": "/x",
            },
            "resources": {"limit": {}},
            "certificates": {"secretName": "x"},
        },
        "agent": {
            "settings": {
                "ownChecks": [{"name": "x", "interval": "1m"}],
                "network": {"errorsPerMinute": {"rx_eror": 4}},
                "fleet": {"mode": "observe"},  # the controllers' to say
            },
            "maxUnavailable": "ten",
            "privileged": "no",
            "capabilities": ["sys_admin"],
        },
        "monitoring": {},
    }
    done = run("template", "sentinel", chart.CHART, "-f", written(tmp_path, bad))
    assert done.returncode != 0
    for part in (
        "additional properties 'monitoring' not allowed",
        "'/image': additional properties 'repositry' not allowed",
        "'/controller': additional properties 'replica' not allowed",
        "'/controller/settings/mail': additional properties 'perhour' not allowed",
        "'/controller/settings/certificates': missing property 'caFile'",
        "'/controller/certificates': additional properties 'secretName' not allowed",
        "'/controller/settings/fleet/mode': value must be one of 'enforce', 'observe'",
        "'/controller/settings': additional properties 'stateDir' not allowed",
        "'/controller/settings/fleet/isolations/atATime': missing property 'atLeast'",
        "'/controller/resources': additional properties 'limit' not allowed",
        "'/agent/settings/ownChecks/0': missing property 'command'",
        "'/agent/settings/network/errorsPerMinute': additional properties 'rx_eror' not allowed",
        "'/agent/settings': additional properties 'fleet' not allowed",
        "'/agent/maxUnavailable'",
        "'/agent/privileged': got string, want boolean",
        "'/agent/capabilities/0': 'sys_admin' does not match pattern",
    ):
        assert part in done.stderr, part


def test_every_setting_is_of_one_part_or_for_one_machine() -> None:
    named = [*chart.SETTINGS["controller"], *chart.SETTINGS["agent"], *chart.ELSEWHERE]
    assert sorted(named) == sorted(str(field.alias) for field in SettingsDocument.model_fields.values())


def test_what_is_taken_away_by_null_or_nothing_is_gone(tmp_path: Path) -> None:
    made = template(
        tmp_path,
        controller={
            "settings": None,
            "mailSecret": "",
            "fence": "",
            "resources": None,
            "priorityClassName": "",
        },
        agent={"settings": {"controller": None}, "affinity": None, "tolerations": []},
        podMonitor={"enabled": True, "labels": None},
        dashboards={"enabled": True, "labels": None},
    )
    for part, listens in (("controller", "0.0.0.0:9810"), ("agent", "127.0.0.1:9810")):
        text = of(made, "ConfigMap", f"sentinel-{part}")["data"]["settings.yaml"]
        assert load_settings(text).listen == listens
    spec = pod(made, "controller")["spec"]
    assert [one["name"] for one in spec["volumes"]] == ["settings", "state"]
    assert [one["name"] for one in spec["containers"][0]["volumeMounts"]] == ["settings", "state"]
    assert not {"priorityClassName"} & spec.keys()
    assert "resources" not in spec["containers"][0]
    assert "tolerations" not in pod(made, "agent")["spec"]


def test_a_section_that_an_older_chart_did_not_have_is_named() -> None:
    """`helm upgrade --reuse-values`"""
    done = run("template", "sentinel", chart.CHART, "--set=networkPolicy=null", "--set=podMonitor=null")
    assert done.returncode != 0
    assert "missing properties 'networkPolicy', 'podMonitor'" in done.stderr


def test_as_a_part_of_another_chart_it_takes_what_helm_and_that_one_say_beside(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    shutil.copytree(chart.CHART, parent / "charts/sentinel")
    (parent / "templates").mkdir()
    parts = [{"name": "sentinel", "version": "0.1.0", "condition": "sentinel.enabled"}]
    (parent / "Chart.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v2", "name": "gpus", "version": "1.0.0", "dependencies": parts})
    )
    given = {"global": {"region": "x"}, "sentinel": {"enabled": True, "image": {"repository": IMAGE}}}
    (parent / "values.yaml").write_text(yaml.safe_dump(given))
    done = run("template", "gpus", parent, "--kube-version=1.30.0", "--namespace", SPACE)
    assert done.returncode == 0, done.stderr
    assert of([one for one in yaml.safe_load_all(done.stdout) if one], "DaemonSet", "sentinel-agent")


def test_an_agent_leaves_a_node_whose_driver_is_being_changed(tmp_path: Path) -> None:
    """It holds it open. Labels: NVIDIA/k8s-driver-manager and mig-parted (`paused-for-…`); ours is for people."""
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]} for name in "ab"]
    asked = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": zones}}}
    affinity = pod(template(tmp_path, agent={"affinity": asked}), "agent")["spec"]["affinity"]
    stays = {
        json.dumps(one["matchExpressions"][1:])
        for one in affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    }
    assert [
        one["matchExpressions"][:1] for one in affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    ] == [one["matchExpressions"] for one in zones]
    affinity = pod(template(tmp_path), "agent")["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity[REQUIRED]["nodeSelectorTerms"]
    assert stays == {json.dumps(term["matchExpressions"])}, "in each of them"
    paused = ["paused-for-driver-upgrade", "paused-for-mig-change"]
    assert {one["key"]: (one["operator"], one["values"]) for one in term["matchExpressions"]} == {
        "sentinel.dev/agent": ("NotIn", ["off"]),
        "nvidia.com/gpu.deploy.client": ("NotIn", paused),
        "nvidia.com/gpu.deploy.dcgm-exporter": ("NotIn", paused),
    }


def rights_of(objects: "list[Object]") -> tuple[Any, set[str], set[str]]:
    """The agent's security context, its mounts, and what it has of the node."""
    spec = pod(objects, "agent")["spec"]
    (container,) = spec["containers"]
    assert (spec["hostPID"], spec["hostNetwork"]) == (True, True)
    volumes = {one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    return container["securityContext"], {one["mountPath"] for one in container["volumeMounts"]}, volumes


def test_the_agent_is_privileged_unless_it_is_told_not_to_be(tmp_path: Path) -> None:
    root = {"runAsUser": 0, "runAsGroup": 0, "readOnlyRootFilesystem": True}
    privileged = {**root, "privileged": True}
    for values in ({}, {"privileged": True, "capabilities": ["KILL"]}, {"privileged": None}):
        context, mounts, volumes = rights_of(template(tmp_path, agent=values))
        assert context == privileged
        assert "/dev" in mounts & volumes

    context, mounts, volumes = rights_of(template(tmp_path, agent={"privileged": False}))
    assert context == {
        **root,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {
            "drop": ["ALL"],
            "add": ["KILL", "SYS_PTRACE", "DAC_READ_SEARCH", "SETUID", "SETGID"],
        },
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert volumes == {"/var/lib/sentinel", "/var/log/pods"}, "the node's devices could not be opened"
    assert "/dev" not in mounts

    unconfined = {"type": "Unconfined"}
    bare = {"privileged": False, "capabilities": [], "appArmorProfile": unconfined}
    context, _, _ = rights_of(template(tmp_path, agent=bare))
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["appArmorProfile"] == unconfined


def test_one_controller_at_a_time_may_be_put_off_its_node(tmp_path: Path) -> None:
    made = template(tmp_path, controller={"podLabels": {"team": "ops"}})
    budget = of(made, "PodDisruptionBudget", "sentinel-controller")["spec"]
    chosen = budget["selector"]["matchLabels"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": chosen}}
    assert chosen.items() <= pod(made, "controller")["metadata"]["labels"].items()
    assert not chosen.items() <= pod(made, "agent")["metadata"]["labels"].items()


def test_the_probes_ask_where_a_controller_answers(tmp_path: Path) -> None:
    made = template(tmp_path)
    (container,) = pod(made, "controller")["spec"]["containers"]
    asked = {probe: container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")}
    assert asked == {
        "livenessProbe": {"path": "/healthz", "port": "metrics"},
        "readinessProbe": {"path": "/readyz", "port": "metrics"},
    }
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    listens = load_settings(of(made, "ConfigMap", "sentinel-controller")["data"]["settings.yaml"]).listen
    assert listens == f"0.0.0.0:{ports['metrics']}"


def test_without_an_image_it_is_said_where_one_comes_from() -> None:
    done = run("template", "sentinel", chart.CHART, "--kube-version=1.30.0")
    assert done.returncode != 0
    assert "image.repository: where you have pushed what `make image` makes" in done.stderr


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ({}, f"{IMAGE}:0.1.0"),
        ({"tag": "0.2.0-rc1"}, f"{IMAGE}:0.2.0-rc1"),
        ({"repository": "localhost:5000/s"}, "localhost:5000/s:0.1.0"),
        ({"tag": "x", "digest": "sha256:" + "a" * 64}, f"{IMAGE}@sha256:{'a' * 64}"),
    ],
)
def test_the_image_of_both_parts_is_that_of_the_values(tmp_path: Path, image: Any, named: str) -> None:
    made = template(
        tmp_path,
        image={"repository": IMAGE, "pullPolicy": "Always", **image},
        imagePullSecrets=[{"name": "r"}],
    )
    for part in ("agent", "controller"):
        spec = pod(made, part)["spec"]
        assert spec["imagePullSecrets"] == [{"name": "r"}]
        (container,) = spec["containers"]
        assert (container["image"], container["imagePullPolicy"]) == (named, "Always")


# As people write them: with words that YAML takes for others, and numbers that Helm could write as 1e+05.
SETTINGS: dict[str, Any] = {
    "mail": {"host": "smtp.example.com", "admins": ["ops@example.com"], "perHour": 100},
    "recording": False,  # of a bare `off`
    "pageUrl": "https://sentinel.example.com",
    "owners": [{"namespace": "research", "emails": ["r@example.com"]}],
    "caps": {"maxRestarts": 50, "gracefulStop": "30m"},
    "fleet": {
        "observePools": ["h100"],
        "isolations": {"atATime": {"atLeast": 1, "share": 0.02}},
        "keepRecords": 100000,
    },
    "webhooks": [{"name": "chat", "url": "https://example.com/hook", "format": "slack"}],
}
NODE_SETTINGS: dict[str, Any] = {
    "gpu": {"correctedEccPerHour": 100000},
    "network": {"errorsPerMinute": {"rx_errors": 5}},
    "disk": {"minFreeBytes": "1G", "mounts": [{"path": "/data", "minFreeShare": 0.00005}]},
    "ownChecks": [{"name": "x", "command": ["/bin/true", "off"], "interval": "5m"}],
    "shapes": [{"name": "h100", "match": {"hostname": "gpu-.*"}, "gpus": 8, "ibRateGbps": 400}],
}


def test_settings_arrive_as_they_were_written(tmp_path: Path) -> None:
    made = template(
        tmp_path,
        controller={"settings": SETTINGS},
        agent={"settings": {**NODE_SETTINGS, "controller": {"addresses": ["c.example.com:8443"]}}},
    )
    read = {
        part: load_settings(of(made, "ConfigMap", f"sentinel-{part}")["data"]["settings.yaml"])
        for part in ("controller", "agent")
    }
    head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Settings", "stateDir": "/var/lib/sentinel"}
    wanted = {
        "controller": {**head, "listen": "0.0.0.0:9810", **SETTINGS},
        "agent": {**head, **NODE_SETTINGS, "controller": {"addresses": ["c.example.com:8443"]}},
    }
    assert read == {part: load_settings(yaml.safe_dump(text)) for part, text in wanted.items()}


def test_a_secret_of_certificates_is_mounted_and_named_in_the_settings(tmp_path: Path) -> None:
    def made(**controller: Any) -> "list[Object]":
        return template(tmp_path, controller=controller)

    def files(objects: "list[Object]") -> CertificateFiles | None:
        text = of(objects, "ConfigMap", "sentinel-controller")["data"]["settings.yaml"]
        return load_settings(text).certificates

    given = made(certificates={"secret": "agents-tls"})
    spec = pod(given, "controller")["spec"]
    (volume,) = (one for one in spec["volumes"] if one["name"] == "tls")
    # Not optional: without it controllers would not come to their certificates, but wait for them by themselves.
    assert volume["secret"] == {"secretName": "agents-tls", "defaultMode": 0o440}
    (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "tls")
    assert mount == {"name": "tls", "mountPath": "/etc/sentinel-tls", "readOnly": True}
    there = {name: f"{mount['mountPath']}/{key}" for name, key in zip(FILES, KEYS, strict=True)}
    assert files(given) == CertificateFiles(**there)

    own = {"certFile": "/a/c.pem", "keyFile": "/a/k.pem", "caFile": "/b/ca.pem"}
    mine = made(certificates={"secret": "agents-tls"}, settings={"certificates": own})
    assert files(mine) == CertificateFiles(**dict(zip(FILES, own.values(), strict=True)))
    assert [one["name"] for one in pod(mine, "controller")["spec"]["volumes"]].count("tls") == 1

    for nothing in (made(), made(certificates=None), made(certificates={"secret": None})):
        assert files(nothing) is None
        assert "tls" not in [one["name"] for one in pod(nothing, "controller")["spec"]["volumes"]]


def test_other_settings_of_the_controllers_begin_new_pods_and_the_same_do_not(tmp_path: Path) -> None:
    def checksum(**settings: Any) -> str:
        meta = pod(template(tmp_path, controller={"settings": settings}), "controller")["metadata"]
        return str(meta["annotations"]["checksum/settings"])

    assert checksum() == checksum()
    assert checksum() != checksum(pageUrl="https://sentinel.example.com")
    assert "annotations" not in pod(template(tmp_path), "agent")["metadata"], (
        "agents read them again by themselves"
    )


TOLERATION = {"key": "gpu", "operator": "Exists"}
VOLUME = {"name": "tools", "hostPath": {"path": "/opt/tools"}}
MOUNT = {"name": "tools", "mountPath": "/opt/tools", "readOnly": True}
VARIABLE = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
COMMON: dict[str, Any] = {
    "resources": {"requests": {"cpu": "1"}},
    "priorityClassName": "mine",
    "nodeSelector": {"disk": "fast"},
    "tolerations": [TOLERATION],
    "podLabels": {"team": "ops", "app.kubernetes.io/name": "not-this-one"},
    "podAnnotations": {"example.com/x": "1", "prometheus.io/port": "9810"},
    "env": [VARIABLE],
    "extraVolumes": [VOLUME],
    "extraVolumeMounts": [MOUNT],
}


@pytest.mark.parametrize("part", ["agent", "controller"])
def test_each_value_of_the_pods_does_what_it_says(tmp_path: Path, part: str) -> None:
    made = pod(template(tmp_path, **{part: COMMON}), part)
    meta, spec = made["metadata"], made["spec"]
    (container,) = spec["containers"]
    assert meta["labels"] == {
        "team": "ops",
        "app.kubernetes.io/name": "sentinel",
        "app.kubernetes.io/component": part,
    }
    assert meta["annotations"]["example.com/x"] == "1"
    assert container["resources"]["requests"]["cpu"] == "1"
    assert (spec["priorityClassName"], spec["nodeSelector"]) == ("mine", {"disk": "fast"})
    assert spec["tolerations"] == [TOLERATION]
    assert VARIABLE in container["env"]
    assert MOUNT in container["volumeMounts"]
    assert VOLUME in spec["volumes"]


def test_what_only_one_part_has(tmp_path: Path) -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "cpu-node", "operator": "Exists"}]}]}
    affinity = {REQUIRED: terms}
    zones = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"team": "ops"}}}
    made = template(
        tmp_path,
        controller={
            "replicas": 3,
            "affinity": {"nodeAffinity": affinity, "podAntiAffinity": {REQUIRED: [zones]}},
            "mailSecret": "smtp",
            "fence": "our-bmc",
        },
        agent={"affinity": {"nodeAffinity": affinity}, "runtimeClassName": "nvidia", "maxUnavailable": 3},
    )
    assert of(made, "Deployment", "sentinel-controller")["spec"]["replicas"] == 3
    controller, agent = pod(made, "controller")["spec"], pod(made, "agent")["spec"]
    assert controller["affinity"]["nodeAffinity"] == affinity
    asked, own = controller["affinity"]["podAntiAffinity"][REQUIRED]
    assert (asked, own["topologyKey"]) == (zones, "kubernetes.io/hostname"), "no two on one node"
    volumes = {one["name"]: one for one in controller["volumes"]}
    # Optional: who needs no password has none. The group is fsGroup, in which the controllers' user is.
    assert volumes["mail"]["secret"] == {"secretName": "smtp", "optional": True, "defaultMode": 0o440}
    mounts = {one["name"]: one for one in controller["containers"][0]["volumeMounts"]}
    assert mounts["mail"] == {"name": "mail", "mountPath": "/etc/sentinel-mail", "readOnly": True}
    assert volumes["fence"]["projected"] == {
        "defaultMode": 0o550,
        "sources": [
            {"configMap": {"name": "our-bmc", "optional": True}},
            {"secret": {"name": "our-bmc", "optional": True}},
        ],
    }
    assert agent["runtimeClassName"] == "nvidia"
    rollout = of(made, "DaemonSet", "sentinel-agent")["spec"]["updateStrategy"]["rollingUpdate"]
    assert rollout == {"maxUnavailable": 3}


def test_what_others_watch_comes_where_it_is_asked_for(tmp_path: Path) -> None:
    kinds = {"PodMonitor", "PrometheusRule", "NetworkPolicy"}
    plain = template(tmp_path)
    assert not kinds & {one["kind"] for one in plain}
    given = {"labels": {"release": "prometheus"}}
    peers = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    made = template(
        tmp_path,
        *ON,
        podMonitor={**given, "interval": "1m"},
        prometheusRule=given,
        dashboards={"labels": {"grafana": "yes"}, "annotations": {"folder": "GPU"}},
        networkPolicy={"metricsFrom": peers},
    )
    assert all(one["metadata"].get("namespace") in (None, SPACE, "kube-node-lease") for one in made)
    monitor = of(made, "PodMonitor", "sentinel-controller")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "1m"
    rule = of(made, "PrometheusRule", "sentinel")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    shipped = yaml.safe_load((REPO / "rules/prometheus/prometheusrule.yaml").read_text())
    assert rule["spec"] == shipped["spec"], "with the templates of Prometheus as they are"
    for path in (REPO / "dashboards").glob("*.json"):
        board = of(made, "ConfigMap", path.stem)
        assert board["metadata"]["labels"] == {
            "grafana_dashboard": "1",
            "grafana": "yes",
            "app.kubernetes.io/name": "sentinel",
        }
        assert board["metadata"]["annotations"] == {"folder": "GPU"}
        assert json.loads(board["data"][path.name]) == json.loads(path.read_text())
    metrics = of(made, "NetworkPolicy", "sentinel-controller")["spec"]["ingress"][1]
    assert metrics["from"] == peers


# ---------------------------------------------------------------- its life


# What stands outside the release's namespace, where `sentinel` begins the names.
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
OUTSIDE = [
    f"{RBAC}/clusterroles",
    f"{RBAC}/clusterrolebindings",
    f"{RBAC}/namespaces/kube-node-lease/roles",
    f"{RBAC}/namespaces/kube-node-lease/rolebindings",
    f"{ADMISSION}/validatingadmissionpolicies",
    f"{ADMISSION}/validatingadmissionpolicybindings",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
]


class Release:
    def __init__(self, plane: "ControlPlane", tmp_path: Path) -> None:
        self.plane, self.admin, self._folder = plane, plane.admin, tmp_path

    def does(self, verb: str, *words: str | Path, chart: Path = chart.CHART, **values: Any) -> str:
        if verb in ("install", "upgrade"):
            given = {"image": {"repository": IMAGE}, **values}
            words = (chart, "-f", written(self._folder, given), *words)
        place = ("--namespace", SPACE)
        done = run(verb, "sentinel", *words, *place, kubeconfig=str(self.plane.kubeconfig))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def find(self, kind: str, name: str) -> Any:
        return self.admin.find(
            f"/{'api/v1' if kind == 'configmaps' else 'apis/apps/v1'}/namespaces/{SPACE}/{kind}/{name}"
        )

    def manifest(self) -> "list[Object]":
        """What Helm has made last."""
        words = ("get", "manifest", "sentinel", "--namespace", SPACE)
        done = run(*words, kubeconfig=str(self.plane.kubeconfig))
        assert done.returncode == 0, done.stderr
        return _in_order(yaml.safe_load_all(done.stdout))

    def new(self) -> "list[Object]":
        """What it would make of today's chart where there was none."""
        return _in_order(template(self._folder))

    def outside(self) -> dict[str, list[str]]:
        names = {path: [one["metadata"]["name"] for one in self.admin.items(path)] for path in OUTSIDE}
        return {path: [one for one in found if one.startswith("sentinel")] for path, found in names.items()}

    def records(self) -> list[str]:
        return [one["metadata"]["uid"] for one in self.admin.items(QUARANTINES)]

    @property
    def settings(self) -> Any:
        return yaml.safe_load(self.find("configmaps", "sentinel-controller")["data"]["settings.yaml"])


def _in_order(objects: "Iterable[Object | None]") -> "list[Object]":
    return sorted((one for one in objects if one), key=lambda one: (one["kind"], one["metadata"]["name"]))


@pytest.fixture
def release(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[Release]:
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig(tmp_path_factory.mktemp("helm")) as rig:
        yield Release(ControlPlane(rig, scheduler=False), tmp_path)


def test_installed_upgraded_rolled_back_and_removed_with_the_records_kept(release: Release) -> None:
    admin = release.admin
    told = release.does("install", "--create-namespace")
    assert "takes bad nodes out of service, within its brakes" in told
    assert "Nobody is told: controller.settings.mail.host" in told
    assert f"kubectl label namespace {SPACE} pod-security.kubernetes.io/enforce=privileged" in told
    assert release.find("daemonsets", "sentinel-agent")
    assert release.find("deployments", "sentinel-controller")["spec"]["replicas"] == 2
    assert [path for path, names in release.outside().items() if not names] == []
    wait_served(admin)
    kept = [admin.create(quarantine("gpu-1-0001", 1))["metadata"]["uid"]]
    admin.patch(
        f"/api/v1/namespaces/{SPACE}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
    )

    mail = {"host": "smtp.example.com", "admins": ["ops@example.com"]}
    settings = {"mail": mail, "fleet": {"mode": "observe"}}
    told = release.does("upgrade", controller={"replicas": 3, "settings": settings})
    assert "It observes: it decides and tells" in told
    assert "is told: " not in told
    assert "pod-security" not in told
    assert release.find("deployments", "sentinel-controller")["spec"]["replicas"] == 3
    assert release.settings["fleet"] == {"mode": "observe"}
    assert release.records() == kept

    release.does("rollback", "1")
    assert release.find("deployments", "sentinel-controller")["spec"]["replicas"] == 2
    assert "fleet" not in release.settings
    assert release.records() == kept

    release.does("uninstall", "--wait")
    assert not release.find("daemonsets", "sentinel-agent")
    kept_watching = {path: names for path, names in release.outside().items() if names}
    names = ["sentinel-epoch-nodes", "sentinel-epoch-records", "sentinel-epoch-status"]
    assert kept_watching == {
        f"{ADMISSION}/validatingadmissionpolicies": names,
        f"{ADMISSION}/validatingadmissionpolicybindings": names,
    }, "without them the API server would not take what a later installation writes"
    assert release.records() == kept
    release.does("install")
    assert release.records() == kept
    assert release.find("deployments", "sentinel-controller")


def test_an_older_chart_is_upgraded_as_the_page_says_and_records_and_policies_are_kept(
    release: Release,
) -> None:
    """The custom resources first, which Helm leaves as they are; then it is as if it had been installed today."""
    admin = release.admin
    release.does("install", "--create-namespace", chart=OLDER)
    wait_served(admin)
    kept = admin.create(quarantine("gpu-1-0001", 1))
    policies = f"/apis/sentinel.dev/v1alpha1/namespaces/{SPACE}/jobpolicies"
    asked = policy(SPACE, restart={"maxRestarts": 3}, owner={"emails": ["me@example.com"]})
    admin.apply([asked])
    spec = admin.get(f"{policies}/{asked['metadata']['name']}")["spec"]
    before = release.manifest()

    for path in sorted((REPO / "deploy/crds").glob("*.yaml")):
        admin.apply([yaml.safe_load(path.read_text())])
    release.does("upgrade")
    wait_served(admin)
    assert release.manifest() == release.new() != before
    (record,) = admin.items(QUARANTINES)
    assert (record["metadata"]["uid"], record["spec"]) == (kept["metadata"]["uid"], kept["spec"])
    assert admin.get(f"{policies}/{asked['metadata']['name']}")["spec"] == spec
    for path in sorted((REPO / "deploy/crds").glob("*.yaml")):
        shipped = yaml.safe_load(path.read_text())
        name = shipped["metadata"]["name"]
        served = admin.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")["spec"]
        assert served["versions"][0]["schema"] == shipped["spec"]["versions"][0]["schema"]

    release.does("rollback", "1")
    assert release.manifest() == before
    assert release.records() == [kept["metadata"]["uid"]]


def test_an_api_server_takes_everything_that_can_be_asked_for_without_a_warning(
    release: Release, tmp_path: Path
) -> None:
    """But for the two kinds of the Prometheus operator, which it does not know."""
    release.admin.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}])
    made = template(
        tmp_path,
        *ON,
        agent={**COMMON, "runtimeClassName": "nvidia", "affinity": {"nodeAffinity": {}}},
        controller={
            **COMMON,
            "replicas": 3,
            "affinity": {"nodeAffinity": {}},
            "certificates": {"secret": "agents-tls"},
        },
        imagePullSecrets=[{"name": "r"}],
    )
    bare = template(tmp_path, agent={"privileged": False, "appArmorProfile": {"type": "Unconfined"}})
    for one in (*made, of(bare, "DaemonSet", "sentinel-agent")):
        if one["kind"] not in ("PodMonitor", "PrometheusRule"):
            path = release.admin.path_of(one)
            query = "dryRun=All&fieldManager=test&force=true&fieldValidation=Strict"
            release.admin.call("PATCH", f"{path}?{query}", one, kind="application/apply-patch+yaml")
    assert release.admin.warnings == []
