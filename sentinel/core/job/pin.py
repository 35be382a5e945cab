"""A job whose pods can run on one node only, by what they ask for: nothing of it can be started elsewhere. Pure."""

from collections.abc import Iterator

from sentinel.core.job.change import HOSTNAME
from sentinel.core.job.kinds import Role
from sentinel.core.job.paths import Json, read, rows, table, text
from sentinel.core.job.room import REQUIRED
from sentinel.core.job.state import Seen, groups_of, living


def pinned(seen: Seen) -> str:
    """The one node on which all its ranks have to run, as they name it; "": they may run elsewhere, or it is not known.

    Where its templates stand in other objects it is its pods that tell, of which the scheduler has named the node.
    """
    groups = [group for group in groups_of(seen.row, seen.job) if group.role is Role.RANK]
    templates = [template for group in groups for template in group.templates]
    asked = [_node(one, written=True) for one in templates] or [
        _node(one, written=False) for one in living(seen.pods)
    ]
    return asked[0] if asked and len(set(asked)) == 1 else ""


def _node(pod: Json, written: bool) -> str:
    """Of a pod or a template. `written`: a `nodeName` in it is its owner's."""
    if written and (name := text(pod, "spec.nodeName")):
        return name
    if host := table(pod, "spec.nodeSelector").get(HOSTNAME):
        return str(host)
    terms = rows(pod, REQUIRED)  # alternatives
    found = {next(_named(term), "") for term in terms}
    return found.pop() if len(found) == 1 else ""


def _named(term: Json) -> Iterator[str]:
    for where, key in (("matchExpressions", HOSTNAME), ("matchFields", "metadata.name")):
        for one in rows(term, where):
            values = read(one, "values")
            named = isinstance(values, list) and len(values) == 1
            if named and (one.get("key"), one.get("operator")) == (key, "In"):
                yield str(values[0])
