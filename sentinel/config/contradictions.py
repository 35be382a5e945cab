"""What fits the schema field by field and still cannot be meant. Works on raw data, so that it speaks
beside the errors of single fields, not only after them."""

from collections.abc import Iterator
from typing import Any

from sentinel.config.document import Path_
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.policy_model import NO_MAILS
from sentinel.core.units import duration_text, parse_duration
from sentinel.settings import DiskThresholds, OwnCheck

Contradiction = tuple[Path_, str]  # where, what was expected
LOST_NODE = ("forceAfter", "selfFence")
PROOFS = ("logPattern", "fileAppears", "fileGone")


def _at(data: Any, *path: str) -> Any:
    """The value at `path`, None where there is none."""
    for part in path:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _seconds(value: Any) -> float | None:
    try:
        return parse_duration(value)
    except ValueError:
        return None


def policy_contradictions(document: Any) -> Iterator[Contradiction]:
    spec = _at(document, "spec")
    if not isinstance(spec, dict):
        return
    resumes = "resume" in spec
    if resumes and "restart" in spec:
        yield ("spec", "restart"), "either resume or restart, not both"
    if "elastic" in spec and not resumes:
        yield ("spec", "elastic"), "resume beside elastic: another size continues from a checkpoint"
    yield from _performance(spec, resumes)
    if _at(spec, "nanLoss", "action") == "RestartAndAlert" and not resumes:
        yield (
            ("spec", "nanLoss", "action"),
            "resume beside it: the job goes back to an older checkpoint (or the action Alert)",
        )
    lost = spec.get("lostNode")
    if isinstance(lost, dict) and len(lost.keys() & set(LOST_NODE)) != 1:
        yield ("spec", "lostNode"), f"exactly one of {', '.join(LOST_NODE)}"
    mails = _at(spec, "owner", "mails")
    if isinstance(mails, list) and NO_MAILS in mails and len(mails) > 1:
        yield ("spec", "owner", "mails"), f"{NO_MAILS} alone, or the mails that they get"
    proof = _at(spec, "resume", "checkpoint", "proof")
    if isinstance(proof, dict) and len(proof.keys() & set(PROOFS)) != 1:
        yield ("spec", "resume", "checkpoint", "proof"), f"exactly one of {', '.join(PROOFS)}"
    if _at(spec, "resume", "checkpoint", "ifUnproved") is not None and proof is None:
        path = ("spec", "resume", "checkpoint", "ifUnproved")
        yield path, "a proof beside it: it says what to do when the proof does not come"
    for field, what in (("logRules", "rule"), ("timingFormats", "format")):
        rows = spec.get(field)
        seen: set[Any] = set()
        for index, row in enumerate(rows if isinstance(rows, list) else ()):
            name = _at(row, "id")
            if isinstance(name, str) and name in seen:
                yield ("spec", field, index, "id"), f"an id that no other {what} of this policy has"
            seen.add(name if isinstance(name, str) else None)
    yield from _parts_over_the_whole(spec)


def _performance(spec: dict[str, Any], resumes: bool) -> Iterator[Contradiction]:
    asked = spec.get("performance")
    if not isinstance(asked, dict):
        return
    where = ("spec", "performance")
    low, high = _number(asked.get("minHardwareRatio")), _number(asked.get("maxHardwareRatio"))
    if low is not None and high is not None and low >= high:
        yield (*where, "minHardwareRatio"), f"less than maxHardwareRatio ({high:g})"
    if asked.get("onlyIfGrown") is not None and high is None:
        yield (*where, "onlyIfGrown"), "maxHardwareRatio beside it"
    if asked.get("action") == "RescheduleAndAlert":
        if not resumes:
            yield (
                (*where, "action"),
                "resume beside it: the job moves with its checkpoint (or the action Alert)",
            )
        if high is None and asked.get("maxStepGrowth") is None:
            yield (*where, "action"), "maxHardwareRatio or maxStepGrowth beside it: they have no default"


def _parts_over_the_whole(spec: dict[str, Any]) -> Iterator[Contradiction]:
    for section, budget in (("resume", "maxResumes"), ("restart", "maxRestarts")):
        count = _number(_at(spec, section, budget))
        for part in ("maxInfrastructure", "maxJob"):
            share = _number(_at(spec, section, part))
            if share is not None and count is not None and share > count:
                yield ("spec", section, part), f"at most {budget} ({count:g})"


def settings_contradictions(document: Any) -> Iterator[Contradiction]:
    mail = _at(document, "mail")
    if isinstance(mail, dict):
        if "username" in mail and "passwordFile" not in mail:
            yield ("mail", "username"), "passwordFile beside it"
        if "passwordFile" in mail and "username" not in mail:
            yield ("mail", "passwordFile"), "username beside it"
        if "summary" in mail and not mail.get("admins") and not _told_of_nodes(_at(document, "webhooks")):
            yield ("mail", "summary"), "admins beside it, or a webhook about nodes: nobody would get it"
    yield from _webhooks(_at(document, "webhooks"))
    yield from _disk(_at(document, "disk"))
    yield from _own_checks(_at(document, "ownChecks"))
    yield from _fleet(_at(document, "fleet"))
    yield from _shapes(_at(document, "shapes"))


