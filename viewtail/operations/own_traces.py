"""Finds and erases one entity in viewtail's own tables, beside its dead letters: its key, where somebody named it.

The tables that can hold it: `operator_run` (keys that were named, conditions, how far a run came, what it lowered),
`view` (the last row of a backfill), and the sentences that say why something is halted, paused, or could not be done.
`fan_out` names changed rows until it is over: that is said, and not taken out. All others hold no key of an entity.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

from offsets import sentences as texts
from offsets.fill_keys import key_from_text, key_text, untagged
from offsets.runs import MOST_TEXT as CUT_AT
from offsets.runs import PAUSED, RunState, is_under_way
from offsets.sentences import FanOutTexts, RunTexts, Sentence
from offsets.views import State
from viewtail.changes.copy_ids import view_of
from viewtail.changes.errors import MisuseError
from viewtail.changes.rendering import in_a_line, parse_key, render_key
from viewtail.changes.tables import Column
from viewtail.changes.writes import Key

ERASED = "(a key that was erased)"
_LISTED = re.compile(r"^(the keys|parked keys)\b.*: ")
_DIGEST = re.compile(r" \([0-9a-f]{12}\)$")  # of the keys: with few of them it tells which
_MORE = re.compile(r" and [\d,]+ more$")
_WHERE = "where "
# A key that sentences about something else may hold too: a number, a date, a short word.
_COMMON = re.compile(r"[\d.-]+|[^\W\d_]{1,8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTrace:
    """The content that one of viewtail's own tables held."""

    table: str
    erased: int = 0  # rows that named the key
    left: str = ""  # what still names it, and cannot be changed now
    conditions: tuple[int, ...] = ()  # ids of runs with a condition, or a reason, that an operator wrote


@dataclass(eq=False, kw_only=True)
class OwnTraces:
    """The traces of one entity.

    Args:
        tables: names of the entity's, as it is declared and as it was described.
        views: ids of the views of its table, with this key.
        known: ids of all views that viewtail's tables know; runs of others may be of any table.
    """

    cursor: Any
    database: str
    tables: Collection[str]
    key: Key
    columns: tuple[Column, ...]
    views: Collection[str]
    known: Collection[str]
    _rendered: str = field(init=False)
    _in_json: Key = field(init=False)  # the key, as it is kept in JSON
    _named: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        self._rendered = render_key(self.key, self.columns)
        self._in_json = key_from_text(key_text(self.key, "", 0)).key or ()
        self._named = _named(self._rendered)

    def erase(self) -> list[OwnTrace]:
        """Erase them in the caller's transaction; return each table that may name a key."""
        return [self._runs(), self._fills(), self._fan_outs(), *map(self._sentences, texts.SENTENCES)]

    # -- what operators had done --------------------------------------------------------------------------------

    def _runs(self) -> OwnTrace:
        runs = list(filter(self._may_name_it, texts.run_texts(self.cursor, self.database)))
        conditions = tuple(run.id for run in runs if _has_words(run))
        naming = [run.id for run in runs if self._run(run) is not None]
        is_erased = {run: self._erase_run(run) for run in naming}
        busy = [str(run) for run, erased in is_erased.items() if erased is False]
        left = f"what runs now ({', '.join(busy)})" if busy else ""
        erased = sum(map(bool, is_erased.values()))
        return OwnTrace(table="operator_run", erased=erased, left=left, conditions=conditions)

    def _may_name_it(self, run: RunTexts) -> bool:
        view = view_of(run.view)
        return view in self.views or view not in self.known

    def _erase_run(self, run: int) -> bool | None:
        """Erase the key in a run as it is by now: what was counted in it meanwhile stays.

        Return False where the run is under way, so that the key stays, and None where it names the key no more.
        """
        now = texts.lock_run_texts(self.cursor, self.database, run)
        if now is None or (new := self._run(now)) is None:
            return None
        if now.state == RunState.RUNNING and is_under_way(self.cursor, self.database, run):
            return False
        texts.replace_run_texts(self.cursor, self.database, run, new)
        return True

    def _run(self, run: RunTexts) -> tuple[str, str, str | None] | None:
        """Return what it says without the key; None where it does not name it."""
        counts = orjson.loads(run.progress)
        new = (self._what(run.what)[:CUT_AT], orjson.dumps(self._without(counts)).decode(), self.text(run.result))
        return None if new == (run.what, orjson.dumps(counts).decode(), run.result) else new

    def _what(self, what: str) -> str:
        if listed := _LISTED.match(what):
            return self._keys(listed[0], what[listed.end() :], is_cut=len(what) == CUT_AT)
        return self._condition(what) if what.startswith(_WHERE) else what

    def _keys(self, head: str, named: str, *, is_cut: bool) -> str:
        """Erase the key where keys were named: `keys_from_texts` of replay_keys.py writes them."""
        texts = _DIGEST.sub("", named)
        more = _MORE.search(texts)
        tokens = texts[: more.start() if more else len(texts)].split(", ")
        kept = [ERASED if self._is_named(token) else token for token in tokens]
        forms = (self._rendered, in_a_line(self._rendered))
        if is_cut and any(form.startswith(kept[-1]) for form in forms):
            kept[-1] = ERASED
        if kept == tokens:
            # A key with a comma in it was taken apart.
            either = "|".join(map(re.escape, forms))
            without = re.sub(rf"(?:^|(?<=, ))(?:{either})(?=, | and | \(|$)", lambda _: ERASED, named)
            return head + (named if without == named else _DIGEST.sub("", without))
        return head + ", ".join(kept) + (more[0] if more else "")

    def _is_named(self, token: str) -> bool:
        try:
            return parse_key(token, self.columns) == self.key
        except MisuseError:
            return False

    def _condition(self, what: str) -> str:
        """Erase all that looks like the key in a condition that an operator wrote."""
        texts = [part.hex() if isinstance(part, bytes) else str(part) for part in self.key]
        patterns = [_whole(text) for text in texts if text]
        if all(pattern.search(what) for pattern in patterns):
            for pattern in patterns:
                what = pattern.sub(ERASED, what)
        return _whole(self._rendered).sub(ERASED, what) if self._rendered else what

    def _without(self, progress: dict[str, Any]) -> dict[str, Any]:
        """Return what a run noted, without the key: how far it is, which keys are parked, which it lowered."""

        def without(name: str) -> str:
            return ERASED if name == self._rendered else name

        new = dict(progress)
        if self._is_place(new.get("after")):
            new["after"] = None
        if "parked" in new and isinstance(new["parked"], list):  # of other kinds it is a count
            new["parked"] = [without(name) for name in new["parked"]]
        if "lowered" in new:
            new["lowered"] = [{**reset, "key": without(reset["key"])} for reset in new["lowered"]]
        return new

    def _is_place(self, text: Any) -> bool:
        """Return whether it is the row of the entity, by whatever key the table is read."""
        place = key_from_text(text).key if isinstance(text, str) else None
        return place is not None and set(self._in_json) <= set(place)

    # -- views --------------------------------------------------------------------------------------------------

    def _fills(self) -> OwnTrace:
        """The last row that a backfill read, and why a view is halted or paused."""
        erased, filling = 0, []
        for view in texts.view_texts(self.cursor, self.database):
            is_of_it = view_of(view.name) in self.views and self._is_place(view.fill_key)
            if is_of_it and view.state == State.BACKFILLING:
                filling.append(view.name)
                is_of_it = False
            if is_of_it or self.text(view.reason) != view.reason:
                erased += 1
                texts.replace_view_texts(
                    self.cursor, self.database, view, self.text(view.reason), with_fill_key=is_of_it
                )
        left = f"how far the backfill of {', '.join(filling)} is" if filling else ""
        return OwnTrace(table="view", erased=erased, left=left)

    def _fan_outs(self) -> OwnTrace:
        """Which are kept yet: each goes behind a later change once it is written."""
        naming = {of.view for of in texts.fan_out_texts(self.cursor, self.database) if self._is_changed_row(of)}
        left = f"a fan-out of it in {', '.join(sorted(naming))}" if naming else ""
        return OwnTrace(table="fan_out", left=left)

    def _is_changed_row(self, of: FanOutTexts) -> bool:
        return of.table in self.tables and _has(untagged(orjson.loads(of.what)), self._in_json)

    # -- sentences ----------------------------------------------------------------------------------------------

    def _sentences(self, of: Sentence) -> OwnTrace:
        erased = 0
        for number, sentence in texts.sentences(self.cursor, self.database, of):
            if (new := self.text(sentence, of.length)) != sentence:
                texts.replace_sentence(self.cursor, self.database, of, number, sentence, new)
                erased += 1
        return OwnTrace(table=of.table, erased=erased)

    def text(self, text: str | None, length: int = CUT_AT) -> str | None:
        """A sentence without the key, cut to the length of its column."""
        if text is None or not self._rendered:
            return text
        # A list is one match up to the key, which may be in that part too.
        while (new := self._named.sub(lambda match: f"{match['before'] or ''}{ERASED}", text)) != text:
            text = new
        return text[:length]


