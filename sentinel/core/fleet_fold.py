"""Reports of agents → the picture of their nodes. Pure.

Reports come at least once, and those of a spool come late: a result that is older than what is known changes nothing,
and neither does a report of a boot that ended. Both are told by the node's own clocks.
"""

from msgspec import structs

from sentinel.core.fleet_model import CheckPicture, NodePicture
from sentinel.core.model import Now, Report


def fold(node: NodePicture, report: Report, now: Now) -> NodePicture:
    """`now`: of the controller, when it was heard. Checks that the report does not name stay as they were."""
    booted_wall_s = report.now.wall_s - report.now.mono_s
    checks = node.checks
    if report.boot_id != node.boot_id:
        if node.boot_id and not _newer(node, report, booted_wall_s):
            return structs.replace(node, agent_mono_s=now.mono_s)
        checks = {}
    changed = {
        result.check: CheckPicture(result.state, result.at_mono_s, result.findings)
        for result in report.checks
        if result.check not in checks or result.at_mono_s >= checks[result.check].at_mono_s
    }
    told_mono_s = report.now.mono_s
    if report.boot_id == node.boot_id:
        told_mono_s = max(told_mono_s, node.told_mono_s)
    return structs.replace(
        node,
        agent_mono_s=now.mono_s,
        boot_id=report.boot_id,
        booted_wall_s=booted_wall_s,
        told_mono_s=told_mono_s,
        checks={**checks, **changed} if changed or checks is not node.checks else checks,
    )


def _newer(node: NodePicture, report: Report, booted_wall_s: float) -> bool:
    """Boot ids have no order. The kubelet names the present one; else that which began later, by the node's clock."""
    if report.boot_id == node.api_boot_id:
        return True
    return node.boot_id != node.api_boot_id and booted_wall_s > node.booted_wall_s