def _told_of_nodes(hooks: Any) -> bool:
    hooks = hooks if isinstance(hooks, list) else []
    return any(isinstance(one, dict) and "nodes" in (one.get("about") or ("nodes",)) for one in hooks)


def _webhooks(hooks: Any) -> Iterator[Contradiction]:
    if not isinstance(hooks, list):
        return
    names = [_at(hook, "name") for hook in hooks]
    for index, hook in enumerate(hooks):
        if names[index] in names[:index]:
            yield ("webhooks", index, "name"), "a name that no other webhook here has"
        if isinstance(hook, dict) and ("url" in hook) == ("urlFile" in hook):
            yield ("webhooks", index, "url"), "one of url and urlFile"
        if isinstance(hook, dict) and hook.get("format") == "slack" and "secretFile" in hook:
            yield ("webhooks", index, "secretFile"), "format: json beside it: nothing signs what Slack takes"


def _disk(disk: Any) -> Iterator[Contradiction]:
    standard = DiskThresholds()
    yield from _thresholds(disk, ("disk",), standard.warn_free_share, standard.min_free_share)
    mounts = _at(disk, "mounts")
    for index, mount in enumerate(mounts if isinstance(mounts, list) else ()):
        warn, least = _at(disk, "warnFreeShare"), _at(disk, "minFreeShare")
        yield from _thresholds(
            mount,
            ("disk", "mounts", index),
            standard.warn_free_share if warn is None else warn,
            standard.min_free_share if least is None else least,
        )


def _thresholds(section: Any, where: Path_, warn: Any, least: Any) -> Iterator[Contradiction]:
    """`warn` and `least` are in force where the section has none."""
    own_least, own_warn = _at(section, "minFreeShare"), _at(section, "warnFreeShare")
    if own_least is None and own_warn is None:
        return
    low = _number(least if own_least is None else own_least)
    high = _number(warn if own_warn is None else own_warn)
    if low is not None and high is not None and low > high:
        path = (*where, "minFreeShare" if own_least is not None else "warnFreeShare")
        yield path, f"minFreeShare ({low:g}) at most warnFreeShare ({high:g})"


def _own_checks(checks: Any) -> Iterator[Contradiction]:
    if not isinstance(checks, list):
        return
    names = [_at(check, "name") for check in checks]
    for index, check in enumerate(checks):
        if names[index] in names[:index]:
            yield ("ownChecks", index, "name"), "a name that no other check here has"
        interval_s, timeout_s = _seconds(_at(check, "interval")), _seconds(_at(check, "timeout"))
        standard = OwnCheck(name="", command=())
        if (timeout_s or standard.timeout_s) > (interval_s or standard.interval_s):
            place = "timeout" if timeout_s is not None else "interval"
            yield ("ownChecks", index, place), "a timeout that is at most the interval"


def _fleet(fleet: Any) -> Iterator[Contradiction]:
    if not isinstance(fleet, dict):
        return
    standard = FleetSettings()
    for name in ("observePools", "observeNamespaces"):
        if fleet.get("mode") == "observe" and fleet.get(name):
            yield ("fleet", name), "mode: enforce beside it: with observe, nothing is touched anywhere"
    for name in ("isolations", "poolIsolations", "disks", "poolDisks"):
        for part in ("atATime", "perWindow"):
            limit = _at(fleet, name, part)
            if _at(limit, "atLeast") == 0 and not _at(limit, "share"):
                yield ("fleet", name, part), "room for one node at least (for none ever: mode: observe)"
    for shorter, longer, why in (
        ("networkSettle", "networkWindow", "no node would be seen together with another"),
        ("releaseAfter", "repeatWindow", "no node would ever be isolated again within it"),
    ):
        short_s, long_s = _seconds(fleet.get(shorter)), _seconds(fleet.get(longer))
        if short_s is None and long_s is None:
            continue
        defaults = {"networkSettle": standard.network_settle_s, "networkWindow": standard.network_window_s}
        defaults |= {"releaseAfter": standard.release_after_s, "repeatWindow": standard.repeat_window_s}
        short_s = defaults[shorter] if short_s is None else short_s
        long_s = defaults[longer] if long_s is None else long_s
        if short_s >= long_s:
            place = shorter if fleet.get(shorter) is not None else longer
            yield (
                ("fleet", place),
                f"{shorter} ({duration_text(short_s)}) shorter than {longer} ({duration_text(long_s)}): else {why}",
            )


def _shapes(shapes: Any) -> Iterator[Contradiction]:
    if not isinstance(shapes, list):
        return
    names = [_at(shape, "name") for shape in shapes]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield ("shapes", index, "name"), "a name that no other shape has"
    for index, shape in enumerate(shapes[:-1]):
        if isinstance(shape, dict) and not shape.get("match"):
            yield ("shapes", index, "match"), "a match, or the last place: no shape after it could match"
