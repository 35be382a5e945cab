"""What kubelets, runtimes and registries say, without the wrappers around the words that count. Pure."""

import re

MAX_WORDS = 240
# containerd's errors one around the other, and the kubelet's own.
_WRAPPERS = re.compile(
    r"^(rpc error: code = \w+ desc = |Error: |failed to pull and unpack image \S+: |failed to resolve reference \S+: "
    r"|Back-off pulling image \S+(: |$)|Err\w+: |Failed to pull image \S+: "
    r"|failed to create containerd task: |failed to create shim task: |OCI runtime create failed: "
    r"|runc create failed: |unable to start container process: |Failed to create pod sandbox: |\S+/\S+: (?=not found$)"
    r"|(Mount|Attach)Volume\.[\w ]+ failed for volume \S+ : |mount failed: .* Output: )"
)


def words(message: str) -> str:
    """On one line, and not too many."""
    said = " ".join(message.split())
    while (bare := _WRAPPERS.sub("", said, count=1)) != said:
        said = bare
    return cut(said.removesuffix(": unknown"))


def cut(said: str) -> str:
    said = "".join(c if c.isprintable() else " " for c in said).strip()
    return said if len(said) <= MAX_WORDS else said[: MAX_WORDS - 1] + "…"
