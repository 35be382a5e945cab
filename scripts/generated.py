"""Makes every file anew that others are the source of: `make generated`. Whoever changes a table runs this, and commits
what it changed; tests hold all of them equal."""

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[1]

# What writes them, and the file that gets what it prints. The chart copies some of the others, and comes last.
MAKERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("-m", "scripts.doc_tables"), ""),  # docs/timing.md, docs/triage.md, docs/webhook.schema.json
    (("-m", "sentinel.checks.docs"), "docs/checks.md"),
    (("-m", "sentinel.checks.kernel.docs"), "docs/kernel-log.md"),
    (("-m", "sentinel.metrics.registry"), "docs/metrics.md"),
    (("-m", "sentinel.config.reference", "docs/policy.md"), ""),
    (("-m", "sentinel.docs.fleet", "docs/fleet.md"), ""),
    (("-m", "sentinel.docs.recovery", "docs/recovery.md"), ""),
    (("-m", "sentinel.docs.job_kinds", "docs/job-kinds.md"), ""),
    (("-m", "sentinel.config.crds", "deploy/crds"), ""),
    (("scripts/runbooks.py",), "sentinel/web/runbooks.html"),
    (("scripts/dashboards.py",), ""),  # dashboards/
    (("scripts/prometheusrule.py",), "rules/prometheus/prometheusrule.yaml"),
    (("-m", "scripts.chart"), ""),  # deploy/
)


def main() -> int:
    for words, path in MAKERS:
        done = subprocess.run([sys.executable, *words], cwd=REPO, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            print(f"python {' '.join(words)}: exit {done.returncode}", file=sys.stderr)
            return 1
        if path:
            (REPO / path).write_bytes(done.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
