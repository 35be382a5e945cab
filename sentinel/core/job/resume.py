"""What a restarted program is told: annotations of its pods, and a ConfigMap where its job asks for one. Pure.

docs/resume.md. The names are those of the variables that a program on one machine gets (`incidents.resume_env`).
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from sentinel.core.job.paths import Json, annotation, copied, label, table, text, write
from sentinel.core.job.writes import Verb, Write, patch

VARIABLES = (
    "SENTINEL_RESUME",
    "SENTINEL_RESTARTS",
    "SENTINEL_CAUSE",
    "SENTINEL_BAD_STEPS",
    "SENTINEL_CHECKPOINT_STEP",
    "SENTINEL_CHECKPOINT_PROOF",
)
ASKS_FOR_MAP = "sentinel.dev/resume-configmap"  # of a job: "true"
OURS = ("app.kubernetes.io/managed-by", "sentinel")  # a ConfigMap without this label is somebody else's
NOTHING: Mapping[str, str] = {}


def told(env: Mapping[str, str]) -> dict[str, str]:
    """Of a start's environment what its program is told."""
    return {name: env[name] for name in VARIABLES if name in env}


def annotation_of(variable: str) -> str:
    """SENTINEL_CHECKPOINT_STEP -> sentinel.dev/checkpoint-step"""
    return "sentinel.dev/" + variable.removeprefix("SENTINEL_").lower().replace("_", "-")


def annotate_pods(templates: Sequence[Json], told: Mapping[str, str]) -> None:
    """Change templates of a draft: what an earlier start told goes. Nothing to tell: nothing changes."""
    if not told:
        return
    ours = {annotation_of(name) for name in VARIABLES}
    for template in templates:
        others = table(template, "metadata.annotations")
        kept = {key: value for key, value in others.items() if key not in ours}
        new = {annotation_of(name): value for name, value in told.items()}
        write(template, "metadata.annotations", kept | new)


# ---------------------------------------------------------------- the ConfigMap


def map_name(job: Json) -> str:
    """Empty: the job does not ask for one."""
    return f"{text(job, 'metadata.name')}-sentinel" if annotation(job, ASKS_FOR_MAP) == "true" else ""


def write_map(job: Json, found: Json | None, told: Mapping[str, str]) -> list[Write]:
    """The write that brings the job's ConfigMap up to date. `found`: what has its name now. It goes with the job."""
    name = map_name(job)
    if not name or not told or (found is not None and label(found, OURS[0]) != OURS[1]):
        return []
    namespace = text(job, "metadata.namespace")
    owner = {
        "apiVersion": text(job, "apiVersion"),
        "kind": text(job, "kind"),
        "name": text(job, "metadata.name"),
        "uid": text(job, "metadata.uid"),
    }
    draft: Json = copied(found) if found is not None else {"apiVersion": "v1", "kind": "ConfigMap"}
    write(draft, "data", dict(told))
    write(draft, "metadata.ownerReferences", [owner])  # an earlier job of this name may have left it
    if found is not None:
        return [structs.replace(one, optional=True) for one in patch(found, draft, "configmaps")]
    write(
        draft, "metadata", {**draft["metadata"], "name": name, "namespace": namespace, "labels": dict([OURS])}
    )
    made = Write(
        verb=Verb.CREATE,
        group="",
        version="v1",
        plural="configmaps",
        namespace=namespace,
        name=name,
        body=draft,
        uid=owner["uid"],
        optional=True,
    )
    return [made]
