"""What is wrong now, where, since when, and what it costs in capacity."""

from boards.grafana import GREEN, RED, YELLOW, Json, dashboard, row_link, series, stat, table, variable
from boards.words import NONE_BAD, NONE_GOOD, POOL, SHARE_LOST


def fleet() -> Json:
    to_node, of_node = row_link("node", "node", "node"), row_link("job", "job_name", "job_name")
    return dashboard(
        "fleet",
        "What is wrong now, where, since when, and what it costs in capacity.",
        [
            stat(
                "Nodes in service",
                f'sum(sentinel:nodes:max{{state="in-service",{POOL}}})',
                "Nothing is known against them.",
                steps=((None, RED), (1, GREEN)),
            ),
            stat(
                "Nodes isolated",
                f'sum(sentinel:nodes:max{{state="isolated",{POOL}}})',
                "Out of service: see why in the table.",
                steps=NONE_GOOD,
            ),
            stat(
                "Held in by a brake",
                "sum(max by (cluster, brake) (sentinel_brake_held_back))",
                "Nodes of all pools with faults that stay in service: too many are out.",
                steps=NONE_BAD,
            ),
            stat(
                "Nodes silent",
                f'sum(sentinel:nodes:max{{state=~"unreachable|agent-silent|not-heard",{POOL}}})',
                "Unreachable, or their agent is not heard.",
                steps=NONE_BAD,
            ),
            stat(
                "GPUs out of service",
                f'sum(sentinel:gpus:max{{state=~"isolated|unreachable",{POOL}}}) '
                f"/ (sum(sentinel:gpus:max{{{POOL}}}) > 0)",
                "Of all that kubelets offer; red is where the alert is.",
                unit="percentunit",
                steps=SHARE_LOST,
            ),
            stat(
                "Jobs that recover now",
                "sum(max by (cluster) (sentinel_jobs_recovering))",
                "With an open incident, in all pools.",
                steps=NONE_GOOD,
            ),
            table(
                "Out of service, and why",
                "time() - max by (cluster, node, pool, kind, state, reason) "
                f"(sentinel_quarantine_since_timestamp_seconds{{{POOL}}})",
                "Open records of nodes; `held`: a brake keeps the node in service.",
                value="for",
                unit="s",
                steps=((None, GREEN), (86400, RED)),
                links=[to_node],
                empty="no node is out of service",
            ),
            table(
                "What is wrong, and where",
                f"max by (cluster, node, pool, component, severity, code) (sentinel_node_finding{{{POOL}}})",
                "Degraded and fatal findings, the worst 1000.",
                value="stands",
                links=[to_node],
                empty="nothing is wrong",
            ),
            series(
                "Nodes by state",
                [(f"sum by (state) (sentinel:nodes:max{{{POOL}}})", "{{state}}")],
                "The trend of what is out.",
                stack=True,
            ),
            series(
                "GPUs by state of their node",
                [(f"sum by (state) (sentinel:gpus:max{{{POOL}}})", "{{state}}")],
                "The capacity that is lost, and what is left.",
                stack=True,
            ),
            series(
                "Findings on all nodes",
                [
                    (
                        "sum by (component, severity, code) "
                        "(max by (cluster, component, severity, code) (sentinel_fleet_findings))",
                        "{{severity}} {{component}} {{code}}",
                    )
                ],
                "What the fleet suffers from, in all pools.",
                empty="nothing was found",
            ),
            series(
                "Brakes",
                [
                    (
                        f"max by (cluster, brake, window, pool) (sentinel_brake_used{{{POOL}}})",
                        "{{brake}} {{window}} {{pool}} used {{cluster}}",
                    ),
                    (
                        f"max by (cluster, brake, window, pool) (sentinel_brake_limit{{{POOL}}})",
                        "{{brake}} {{window}} {{pool}} limit {{cluster}}",
                    ),
                ],
                "How near each is to holding something back.",
            ),
            series(
                "Calls of the program that powers silent nodes off",
                [("sum by (outcome) (sentinel_fence_calls_total)", "{{outcome}}")],
                "Since the controllers began, in all pools; `off` is what it is for.",
                empty="fleet.fence names no program",
            ),
            series(
                "Jobs by state",
                [("sum by (state) (sentinel:jobs:max)", "{{state}}")],
                "Protected jobs, in all pools.",
                stack=True,
            ),
            table(
                "Jobs by what is left of them",
                "min by (cluster, job_name) (sentinel_job_restarts_left)",
                "Restarts left, in all pools; 0: the next fault ends the job.",
                value="restarts left",
                steps=((None, RED), (1, YELLOW), (2, GREEN)),
                links=[of_node],
                empty="no job is protected yet",
            ),
        ],
        [variable("pool", "Pool", "sentinel_nodes", many=True)],
    )
