"""Is Sentinel well?"""

from boards.grafana import GREEN, RED, YELLOW, Json, dashboard, series, stat
from boards.words import NONE_BAD, p95


def itself() -> Json:
    rate = "[$__rate_interval]"
    return dashboard(
        "itself",
        "Is Sentinel well: who leads, what it decides and does, what fails, and what it costs.",
        [
            stat(
                "Leaders",
                "sum by (cluster) (sentinel_leading)",
                "One leads.",
                steps=((None, RED), (1, GREEN), (2, RED)),
            ),
            stat(
                "Controllers",
                "count by (cluster) (sentinel_leading)",
                "With one that stands by.",
                steps=((None, RED), (1, YELLOW), (2, GREEN)),
            ),
            stat("Paused", "max(sentinel_paused)", "1: a person holds everything new back.", steps=NONE_BAD),
            stat(
                "Mails that wait",
                "sum(sentinel_mails_waiting)",
                "The mail server does not take them.",
                steps=((None, GREEN), (1, YELLOW), (20, RED)),
            ),
            stat("Agents", "sum(max by (cluster) (sentinel_transport_agents))", "That report to the leader."),
            stat(
                "Event loop held up",
                "max(sentinel_event_loop_lag_seconds)",
                "The longest of the last minute.",
                unit="s",
                steps=((None, GREEN), (0.5, YELLOW), (2, RED)),
            ),
            series(
                "Decisions by reason",
                [(f"sum by (reason) (rate(sentinel_decisions_total{rate}))", "{{reason}}")],
                "Doing nothing included.",
                unit="cps",
                empty="nothing had to be decided yet",
            ),
            series(
                "Effects",
                [(f"sum by (effect) (rate(sentinel_effects_total{rate}))", "{{effect}}")],
                "What it does.",
                unit="cps",
            ),
            series(
                "Effects that failed",
                [
                    (
                        f"sum by (effect, kind) (rate(sentinel_effect_failures_total{rate}))",
                        "{{effect}} {{kind}}",
                    )
                ],
                "Temporary ones are tried again.",
                unit="cps",
            ),
            series(
                "Rounds of the leader, 95 %",
                [
                    (
                        p95("scope", f"rate(sentinel_round_seconds_bucket{rate})"),
                        "{{scope}}",
                    )
                ],
                "From looking to the last write.",
                unit="s",
            ),
            series(
                "Writes to nodes and records",
                [
                    ('sum by (state) (sentinel_works{state!="resting"})', "{{state}}"),
                    ("sum(sentinel_works_failing)", "failing"),
                ],
                "What the leader has decided and not done yet, and what failed when last tried.",
            ),
            series(
                "Oldest of these writes",
                [
                    (
                        'max by (effect, state) (sentinel_works_oldest_seconds{state!="resting"})',
                        "{{effect}} {{state}}",
                    )
                ],
                "Running for long: the API server does not answer. Waiting for long: too much is to be written.",
                unit="s",
            ),
            series(
                "Reports of agents",
                [(f"sum by (outcome) (rate(sentinel_transport_reports_total{rate}))", "{{outcome}}")],
                "By what became of them.",
                unit="cps",
            ),
            series(
                "Requests to the API server",
                [
                    (
                        f"sum by (method, outcome) (rate(sentinel_api_request_seconds_count{rate}))",
                        "{{method}} {{outcome}}",
                    )
                ],
                "By their outcome.",
                unit="reqps",
            ),
            series(
                "Mails",
                [
                    ("sum by (about) (sentinel_mails_sent_total)", "{{about}} sent"),
                    ("sum by (about) (sentinel_mail_failures_total)", "{{about}} attempts failed"),
                    ("sum by (about) (sentinel_mails_waiting)", "{{about}} wait"),
                ],
                "To owners (jobs) and administrators (nodes).",
            ),
            series(
                "Records",
                [
                    (f"sum(rate(sentinel_records_saved_total{rate}))", "saved"),
                    (f"sum(rate(sentinel_record_save_failures_total{rate}))", "failed"),
                ],
                "What is not saved is not done.",
                unit="cps",
            ),
            series(
                "Leadership",
                [
                    ("sentinel_leading", "{{cluster}} {{instance}} leads"),
                    ("sentinel_lease_left_seconds", "{{cluster}} {{instance}} s left"),
                ],
                "A lease that is renewed late comes near 0.",
            ),
            series(
                "Age of what is followed",
                [("sentinel_watch_age_seconds", "{{cluster}} {{instance}} {{kind}}")],
                "Since the API server last said anything.",
                unit="s",
            ),
            series(
                "Agents without a controller",
                [("count(sentinel_controller_connected) - sum(sentinel_controller_connected)", "agents")],
                "Their reports wait on their disks.",
                steps=((None, GREEN), (1, RED)),
            ),
            series(
                "Checks that could not look",
                [(f"sum by (check) (rate(sentinel_check_failures_total{rate}))", "{{check}}")],
                "Over all agents that are scraped.",
                unit="cps",
            ),
        ],
    )