def _has_words(run: RunTexts) -> bool:
    """Whether an operator wrote a condition, or a reason."""
    return run.what.startswith(_WHERE) or (run.kind == PAUSED and bool(run.result))


def _has(value: Any, key: Key) -> bool:
    """Whether a key is somewhere in nested lists."""
    return isinstance(value, list) and (tuple(value) == key or any(_has(part, key) for part in value))


def _named(rendered: str) -> re.Pattern[str]:
    """Match where a sentence names the key, behind the group `before`.

    A common one counts only where the sentence has it as a key: behind that word, in a list of keys, quoted, or alone.
    """
    name, erased = re.escape(rendered), re.escape(ERASED)
    if not _COMMON.fullmatch(rendered):
        return re.compile(rf"{erased}|(?P<before>)(?<!\w){name}(?!\w)")
    behind_word = rf"(?:\bkeys? ['\"]?(?:[^\s'\"]*[:{{])?|/_doc/)(?={name}(?!\w|\.\d))"
    # Keys that are texts may hold all that stands between keys.
    heads = r"(?:\bsuch as (?:keys? )?(?:.*?, )?|\bkeys:? (?:[^;]*?, )?)"
    listed = rf"{heads}(?={name}(?:[,;)]|\.?$|\. | and ))"
    alone = rf"(?<=['\"])(?={name}['\"])|^(?={name}$)"
    return re.compile(rf"{erased}|(?P<before>{behind_word}|{listed}|{alone}){name}", re.DOTALL)


def _whole(text: str) -> re.Pattern[str]:
    """Match a text where it stands by itself; binary values may be written 0x."""
    return re.compile(rf"(?:(?<=0x)|(?<![\w.])){re.escape(text)}(?![\w.])", re.IGNORECASE)
