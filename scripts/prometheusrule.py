"""The rules of rules/prometheus/ as a PrometheusRule, for the Prometheus operator:

python scripts/prometheusrule.py > rules/prometheus/prometheusrule.yaml
"""

import sys
from pathlib import Path

import yaml

RULES = Path(__file__).parents[1] / "rules" / "prometheus"
FILES = ("recording.yaml", "alerts.yaml")
HEAD = "# Made of recording.yaml and alerts.yaml by scripts/prometheusrule.py.\n"


def document() -> str:
    groups = [
        group for name in FILES for group in yaml.safe_load((RULES / name).read_text("utf-8"))["groups"]
    ]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "sentinel",
            "namespace": "sentinel-system",
            "labels": {"app.kubernetes.io/name": "sentinel"},
        },
        "spec": {"groups": groups},
    }
    return HEAD + yaml.safe_dump(rule, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    sys.stdout.write(document())
