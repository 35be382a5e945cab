"""What the dashboards have in common: colours that mean something, filters, and means that are 0 where nothing was."""

from boards.grafana import GREEN, RED, YELLOW

NONE_BAD = ((None, GREEN), (1, RED))
NONE_GOOD = ((None, GREEN), (1, YELLOW))
SHARE_LOST = ((None, GREEN), (0.02, YELLOW), (0.1, RED))  # the alert SentinelCapacityLost stands at 0.1
ETTR = ((None, RED), (0.9, YELLOW), (0.97, GREEN))
JOB = 'job_name="$job_name"'
ON_NODE = 'and on (instance) sentinel_agent_info{node="$node"}'
OWNER = 'owner=~"$owner"'


def mean_of(name: str) -> str:
    """0 where nothing was observed yet."""
    return f"sum(sentinel_{name}_sum) / clamp_min(sum(sentinel_{name}_count), 1)"


def p95(by: str, buckets: str) -> str:
    """Without what was not observed: that has none."""
    return f"histogram_quantile(0.95, sum by ({by}, le) ({buckets})) >= 0"
