"""`viewtail replay VIEW --since TIME --into TOPIC`: what operations/binlog_range.py does, and what it prints."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day

from projectors.catalog import Catalog
from projectors.stores.registry import store_of
from projectors.views import View
from viewtail import declarations
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, TemporaryError
from viewtail.changes.positions import Position
from viewtail.commands.output import print_remark
from viewtail.commands.progress import progress
from viewtail.composition import deploy, greeted
from viewtail.operations.binlog_range import MOST_TOLD, PublishedRange, Replay, recorded
from viewtail.operations.runs import Run
from viewtail.settings import Settings
from viewtail.signals import EXIT_STOPPED, on_stop

_FORMS = (
    "2026-11-22T03:00, 2026-11-22T03:00:00+01:00, or 03:00 for the last time that it was three; in UTC unless it says"
)


def replay_since(loaded: Settings, name: str, moment: datetime, topic: str) -> int:
    """Publish what the binlog says changed since a time; returns the exit code."""
    views = declarations.configured(loaded)
    view = declarations.chosen(loaded, name)
    if not store_of(view).keeps_every_change:
        raise MisuseError(f"--into is for views that keep every change, and {view.id} keeps the newest: name a Topic")
    if any(topic == other.name for other in views if store_of(other).keeps_every_change):
        raise MisuseError(f"--into {topic}: that topic is a view's own, and a replay never touches one; name a new one")
    (bound,) = deploy(greeted(loaded), [_beside(loaded, view, topic)]).views
    catalog = Catalog(servers=loaded.servers())
    catalog.create_tables()
    what = f"changed since {moment:%Y-%m-%dT%H:%M:%SZ}, into the topic {topic}"
    with progress(topic, "changes") as show, closing(catalog.session()) as session:
        replay = Replay(
            catalog=catalog,
            view=bound,
            live=view.id,
            history=catalog.history_beside(topic),
            since_us=_us(moment),
            say=lambda stretch, at: show(stretch.count, _about(stretch), _how_far(stretch, at)),
        )
        on_stop(replay.interrupt)
        try:
            run = Run(session, catalog.database, "replay", view.id, what, bound.fingerprint)
            stretch = recorded(replay, run)
        except TemporaryError:
            print_remark("what is published stays; the same command goes on behind it")
            raise
    return _tell(replay, stretch, view, topic, moment)


def moment_of(text: str, now: datetime) -> datetime:
    """A time as an operator writes it. Raises MisuseError."""
    try:
        moment = datetime.combine(now.date(), time_of_day.fromisoformat(text)) if _is_of_day(text) else None
        moment = datetime.fromisoformat(text) if moment is None else moment
    except ValueError:
        raise MisuseError(f"--since {text}: is no time; write {_FORMS} otherwise") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if moment > now and _is_of_day(text):
        moment -= timedelta(days=1)
    if moment > now:
        raise MisuseError(
            f"--since {text}: that is {moment:%Y-%m-%dT%H:%M:%SZ}, and it is {now:%Y-%m-%dT%H:%M:%SZ} now"
        )
    return moment


def _is_of_day(text: str) -> bool:
    return "-" not in text[:8] and ":" in text


def _us(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def _beside(loaded: Settings, view: View, topic: str) -> View:
    store = store_of(view)
    return store.beside(loaded.access(store), view, topic)


def _about(stretch: PublishedRange) -> int:
    """Estimate how many changes there are in all, by how much of the time is read; 0 where nothing is known."""
    read_us = (stretch.reached_us or stretch.since_us) - stretch.since_us
    return round(stretch.count * (time.time() * 1e6 - stretch.since_us) / read_us) if read_us > 0 else 0


def _how_far(stretch: PublishedRange, at: Position) -> str:
    reached = datetime.fromtimestamp((stretch.reached_us or stretch.since_us) / 1e6, UTC)
    return f", up to {reached:%Y-%m-%dT%H:%M:%SZ}, {at}"


def _tell(replay: Replay, stretch: PublishedRange, view: View, topic: str, moment: datetime) -> int:
    changes = f"{counted(stretch.count, 'changes')} of {view.id} since {moment:%Y-%m-%dT%H:%M:%SZ}"
    if not stretch.end:
        print(f"{topic}: stopped with {changes}. The same command goes on behind them")
        return EXIT_STOPPED
    print(f"{topic}: holds {changes}, up to {stretch.end}")
    for letter in replay.refused:
        print_remark(f"not published: key {letter.key}: {letter.reason}")
    if stretch.refused_count > len(replay.refused):
        print_remark(f"{stretch.refused_count:,} could not be published; the first {MOST_TOLD} of a run are listed")
    if stretch.cut_short:
        print_remark(f"it ends there: {stretch.cut_short}. Ask for what follows with a later time, and another topic")
    return 1 if stretch.cut_short or stretch.refused_count else 0
