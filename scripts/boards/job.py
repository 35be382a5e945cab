"""Does a job step, how fast, what stopped it, and what is left of its budget?"""

from boards.grafana import GREEN, RED, YELLOW, Json, annotation, dashboard, series, stat, table, variable
from boards.words import ETTR, JOB

# Grafana asks for annotations every minute. So each incident is one, however seldom it is scraped, and also where for
# minutes nobody led.
TOLD = f"sentinel_job_incidents_total{{{JOB}}}"
INCIDENTS = annotation(
    "Incidents",
    f"max by (cluster, job_name) ({TOLD}) "
    f"> max by (cluster, job_name) (last_over_time({TOLD}[15m] offset 1m))",
    RED,
    "Incident of {{job_name}}",
)
PHASES = annotation(
    "Recovery",
    f"count by (cluster, phase, cause) (sentinel_job_phase_since_timestamp_seconds{{{JOB}}})",
    YELLOW,
    "{{phase}}: {{cause}}",
)


def job() -> Json:
    rate = "[$__rate_interval]"
    rank = f"rate(sentinel_rank_step_seconds_total{{{JOB}}}{rate})"
    return dashboard(
        "job",
        "One job: does it step, how fast, what stopped it, and what is left of its budget.",
        [
            stat(
                "State",
                f"max by (cluster, state) (sentinel_job_state{{{JOB}}})",
                "As its record says.",
                wide=4,
                empty="no such job is protected",
            ),
            stat(
                "Iteration",
                f"max by (cluster) (sentinel_job_iteration{{{JOB}}})",
                "The newest that a rank has printed.",
                empty="it prints no iterations",
            ),
            stat(
                "Since the last one",
                f"time() - max by (cluster) (sentinel_job_last_iteration_timestamp_seconds{{{JOB}}})",
                "Red: an hour, where the alert is.",
                unit="s",
                steps=((None, GREEN), (300, YELLOW), (3600, RED)),
                empty="it prints no iterations",
            ),
            stat(
                "ETTR",
                f"max by (cluster) (sentinel_job_ettr_ratio{{{JOB}}})",
                "Productive time of all time since it was first seen.",
                unit="percentunit",
                steps=ETTR,
                empty="no such job is protected",
            ),
            stat(
                "Restarts left",
                f"max by (cluster) (sentinel_job_restarts_left{{{JOB}}})",
                "0: its next fault ends it.",
                steps=((None, RED), (1, YELLOW), (2, GREEN)),
                empty="no such job is protected",
            ),
            stat(
                "Incidents",
                f"max by (cluster) (sentinel_job_incidents_total{{{JOB}}})",
                "Since it was first seen.",
                empty="no such job is protected",
            ),
            series(
                "Iterations",
                [(f"max by (cluster) (sentinel_job_iteration{{{JOB}}})", "job {{cluster}}")],
                "Flat: it stands still. A step down: what is repeated, or of a log that names no steps a start.",
                empty="it prints no iterations",
            ),
            series(
                "Time of an iteration",
                [
                    (
                        f"max by (cluster) (sentinel_job_step_time_seconds{{{JOB}}})",
                        "end to end, median of ranks {{cluster}}",
                    ),
                    (
                        f"max by (cluster) (sentinel_job_hardware_time_seconds{{{JOB}}})",
                        "hardware, slowest rank {{cluster}}",
                    ),
                ],
                "What is between them is waiting: for data, for the host.",
                unit="s",
                empty="it prints no times of iterations",
            ),
            series(
                "Time of an iteration by rank",
                [
                    (
                        f"{rank} / (rate(sentinel_rank_iterations_total{{{JOB}}}{rate}) > 0)",
                        "rank {{rank}} {{cluster}}",
                    )
                ],
                "From the agents. One above the others: a straggler.",
                unit="s",
                empty="its ranks print no times of iterations",
            ),
            series(
                "Hardware ratio by rank",
                [
                    (
                        f"rate(sentinel_rank_hardware_seconds_total{{{JOB}}}{rate}) / ({rank} > 0)",
                        "rank {{rank}} {{cluster}}",
                    )
                ],
                "Hardware time of end-to-end time. Low: starved of data; one above the others: its hardware is slow.",
                unit="percentunit",
                empty="its ranks print no times of iterations",
            ),
            series(
                "Restarts by cause",
                [
                    (
                        f"max by (cluster, cause) (sentinel_job_restarts_total{{{JOB}}})",
                        "{{cause}} {{cluster}}",
                    )
                ],
                "Starts by recoveries, from its records.",
                empty="it was never started again",
            ),
            series(
                "Restarts left",
                [(f"max by (cluster) (sentinel_job_restarts_left{{{JOB}}})", "restarts {{cluster}}")],
                "Its budget.",
                steps=((None, RED), (1, GREEN)),
                empty="no such job is protected",
            ),
            series(
                "Productive time",
                [
                    (
                        f"max by (cluster) (sentinel_job_productive_seconds{{{JOB}}})",
                        "productive {{cluster}}",
                    ),
                    (
                        f"max by (cluster) (sentinel_job_wall_seconds{{{JOB}}})",
                        "since first seen {{cluster}}",
                    ),
                ],
                "What is between them is lost.",
                unit="s",
                empty="no such job is protected",
            ),
            series(
                "Time left",
                [(f"max by (cluster) (sentinel_job_time_left_seconds{{{JOB}}})", "time left {{cluster}}")],
                "Until it has run for its policy's maxDuration. Red: an hour.",
                unit="s",
                steps=((None, RED), (3600, GREEN)),
                empty="its policy sets no maxDuration",
            ),
            table(
                "Whose it is",
                f"max by (cluster, job_namespace, job_kind, owner, policy) (sentinel_job_info{{{JOB}}})",
                "Its owner is the first address that its mails go to.",
                value="is",
                empty="no such job is protected",
            ),
            series(
                "GPUs and ranks",
                [
                    (f"max by (cluster) (sentinel_job_gpus{{{JOB}}})", "GPUs {{cluster}}"),
                    (f"max by (cluster) (sentinel_job_ranks{{{JOB}}})", "ranks {{cluster}}"),
                ],
                "An elastic job changes its size.",
                empty="no such job is protected",
            ),
        ],
        [variable("job_name", "Job", "sentinel_job_info")],
        [INCIDENTS, PHASES],
    )
