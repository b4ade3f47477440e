"""`viewtail why`: what operations/why.py finds, on one screen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

from ingest import History
from projectors.catalog import Catalog
from projectors.proving.view_access import ViewAccess
from viewtail import declarations
from viewtail.changes.counting import counted
from viewtail.commands.output import print_json, print_remark
from viewtail.composition import deployed_to_ask
from viewtail.operations.given import key_of_text, other_reading, own_keys
from viewtail.operations.status import pipelines_now
from viewtail.operations.why import Answer, Verdict, Why
from viewtail.settings import Settings


def why(loaded: Settings, name: str, key: str, *, as_json: bool) -> int:
    """Print why a view shows what it shows of one entity; the exit code is 0 where that is right."""
    answer, remark = asked(loaded, name, key, print_remark)
    print_remark(remark)
    if as_json:
        print_json(_as_json(answer))
    else:
        for title, text in lines(answer):
            print(f"{title:<12} {text}")
    return 0 if answer.verdict.is_well else 1


def asked(loaded: Settings, name: str, key: str, say: Callable[[str], None]) -> tuple[Answer, str | None]:
    """Ask it; return the answer, and how else the key may have been meant where it has no row.

    `say` is told why it takes long. Raises ViewtailError.
    """
    view = declarations.chosen(loaded, name)
    catalog = deployed_to_ask(loaded, [view])
    catalog.create_tables()
    (bound,) = catalog.views
    (wanted,) = own_keys([key_of_text(key, bound.key)], bound)
    with ViewAccess(catalog, bound, Event(), say) as beside:
        history = partial(_history, catalog, f"{view.id} {key}")
        answer = Why(beside=beside, status=partial(pipelines_now, catalog), history=history).of(wanted)
    return answer, None if answer.has_row else other_reading(key, bound.key)


def _history(catalog: Catalog, what: str) -> History | None:
    return catalog.history_beside(what) if catalog.servers.kind.has_rows else None


def lines(answer: Answer) -> list[tuple[str, str]]:
    """The answer in words: what each line is about, and the line."""
    told = [("view", f"{answer.view}, key {answer.key}"), ("row", _row(answer)), ("shown", _held(answer))]
    told += [("pipeline", _pipeline(answer)), ("parked", _letter(answer)), ("last change", _change(answer))]
    told += [("verdict", f"{answer.verdict.value.upper()}: {answer.why}")]
    return told + ([("next", answer.run_next)] if answer.run_next else [])


def _row(answer: Answer) -> str:
    if not answer.has_row:
        return "none in the table now"
    version = "" if answer.row_version is None else f", version {answer.row_version}"
    return f"in the table{version}" + (f", of {answer.row_at} UTC" if answer.row_at else "")


def _held(answer: Answer) -> str:
    held = answer.held
    if held is None:
        return "nothing, and no tombstone"
    what = held.fault or ("a tombstone, or a row without values" if held.content is None else "yes")
    version = "without a version" if held.version is None else f"version {held.version}"
    at = f" of {answer.held_at} UTC" if answer.held_at else ""
    return f"{what}, {version}{at}" + (f", which is about {answer.held_place}" if answer.held_place else "")


def _pipeline(answer: Answer) -> str:
    pipeline = answer.pipeline
    text = f"{pipeline.name} is {pipeline.state}, at {pipeline.position}, {pipeline.lag_s:.1f} s behind"
    return f"{text}: {pipeline.error}" if pipeline.error else text


def _letter(answer: Answer) -> str:
    letter = answer.letter
    if letter is None:
        return "yes, without a dead letter: it was dropped" if answer.verdict is Verdict.PARKED else "no"
    first, last = _second(letter.first_at), _second(letter.last_at)
    return f"since {first} UTC, {counted(letter.count, 'times')}, last {last}: {letter.cause}"


def _second(at: str) -> str:
    return at.partition(".")[0]


def _change(answer: Answer) -> str:
    change = answer.change
    if change is None:
        return answer.change_note
    origin = change.origin
    parts = [f"{change.op} of {change.of}" + (f" at {origin.file}:{origin.start}" if origin.file else "")]
    parts += [f"committed {answer.change_at} UTC"] if answer.change_at else []
    parts += [f"GTID {origin.gtid}"] if origin.gtid else []
    parts += [answer.change_note] if answer.change_note else []
    return ", ".join(parts)


def _as_json(answer: Answer) -> dict[str, Any]:
    pipeline = answer.pipeline
    return {
        "view": answer.view,
        "key": answer.key,
        "verdict": answer.verdict.value,
        "is_well": answer.verdict.is_well,
        "why": answer.why,
        "next": answer.run_next or None,
        "row": {
            "is_there": answer.has_row,
            "version": None if answer.row_version is None else str(answer.row_version),
            "changed_at": answer.row_at,
        },
        "shown": _shown_as_json(answer),
        "pipeline": {
            "name": pipeline.name,
            "state": pipeline.state,
            "position": pipeline.position,
            "lag_s": pipeline.lag_s,
            "error": pipeline.error,
        },
        "parked": _letter_as_json(answer),
        "last_change": _change_as_json(answer),
        "last_change_note": answer.change_note or None,
    }


def _shown_as_json(answer: Answer) -> dict[str, Any] | None:
    held = answer.held
    if held is None:
        return None
    return {
        "version": None if held.version is None else str(held.version),
        "changed_at": answer.held_at,
        "place": answer.held_place,
        "is_tombstone": held.content is None and not held.fault,
        "fault": held.fault or None,
    }


def _letter_as_json(answer: Answer) -> dict[str, Any] | None:
    letter = answer.letter
    if letter is None:
        return None
    return {
        "reason": letter.cause,
        "version": str(letter.version),
        "count": letter.count,
        "first_at": _second(letter.first_at),
        "last_at": _second(letter.last_at),
    }


def _change_as_json(answer: Answer) -> dict[str, Any] | None:
    change = answer.change
    if change is None:
        return None
    return {
        "op": change.op,
        "of": change.of,
        "version": str(change.version),
        "file": change.origin.file or None,
        "position": change.origin.start,
        "gtid": change.origin.gtid,
        "committed_at": answer.change_at,
    }
