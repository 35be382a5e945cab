"""What the dashboards have in common: colours that mean something, filters, and means that are 0 where nothing was."""

from boards.grafana import GREEN, RED, YELLOW

NONE_BAD = ((None, GREEN), (1, RED))
NONE_GOOD = ((None, GREEN), (1, YELLOW))
SHARE_LOST = ((None, GREEN), (0.02, YELLOW), (0.1, RED))  # the alert SentinelCapacityLost stands at 0.1
ETTR = ((None, RED), (0.9, YELLOW), (0.97, GREEN))
JOB = 'job_name="$job_name"'
ON_NODE = 'and on (cluster, instance) sentinel_agent_info{node="$node"}'
POOL = 'pool=~"$pool"'
OWNER = 'owner=~"$owner"'


def kept(name: str, *by: str, time: str = "") -> str:
    """Of the records, by owner and `by`: each leader tells the same, and for minutes one that is dead is told beside
    the new one. Where the owner of a job changes just then, it counts for both until that is over."""
    only = f'time="{time}",{OWNER}' if time else OWNER
    return f"max by ({', '.join(('cluster', *by, 'owner'))}) (sentinel_kept_{name}{{{only}}})"


def mean_within(name: str, window: str, by: str = "") -> str:
    """Of what was observed in this time: with each leader the counters begin anew, at 0."""
    head = f"sum by ({by})" if by else "sum"
    took, count = (f"{head} (increase(sentinel_{name}_{part}[{window}]))" for part in ("sum", "count"))
    return f"{took} / ({count} > 0)"


def p95(by: str, buckets: str) -> str:
    """Without what was not observed: that has none."""
    return f"histogram_quantile(0.95, sum by ({by}, le) ({buckets})) >= 0"
