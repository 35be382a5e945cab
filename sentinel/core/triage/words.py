"""A verdict in words: the sentence, its evidence and how sure it is."""

from sentinel.core.model import Symptom, Verdict
from sentinel.core.signals import how_far, names
from sentinel.core.triage.case import CLASS_OF_SYMPTOM, Case, Why, place_of
from sentinel.core.triage.rows import evidence_lines


def worded(case: Case, why: Why) -> Verdict:
    return Verdict(
        symptom=case.symptom,
        cause=why.cls.cause,
        failure=why.cls.id,
        scope=why.cls.scope,
        sentence=_sentence(case, why),
        rank=why.rank,
        worker=why.worker,
        entity=why.entity,
        evidence=(
            *evidence_lines(why.rank, why.cls.id, why.finding, case.rows, case.lost, case.signal),
            *why.others,
        ),
        advice=why.cls.advice,
        budget=why.cls.budget,
        restart=why.cls.restart,
        confidence=_confidence(case, why),
        place=place_of(case, why),
        follows=why.follows,
    )


def _sentence(case: Case, why: Why) -> str:
    clause = why.clause or why.cls.sentence.format(
        entity=why.entity or "a GPU", exit=_exit_words(case, why.rank), code=why.code
    )
    if case.symptom is Symptom.FINDING:
        user = f", used by rank {why.rank}" if why.rank is not None and case.size > 1 else ""
        said = f"{clause[:1].upper()}{clause[1:]}{user}."
    elif not case.lost and case.signal is not None:
        said = case.signal.sentence
        if why.cls.id != CLASS_OF_SYMPTOM.get(case.signal.symptom):
            said = f"{said[:-1] if said.endswith('.') else said}: {clause}."
    else:
        said = f"{_subject(case, why.rank)}: {_what_it_said(case, why)}{clause}."
    return f"{said} {why.note}" if why.note else said


def _subject(case: Case, rank: int | None) -> str:
    if case.size == 1:
        step = case.last_steps.get(0)
        return "The program was lost" + (
            f" after {how_far(step, case.steps_told)}" if step is not None else ""
        )
    if rank is None:
        return f"{names([e.rank for e in case.lost]).capitalize()} {'was' if len(case.lost) == 1 else 'were'} lost"
    step = case.last_steps.get(rank)
    after = f" after {how_far(step, case.steps_told)}" if step is not None else ""
    if case.exit_of(rank) is None:
        return f"{names([e.rank for e in case.lost]).capitalize()} died because of rank {rank}{after}"
    others = len(case.lost) - 1
    return f"Rank {rank} was lost{after}" + (f", then {others} more" if others else "")


def _what_it_said(case: Case, why: Why) -> str:
    """ "CUDA error after " before hardware evidence: what the owner sees in the log, joined to its cause."""
    if why.finding is None or why.finding.component != "gpu":
        return ""
    own = next((row for row in case.rows if row.match.rank == why.rank and row.cls.role != "generic"), None)
    return f"{own.cls.title} after " if own is not None else ""


def _exit_words(case: Case, rank: int | None) -> str:
    exit_ = case.exit_of(rank) if rank is not None else None
    return exit_.describe() if exit_ else "exit status unknown"


def _confidence(case: Case, why: Why) -> str:
    said = []
    if why.finding is not None and why.finding.component == "gpu" and case.rows:
        said.append("hardware evidence was preferred to what the logs say")
    quiet = len({row.match.rank for row in case.of("cascade", "symptom", "report")} - {why.rank})
    if quiet and why.cls.role in ("root", "generic", "abort"):
        said.append(f"the messages of {quiet} other rank{'s' if quiet > 1 else ''} are consequences")
    if case.signal is not None and case.signal.confidence and not case.lost:
        said.append(case.signal.confidence)
    return "; ".join(said)
