"""Names that are no text: any user may name a control group or a FUSE mount in bytes that are no UTF-8.

What is kept, sent and shown is UTF-8: one such name must not keep everything else from being told.
"""

import msgspec

from sentinel.core.health import Finding


def storable(words: str) -> str:
    """The words with what is no UTF-8 (surrogates of os.fsdecode) escaped."""
    return words.encode(errors="backslashreplace").decode()


def in_text(finding: Finding) -> Finding:
    """The finding with all that it quotes storable."""
    words = (finding.entity, finding.summary, finding.process, finding.cgroup, finding.job, *finding.evidence)
    if all(word.isascii() for word in words):
        return finding
    return msgspec.structs.replace(
        finding,
        entity=storable(finding.entity),
        summary=storable(finding.summary),
        process=storable(finding.process),
        cgroup=storable(finding.cgroup),
        job=storable(finding.job),
        evidence=tuple(map(storable, finding.evidence)),
    )
