"""What faults cost: by cause, owner and node."""

from boards.grafana import Json, dashboard, row_link, series, stat, table, variable
from boards.words import ETTR, OWNER, mean_of


def cost() -> Json:
    def mean(name: str, by: str) -> str:
        return f"sum by ({by}) (sentinel_{name}_sum) / clamp_min(sum by ({by}) (sentinel_{name}_count), 1)"

    lost = f"sentinel_lost_gpu_seconds_total{{{OWNER}}}"
    to_job, to_node = row_link("job", "job_name", "job_name"), row_link("node", "node", "node")
    return dashboard(
        "cost",
        "What faults cost, how fast they are repaired, and where most is lost. Counters begin with each leader.",
        [
            stat(
                "ETTR of all jobs",
                "sentinel:job_ettr:ratio",
                "Productive time of all time, weighted by GPUs.",
                unit="percentunit",
                steps=ETTR,
                empty="no protected job has run yet",
            ),
            stat(
                "GPU-hours lost",
                f"sum({lost}) / 3600",
                "From faults to the first new iteration, times GPUs.",
                unit="h",
                empty="no fault has cost anything yet",
            ),
            stat("Incidents", "sum(sentinel_incidents_total)", "Of all jobs."),
            stat(
                "Fault to incident",
                mean_of("time_to_detect_seconds"),
                "Mean.",
                unit="s",
            ),
            stat(
                "Fault to new iteration",
                mean_of("time_to_recover_seconds"),
                "Mean.",
                unit="s",
            ),
            stat(
                "Iterations repeated",
                "sum(sentinel_lost_steps_total)",
                "Since the last checkpoint before each fault.",
            ),
            series(
                "GPU-hours lost by cause",
                [(f"sum by (cause) ({lost}) / 3600", "{{cause}}")],
                "Rising steps; what costs most is on top.",
                unit="h",
                stack=True,
                empty="no fault has cost anything yet",
            ),
            series(
                "GPU-hours lost by owner",
                [(f"sum by (owner) ({lost}) / 3600", "{{owner}}")],
                "Whose jobs lose.",
                unit="h",
                stack=True,
                empty="no fault has cost anything yet",
            ),
            table(
                "GPU-hours lost by node",
                "sum by (node) (sentinel_node_lost_gpu_seconds_total) / 3600",
                "Nodes that were to blame.",
                value="GPU-hours",
                unit="h",
                links=[to_node],
                empty="no fault has cost anything yet",
            ),
            table(
                "Jobs by ETTR",
                "min by (job_name) (sentinel_job_ettr_ratio)",
                "Which jobs lose the most of their time.",
                value="ETTR",
                unit="percentunit",
                steps=ETTR,
                links=[to_job],
                empty="no protected job has run yet",
            ),
            series(
                "Incidents by symptom",
                [("sum by (symptom) (sentinel_incidents_total)", "{{symptom}}")],
                "What happens at all.",
            ),
            series(
                "Restarts by cause",
                [("sum by (cause) (sentinel_restarts_total)", "{{cause}}")],
                "By recoveries.",
            ),
            series(
                "Time to detect",
                [(mean("time_to_detect_seconds", "symptom"), "{{symptom}}")],
                "Mean, from a fault's first trace to its incident.",
                unit="s",
            ),
            series(
                "Time to recover",
                [(mean("time_to_recover_seconds", "cause"), "{{cause}}")],
                "Mean, from the fault to the first new iteration.",
                unit="s",
            ),
            series(
                "What a recovery spends its time on",
                [
                    (
                        mean_of(f"time_to_{step}_seconds"),
                        step,
                    )
                    for step in ("stop", "start")
                ],
                "Means. The rest is waiting for room and for the program itself.",
                unit="s",
            ),
            series(
                "Time lost",
                [("sum by (cause) (increase(sentinel_lost_seconds_total[$__rate_interval]))", "{{cause}}")],
                "When it was lost.",
                unit="s",
                empty="no fault has cost anything yet",
            ),
        ],
        [variable("owner", "Owner", "label_values(sentinel_lost_gpu_seconds_total, owner)", many=True)],
    )
