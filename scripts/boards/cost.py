"""What faults cost: by cause, owner and node."""

from boards.grafana import Json, dashboard, row_link, series, stat, table, variable
from boards.words import ETTR, OWNER, kept, mean_within


def cost() -> Json:
    # Sums are told by the records: counters begin anew with each leader, and increases lose what was counted between
    # a leader's last scrape and its death. How long things took stands in no record: of that, means of a time.
    lost = kept("lost_gpu_seconds", "cause")
    recoveries = kept("recoveries", "cause")
    productive, wall = (kept("job_gpu_seconds", time=time) for time in ("productive", "wall"))
    counted = f"sentinel_lost_gpu_seconds_total{{{OWNER}}}[$__rate_interval]"
    to_job, to_node = row_link("job", "job_name", "job_name"), row_link("node", "node", "node")
    return dashboard(
        "cost",
        "What faults cost, how fast they are repaired, and where most is lost. Sums are of all records that are kept.",
        [
            stat(
                "ETTR",
                f"sum({productive}) / (sum({wall}) > 0)",
                "Productive time of all time, weighted by GPUs, of running jobs and of those that have ended.",
                unit="percentunit",
                steps=ETTR,
                empty="no protected job has run yet",
            ),
            stat(
                "GPU-hours lost",
                f"sum({lost}) / 3600",
                "From the last iteration before each fault to the first new one, times GPUs.",
                unit="h",
                empty="no fault has cost anything yet",
            ),
            stat(
                "Incidents",
                f"sum({kept('incidents', 'symptom', 'cause')})",
                "Of jobs that run and of those that have ended.",
            ),
            stat(
                "Fault to incident",
                mean_within("time_to_detect_seconds", "$__range"),
                "Mean of the time that is shown, of all owners.",
                unit="s",
                empty="no fault in this time",
            ),
            stat(
                "Fault to new iteration",
                f"sum({kept('lost_seconds', 'cause')}) / clamp_min(sum({recoveries}), 1)",
                "Mean.",
                unit="s",
            ),
            stat(
                "Iterations repeated",
                f"sum({kept('lost_steps', 'cause')})",
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
                "max by (cluster, node) (sentinel_kept_node_lost_gpu_seconds) / 3600",
                "Nodes that were to blame, for jobs of all owners.",
                value="GPU-hours",
                unit="h",
                links=[to_node],
                empty="no fault has cost anything yet",
            ),
            table(
                "Jobs by ETTR",
                "min by (cluster, job_name) (sentinel_job_ettr_ratio) "
                f"and on (cluster, job_name) sentinel_job_info{{{OWNER}}}",
                "Which jobs lose the most of their time.",
                value="ETTR",
                unit="percentunit",
                steps=ETTR,
                links=[to_job],
                empty="no protected job has run yet",
            ),
            series(
                "Incidents by symptom",
                [(f"sum by (symptom) ({kept('incidents', 'symptom', 'cause')})", "{{symptom}}")],
                "What happens at all.",
            ),
            series(
                "Restarts by cause",
                [(f"sum by (cause) ({kept('restarts', 'cause')})", "{{cause}}")],
                "By recoveries.",
            ),
            series(
                "Time to detect",
                [(mean_within("time_to_detect_seconds", "1h", "symptom"), "{{symptom}}")],
                "Mean of an hour, from a fault's first trace to its incident, of all owners.",
                unit="s",
                empty="no fault in this time",
            ),
            series(
                "Time to recover",
                [(mean_within("time_to_recover_seconds", "1h", "cause"), "{{cause}}")],
                "Mean of an hour, from the last iteration before the fault to the first new one, of all owners.",
                unit="s",
                empty="no fault in this time",
            ),
            series(
                "What a recovery spends its time on",
                [(mean_within(f"time_to_{step}_seconds", "1h"), step) for step in ("save", "stop", "start")],
                "Means of an hour, of all owners. The rest is waiting for room and for the program itself.",
                unit="s",
                empty="no recovery in this time",
            ),
            series(
                "GPU-hours lost, and when",
                [(f"sum by (cause) (increase({counted})) / 3600", "{{cause}}")],
                "Told when the job steps again.",
                unit="h",
                empty="no fault has cost anything yet",
            ),
        ],
        [variable("owner", "Owner", "sentinel_kept_job_gpu_seconds", many=True)],
    )
