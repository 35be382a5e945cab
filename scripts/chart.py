"""What is generated of deploy/: `python -m scripts.chart`, after a change of the chart, the resources or the settings.

The chart's templates and values.yaml are written by hand. From them Helm (that of the test cluster) makes the plain
manifests: what is tested with the manifests is what `helm install` does. Its custom resources, alert rules, dashboards
and the schema of its values are copied or made from where they are kept.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from sentinel.config.crd_schema import of_section
from sentinel.config.settings_schema import SettingsDocument
from sentinel.rules.tables import counter_limits
from tests.rig.binaries import NotBuilt, helm

REPO = Path(__file__).parent.parent
DEPLOY = REPO / "deploy"
CHART = DEPLOY / "chart"
KUBERNETES = "1.30.0"  # the oldest that Chart.yaml allows
# `localhost/` is nobody's registry: an image that is not on the node is not pulled from a stranger.
DEFAULTS = ("--namespace=sentinel-system", "--set=image.repository=localhost/sentinel")
HEADER = "# Generated from deploy/chart by `python -m scripts.chart`; a test holds them equal.\n"
# Manifest -> template, and the values that it takes.
MANIFESTS = {
    "rbac.yaml": ("rbac.yaml",),
    "admission.yaml": ("admission.yaml",),
    "controller.yaml": ("controller.yaml",),
    "agent.yaml": ("agent.yaml",),
    "optional/podmonitor.yaml": ("podmonitor.yaml", "--set=podMonitor.enabled=true"),
    "optional/networkpolicy.yaml": ("networkpolicy.yaml", "--set=networkPolicy.enabled=true"),
}
# Settings that a controller reads, and those that an agent does; the rest is set by the chart, or is for one machine.
SETTINGS = {
    "controller": (
        *("mail", "webhooks", "caps", "owners", "fleet", "recording", "pageUrl", "dashboardUrl"),
        "certificates",
    ),
    "agent": (
        *("listen", "disk", "cards", "gpu", "network", "ownChecks", "skipChecks", "controller", "shapes"),
        *("rulesDir", "kernelLog", "sysfs", "procfs", "podLogs"),
    ),
}
ELSEWHERE = ("apiVersion", "kind", "stateDir", "endedJobs")

Schema = dict[str, Any]


def copies() -> dict[str, str]:
    """Path below deploy/chart -> text, of what is kept elsewhere."""
    made = {f"crds/{path.name}": path.read_text() for path in sorted((DEPLOY / "crds").glob("*.yaml"))}
    for path in sorted((REPO / "dashboards").glob("*.json")):
        made[f"files/dashboards/{path.name}"] = path.read_text()
    made["files/prometheusrule.yaml"] = (REPO / "rules/prometheus/prometheusrule.yaml").read_text()
    made["values.schema.json"] = json.dumps(values_schema(), indent=1) + "\n"
    return made


def rendered(template: str, *options: str) -> str:
    """What Helm makes of one template. Raises ValueError with what it says, NotBuilt."""
    command = [helm().path("helm"), "template", "sentinel", CHART, f"--kube-version={KUBERNETES}"]
    command += [*DEFAULTS, *options, f"--show-only=templates/{template}"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("# Source: ")]
    return HEADER + "\n".join(lines).strip().removeprefix("---").strip() + "\n"


# ---------------------------------------------------------------- the schema of values


def values_schema() -> Schema:
    """JSON Schema, draft 7: an unknown name is refused, and what docs/policy.md knows of settings is checked."""
    free: Schema = {"type": "object"}
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    text, switch, objects = {"type": "string"}, {"type": "boolean"}, {"type": "array", "items": free}
    pod = {
        "resources": _closed(requests=free, limits=free, claims=objects),
        "priorityClassName": text,
        "nodeSelector": texts,
        "affinity": free,
        "tolerations": objects,
        "podLabels": texts,
        "podAnnotations": texts,
        "env": objects,
        "extraVolumes": objects,
        "extraVolumeMounts": objects,
    }
    repository = {"type": "string", "pattern": "^([^@:]*|[^@:/]+:[0-9]+/[^@:]+)$"}
    policy = {"type": "string", "enum": ["Always", "IfNotPresent", "Never"]}
    digest = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
    replicas = {"type": "integer", "minimum": 1, "maximum": 5}
    interval = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}
    share = {"type": "string", "pattern": "^([1-9][0-9]?|100)%$"}
    sections = {
        "image": _closed(repository=repository, tag=text, digest=digest, pullPolicy=policy),
        "controller": _closed(
            **pod,
            settings=_settings("controller"),
            replicas=replicas,
            mailSecret=text,
            fence=text,
            certificates=_closed(secret=text),
        ),
        "agent": _closed(
            **pod,
            settings=_settings("agent"),
            runtimeClassName=text,
            privileged=switch,
            capabilities={"type": "array", "items": {"type": "string", "pattern": "^[A-Z_]+$"}},
            appArmorProfile=_closed(
                type={"type": "string", "enum": ["RuntimeDefault", "Localhost", "Unconfined"]},
                localhostProfile=text,
            ),
            maxUnavailable={"anyOf": [share, {"type": "integer", "minimum": 1}]},
        ),
        "podMonitor": _closed(enabled=switch, interval=interval, labels=texts),
        "prometheusRule": _closed(enabled=switch, labels=texts),
        "dashboards": _closed(enabled=switch, labels=texts, annotations=texts),
        "networkPolicy": _closed(enabled=switch, metricsFrom=objects),
    }
    # What Helm and charts of which this one is a part say beside it.
    above = {"global": {"type": ["object", "null"]}, "enabled": switch}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_closed(**sections, imagePullSecrets=objects, **above),
        "required": sorted(sections),
    }


def _closed(**properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _settings(part: str) -> Schema:
    known = _json_schema(of_section(SettingsDocument, {}))["properties"]
    counters = {row.name: {"type": "number", "minimum": 0} for row in counter_limits()}
    known["network"]["properties"]["errorsPerMinute"] |= _closed(**counters)
    return _closed(**{name: known[name] for name in SETTINGS[part]})


def _json_schema(shape: Any) -> Any:
    """From OpenAPI v3, whose `exclusiveMinimum` is a switch."""
    if isinstance(shape, list):
        return [_json_schema(one) for one in shape]
    if not isinstance(shape, dict):
        return shape
    made = {
        name: {key: _json_schema(one) for key, one in value.items()}
        if name == "properties"
        else _json_schema(value)
        for name, value in shape.items()
        if not name.startswith("x-kubernetes-") and name not in ("format", "default")
    }
    if made.get("exclusiveMinimum") is True:
        made["exclusiveMinimum"] = made.pop("minimum")
    if "properties" in made:
        made["additionalProperties"] = False
    if "off" in made.get("enum", ()):  # YAML reads a bare `off` as false
        made = {"description": made.pop("description"), "anyOf": [made, {"const": False}]}
    return made


# ---------------------------------------------------------------- writing


def main() -> int:
    for folder in ("crds", "files"):
        for path in (CHART / folder).rglob("*.*"):
            path.unlink()
    for name, content in copies().items():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(content)
    try:
        for name, (template, *options) in MANIFESTS.items():
            (DEPLOY / name).write_text(rendered(template, *options))
    except (NotBuilt, ValueError) as error:
        print(f"chart: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
