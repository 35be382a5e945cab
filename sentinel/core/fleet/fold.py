"""Reports of agents → the picture of their nodes. Pure.

Reports come at least once, and those of a spool come late: a result that is older than what is known changes nothing,
and neither does a report of a boot that ended. Both are told by the node's own clocks.
"""

from collections.abc import Iterable
from sys import intern

from msgspec import structs

from sentinel.core.fleet.bounds import MAX_CHECKS
from sentinel.core.fleet.model import CheckPicture, NodePicture
from sentinel.core.now import Now
from sentinel.core.reports import Report


def fold(node: NodePicture, report: Report, now: Now, *, full: bool = False) -> NodePicture:
    """`now`: of the controller, when it was heard.

    Checks that the report does not name stay as they were, unless it is a `full` one, which names all there are.
    """
    booted_wall_s = report.now.wall_s - report.now.mono_s
    checks, fences, told_mono_s = node.checks, node.fences, report.now.mono_s
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
        checks, fences = {}, {}
    changed = {
        intern(result.check): CheckPicture(result.state, result.at_mono_s, result.findings)
        for result in report.checks
        if (result.at_mono_s >= checks[result.check].at_mono_s if result.check in checks else not late)
    }
    if len(checks) + len(changed) > MAX_CHECKS:  # names that change with every report are no checks
        changed = {name: changed[name] for name in changed if name in checks}
    return structs.replace(
        node,
        agent_mono_s=now.mono_s,
        boot_id=report.boot_id,
        booted_wall_s=booted_wall_s,
        told_mono_s=told_mono_s,
        checks={**checks, **changed} if changed else checks,
        fences=fences if late or report.fences is None or report.fences == fences else report.fences,
    )


def _newer(node: NodePicture, report: Report, booted_wall_s: float) -> bool:
    """Boot ids have no order. The kubelet names the present one; else that which began later, by the node's clock."""
    if report.boot_id == node.api_boot_id:
        return True
    return node.boot_id != node.api_boot_id and booted_wall_s > node.booted_wall_s


BOOTS = 2  # of one node that are told apart: the present one, and one whose reports come late


def hear(
    known: tuple[NodePicture, ...], name: str, uid: str, report: Report, now: Now
) -> tuple[tuple[NodePicture, ...], NodePicture | None, NodePicture]:
    """What is known of a node's boots after a report, the last heard first; and this boot before (None: new) and after.

    The kubelet tells which of two boots is the present one, and may tell it later than the agent.
    """
    same = next((one for one in known if (one.uid, one.boot_id) == (uid, report.boot_id)), None)
    # A full report is not all there is: an agent that has just begun has not run every check yet.
    after = fold(same or NodePicture(name=name, uid=uid), report, now)
    return (after, *(one for one in known if one is not same))[:BOOTS], same, after


def _same_machine(one: NodePicture, shown: NodePicture) -> bool:
    """Tokens of older API servers name no node object: then it is the boot that the kubelet names."""
    return one.uid == shown.uid or (not one.uid and one.boot_id == shown.api_boot_id)


def present(shown: NodePicture, heard: Iterable[NodePicture]) -> NodePicture:
    """The node's object, and what its agent told in the present boot. `heard`: a picture of each boot.

    What was told for another node object of that name is another machine's.
    """
    own = [one for one in heard if _same_machine(one, shown)]
    if not own:
        return shown
    told = max(own, key=lambda one: (one.boot_id == shown.api_boot_id, one.booted_wall_s))
    return structs.replace(
        shown,
        agent_mono_s=max(one.agent_mono_s or 0.0 for one in own),
        boot_id=told.boot_id,
        booted_wall_s=told.booted_wall_s,
        told_mono_s=told.told_mono_s,
        checks=told.checks,
        fences=told.fences,
    )
