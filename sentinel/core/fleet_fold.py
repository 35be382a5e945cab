"""Reports of agents → the picture of their nodes. Pure.

Reports come at least once, and those of a spool come late: a result that is older than what is known changes nothing,
and neither does a report of a boot that ended. Both are told by the node's own clocks.
"""

from msgspec import structs

from sentinel.core.fleet_model import CheckPicture, NodePicture
from sentinel.core.model import Now, Report


def fold(node: NodePicture, report: Report, now: Now, *, full: bool = False) -> NodePicture:
    """`now`: of the controller, when it was heard.

    Checks that the report does not name stay as they were, unless it is a `full` one, which names all there are.
    """
    booted_wall_s = report.now.wall_s - report.now.mono_s
    checks, told_mono_s = node.checks, report.now.mono_s
    late = False
    if report.boot_id == node.boot_id:
        late = told_mono_s < node.told_mono_s
        told_mono_s = max(told_mono_s, node.told_mono_s)
        if full and not late:
            named = {result.check for result in report.checks}
            checks = {name: check for name, check in checks.items() if name in named}
    elif node.boot_id and not _newer(node, report, booted_wall_s):
        return structs.replace(node, agent_mono_s=now.mono_s)
    else:
        checks = {}
    changed = {
        result.check: CheckPicture(result.state, result.at_mono_s, result.findings)
        for result in report.checks
        if (result.at_mono_s >= checks[result.check].at_mono_s if result.check in checks else not late)
    }
    return structs.replace(
        node,
        agent_mono_s=now.mono_s,
        boot_id=report.boot_id,
        booted_wall_s=booted_wall_s,
        told_mono_s=told_mono_s,
        checks={**checks, **changed} if changed else checks,
    )


def _newer(node: NodePicture, report: Report, booted_wall_s: float) -> bool:
    """Boot ids have no order. The kubelet names the present one; else that which began later, by the node's clock."""
    if report.boot_id == node.api_boot_id:
        return True
    return node.boot_id != node.api_boot_id and booted_wall_s > node.booted_wall_s
