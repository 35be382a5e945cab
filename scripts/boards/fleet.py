"""What is wrong now, where, since when, and what it costs in capacity."""

from boards.grafana import GREEN, RED, YELLOW, Json, dashboard, row_link, series, stat, table
from boards.words import NONE_BAD, NONE_GOOD, SHARE_LOST


def fleet() -> Json:
    to_node, of_node = row_link("node", "node", "node"), row_link("job", "job_name", "job_name")
    return dashboard(
        "fleet",
        "What is wrong now, where, since when, and what it costs in capacity.",
        [
            stat(
                "Nodes in service",
                'sum(sentinel:nodes:max{state="in-service"})',
                "Nothing is known against them.",
                steps=((None, GREEN),),
            ),
            stat(
                "Nodes isolated",
                'sum(sentinel:nodes:max{state="isolated"})',
                "Out of service: see why in the table.",
                steps=NONE_GOOD,
            ),
            stat(
                "Held in by a brake",
                "sum(max by (brake) (sentinel_brake_held_back))",
                "Nodes with faults that stay in service: too many are out.",
                steps=NONE_BAD,
            ),
            stat(
                "Nodes silent",
                'sum(sentinel:nodes:max{state=~"unreachable|agent-silent|not-heard"})',
                "Unreachable, or their agent is not heard.",
                steps=NONE_BAD,
            ),
            stat(
                "GPUs out of service",
                "sentinel:gpus_out_of_service:ratio",
                "Of all that kubelets offer; red is where the alert is.",
                unit="percentunit",
                steps=SHARE_LOST,
            ),
            stat(
                "Jobs that recover now",
                "max(sentinel_jobs_recovering)",
                "With an open incident.",
                steps=NONE_GOOD,
            ),
            table(
                "Out of service, and why",
                "time() - max by (node, kind, state, reason) (sentinel_quarantine_since_timestamp_seconds)",
                "Open records of nodes; `held`: a brake keeps the node in service.",
                value="for",
                unit="s",
                steps=((None, GREEN), (86400, RED)),
                links=[to_node],
                empty="no node is out of service",
            ),
            table(
                "What is wrong, and where",
                "max by (node, component, severity, code) (sentinel_node_finding)",
                "Degraded and fatal findings, the worst 1000.",
                value="stands",
                links=[to_node],
                empty="nothing is wrong",
            ),
            series(
                "Nodes by state",
                [("sentinel:nodes:max", "{{state}}")],
                "The trend of what is out.",
                stack=True,
            ),
            series(
                "GPUs by state of their node",
                [("sentinel:gpus:max", "{{state}}")],
                "The capacity that is lost, and what is left.",
                stack=True,
            ),
            series(
                "Findings on all nodes",
                [
                    (
                        "max by (component, severity, code) (sentinel_fleet_findings)",
                        "{{severity}} {{component}} {{code}}",
                    )
                ],
                "What the fleet suffers from.",
                empty="nothing was found",
            ),
            series(
                "Brakes",
                [
                    (
                        "max by (brake, window, pool) (sentinel_brake_used)",
                        "{{brake}} {{window}} {{pool}} used",
                    ),
                    (
                        "max by (brake, window, pool) (sentinel_brake_limit)",
                        "{{brake}} {{window}} {{pool}} limit",
                    ),
                ],
                "How near each is to holding something back.",
            ),
            series(
                "Calls of the program that powers silent nodes off",
                [("sum by (outcome) (sentinel_fence_calls_total)", "{{outcome}}")],
                "Since the controllers began; `off` is what it is for.",
                empty="fleet.fence names no program",
            ),
            series("Jobs by state", [("sentinel:jobs:max", "{{state}}")], "Protected jobs.", stack=True),
            table(
                "Jobs by what is left of them",
                "min by (job_name) (sentinel_job_restarts_left)",
                "Restarts left; 0: the next fault ends the job.",
                value="restarts left",
                steps=((None, RED), (1, YELLOW), (2, GREEN)),
                links=[of_node],
                empty="no job is protected yet",
            ),
        ],
    )
