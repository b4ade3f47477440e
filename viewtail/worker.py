"""One pipeline's owner: holds the lease or stands by for it, keeps the views up, backfills new ones, reports.

Each moment it writes one line of JSON about itself to a file descriptor of the supervisor. Whatever goes wrong with a
server is waited out here; only what the user must change (a declaration, a setting) ends it, with a MisuseError. That
declarations which fitted their tables do so no more is no such thing: a table or a right changed, and can be mended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import structlog

from offsets import pauses
from offsets.deployments import Identity
from offsets.lease import Lease
from offsets.mysql import Session
from projectors.catalog import Catalog, bound_to_what_fits, stream_of, streams_of
from projectors.copies import Mover
from projectors.fills.runner import FillRunner
from projectors.outcomes import End, Outcome
from projectors.pipeline_run import PipelineRun, open_run
from projectors.stores.registry import store_named
from projectors.views import View
from viewtail import declarations, settings
from viewtail.changes.errors import DeclarationError, HistoryGoneError, MisuseError, SourceError, ViewtailError
from viewtail.changes.pipelines import PipelineId, PipelineState
from viewtail.changes.repeating import Repeats
from viewtail.changes.retrying import reaction_to
from viewtail.operations.cleaner import Cleaner
from viewtail.operations.held_keys import HeldKeys
from viewtail.operations.new_declarations import NewDeclarations
from viewtail.operations.other_apps import MEND, other_app
from viewtail.operations.status import BUSY_ABOVE_S, pipelines_now
from viewtail.presence import Presence
from viewtail.reports import Reporter
from viewtail.stops import Stop

_log = structlog.get_logger("viewtail.worker")

STANDBY_ROUND_S = 1
LOOK_EVERY_S = 1.0  # whether a paused pipeline is resumed
TELL_AGAIN_S = 60.0  # of the same trouble, in the log
HELD_FROM = 2  # attempts that ended soon: from then on one is said to run when it has lasted for a moment
PROVEN_AFTER_S = 1.0
_IN_TROUBLE = (PipelineState.HALTED, PipelineState.RETRYING)


class Worker:
    """Owns one pipeline, again and again, until told to stop. `more` is part of what it reports."""

    def __init__(
        self,
        identity: PipelineId,
        config: settings.Settings,
        report_to: int,
        presence: Presence,
        more: Callable[[], Mapping[str, object]],
    ) -> None:
        self.identity = identity
        self._presence = presence
        self.settings = config
        self.stop = Stop()
        self.ends_as = PipelineState.STOPPED  # the state that it ends in
        self.reporter = Reporter(identity.name, report_to, Catalog(servers=config.servers()), self.stop, more)
        self._fits_from: dict[tuple[str, str], int] = {}  # kept from one ownership to the next
        self._views: tuple[str, ...] = ()  # the ids of those that are kept
        self._held_back: frozenset[str] = frozenset()  # views, when the pipeline is taken next
        self._deployment: Identity | None = None  # that this process works for, wherever its tables are
        self._attempt = 0  # of those that ended soon, one behind the other
        self.has_fitted = False  # its declarations, here or in a process before this one
        self._troubles = Repeats(TELL_AGAIN_S)
        self._standby = ""  # what it waits for, where it stands by
        self._looked_who_at = float("-inf")

    def run(self) -> None:
        """Run until `stop` is set. Raises MisuseError for what the user must change."""
        report = threading.Thread(target=self.reporter.run, name="report", daemon=True)
        report.start()
        while not self.stop.is_set():
            began_at = time.monotonic()
            try:
                self._own_once()
                self._attempt = 0
            except MisuseError:
                raise
            except ViewtailError as error:
                self._attempt = 0 if time.monotonic() - began_at > 60 else self._attempt + 1
                self._react(error)
        self.reporter.say(self.ends_as, None)
        report.join()

    def _react(self, error: ViewtailError) -> None:
        reaction, text = reaction_to(error), str(error)
        if isinstance(error, HistoryGoneError) and self._views:
            text += f". Views that need it: {', '.join(self._views)}"
        is_expected = self._attempt > 1 or reaction.state == PipelineState.STANDBY
        if self._troubles.is_due(text):
            (_log.warning if is_expected else _log.error)("pipeline stopped", error=text, state=reaction.state)
        self.reporter.say(reaction.state, text)
        if reaction.state != PipelineState.STANDBY:  # what the new owner reports is left alone
            self.reporter.save(unless_owned=True)  # this one may have stood by
        self.stop.wait(reaction.pause_s(self._attempt))

    def _own_once(self) -> None:
        """Wait for the lease, take the pipeline, run it until it ends."""
        # Its own store's only: what is wrong with a table of another store's views is not this process's concern.
        views = self._declared()
        catalog = self._fitting(views)
        self._views = tuple(view.view.id for view in catalog.views)
        self._deployment = catalog.create_tables(self._deployment)
        lease = Lease(catalog.servers.open_own, catalog.database, self.identity.name)
        try:
            if self._acquire(lease, catalog):
                catalog.check_kept_by_one(self.identity)
                # The tables may have changed while another viewtail ran.
                if self.reporter.state == PipelineState.STANDBY:
                    with suppress(DeclarationError):  # the stream halts what no longer fits, and names the statement
                        catalog = self._deployed(views)
                following: Catalog | None = catalog.marked(lease.mark)
                while following is not None and self._is_to_run(lease, following):
                    following = self._run_owned(following, lease)
                if self.stop.is_set():
                    self.reporter.say(self.ends_as, None)
                    self.reporter.save()  # while nobody else may own the pipeline
        finally:
            lease.release()

    def _declared(self) -> list[View]:
        """The store's views of which the source holds changes."""
        views = [view for view in declarations.load(self.settings.views) if view.store == self.identity.store]
        kind, access = self.settings.source_kind, self.settings.source_access()
        streams = kind.streams_in(access, self.identity.source, streams_of(kind, views))
        return [view for view in views if stream_of(kind, view) in streams]

    def _fitting(self, views: Sequence[View]) -> Catalog:
        """`_deployed`; SourceError where they fitted before, so that the pipeline says it and is tried again."""
        try:
            found = self._deployed(views)
        except DeclarationError as error:
            if not self.has_fitted:
                raise
            raise SourceError(
                f"{error}. It fitted when `viewtail run` began: what comes back in the source is seen by itself, "
                "and a changed views.py when `viewtail run` is started again"
            ) from None
        self.has_fitted = True
        return found

    def _deployed(self, views: Sequence[View]) -> Catalog:
        found = bound_to_what_fits(self.settings.servers(), views)
        if not found.views:
            raise SourceError("every view is halted, and none fits its table; `viewtail status` has the reasons")
        return found

    def _acquire(self, lease: Lease, catalog: Catalog) -> bool:
        wait_s = 0  # one that waited stands by, however short that was
        while not self.stop.is_set():
            if lease.acquire(wait_s):
                return True
            wait_s = STANDBY_ROUND_S
            self.reporter.say(PipelineState.STANDBY, self._stands_by_for(catalog))
        return False

    def _stands_by_for(self, catalog: Catalog) -> str:
        """Return who runs the pipeline. One that keeps other views is told of in the log too, now and then."""
        if time.monotonic() - self._looked_who_at > TELL_AGAIN_S:
            self._looked_who_at = time.monotonic()
            self._standby = "another viewtail runs this pipeline; taking over when it ends"
            with suppress(ViewtailError):  # the lease's session says it when the server is away
                declared = declarations.all_ids(self.settings)
                found = other_app(pipelines_now(catalog).values(), catalog.database, declared)
                if found is not None:
                    self._standby = f"{found}. {MEND}. Standing by; taking over when it ends"
                    _log.warning("standing by for a viewtail with other views", error=self._standby)
        return self._standby

    def _is_to_run(self, lease: Lease, catalog: Catalog) -> bool:
        """Wait while the pipeline is paused: the lease is held, and nothing is read or written. False: it is to end."""
        with closing(catalog.session()) as session:
            while not self.stop.is_set():
                lease.check()
                found = pauses.of(session, catalog.database, self.identity.name)
                if found is None:
                    break
                self.reporter.pause(found)
                self.stop.wait(LOOK_EVERY_S)
        self.reporter.pause(None)
        return not self.stop.is_set()

    def _run_owned(self, catalog: Catalog, lease: Lease) -> Catalog | None:
        """Run until it ends; return what to go on with where it is to be read again.

        Views are bound as they were then: the stream may have more changes of their tables between here and now.
        """
        ending = Stop()  # of this ownership; `stop` ends it too
        own = open_run(catalog, self.identity, lease, ending, self._held_back, self._fits_from)
        if own.taken_from is not None:
            self._presence.takeover_count += 1
            _log.warning("taken over from a process that had not given it up", process=own.taken_from)
        if own.is_begun:  # what changed in the tables since they were described will not come with the stream
            own.pipeline.offsets.abandon()
            self._presence.fenced_count += own.close()
            return None
        threads = self._threads(catalog, own)
        fills = ThreadPoolExecutor(1, thread_name_prefix="backfill")
        self.reporter.own = own
        self._say_running()
        lease.look = partial(self._look, own, time.monotonic())
        for thread in threads:
            thread.start()
        try:
            filling = fills.submit(FillRunner(own).run)
            streamed = self._stream(own, ending)
        finally:
            lease.look = lambda _: None
            own.pipeline.offsets.abandon()
            ending.set()
            own.life.wake.set()
            for thread in threads:
                thread.join()
            fills.shutdown()
            self.reporter.own = None
            self._presence.fenced_count += own.close()
        return self._following(catalog, own, streamed, filling.result())

    def _following(self, catalog: Catalog, own: PipelineRun, streamed: Outcome, filled: Outcome) -> Catalog | None:
        """Return what to go on with, by how stream and fillings ended; None: the tables are described again first."""
        self._held_back = filled.waiting_next(streamed.waiting_next(self._held_back))
        if filled.end is End.ANOTHER_SERVER and not self.stop.is_set():
            assert filled.error is not None
            raise filled.error  # the pipeline restarts, and then goes on or halts
        # A paused one goes on from the offset, when it is resumed, with the views of that time.
        if not own.is_paused and streamed.end is End.DESCRIBE_AGAIN:
            return None
        is_again = own.is_paused or own.is_again or End.AGAIN in (streamed.end, filled.end)
        return replace(catalog, views=own.bound_views()) if is_again else None

    def _threads(self, catalog: Catalog, own: PipelineRun) -> list[threading.Thread]:
        """Return what is done beside the stream and the fillings, not begun yet."""
        new = NewDeclarations(catalog=catalog, own=own, is_busy=partial(_is_behind, own))
        beside = {
            "cleaner": self._cleaner(catalog, own).run,
            "mover": self._mover(catalog, own).run,
            "new declarations": new.run,
            "held keys": HeldKeys(catalog=catalog, own=own).run,
        }
        return [threading.Thread(target=run, name=name, daemon=True) for name, run in beside.items()]

    def _say_running(self) -> None:
        """Unless attempts before this one ended soon: then the lease's look says it, once this one has lasted."""
        if self._attempt < HELD_FROM or self.reporter.state not in _IN_TROUBLE:
            is_said = self.reporter.state == PipelineState.RUNNING  # it is taken again, and changes wait
            self.reporter.say(PipelineState.RUNNING, None)
            if not is_said:
                self.reporter.save()

    def _stream(self, own: PipelineRun, ending: Stop) -> Outcome:
        """Apply changes until it ends."""
        with ending.telling(own.source.interrupt), self.stop.telling(ending.set):
            outcome = own.pipeline.run(own.offset)
        if outcome.end is End.DONE:
            own.pipeline.save_now()
            own.pipeline.offsets.close()
        else:
            _log.info("the pipeline is taken again", why=outcome.why, held_back=sorted(outcome.held_back or ()))
        return outcome

    def _look(self, own: PipelineRun, began_at: float, session: Session) -> None:
        """Look, at each renewal of the lease."""
        if self.reporter.state in _IN_TROUBLE and time.monotonic() - began_at > PROVEN_AFTER_S:
            self.reporter.say(PipelineState.RUNNING, None)  # its own thread saves that
        if self.reporter.state == PipelineState.RUNNING:
            self._troubles.is_due(None)
        own.look(session)

    def _cleaner(self, catalog: Catalog, own: PipelineRun) -> Cleaner:
        """Return the cleaner of an ownership. Topics are published again as a whole: nothing is cleaned in them."""
        chosen = self.settings.cleaner

        def is_busy() -> bool:
            return _is_behind(own) or bool(own.fills.under_way) or any(view.move for view in own.life.views.values())

        return Cleaner(catalog=catalog, own=own, share=chosen.share / 2, rest_s=chosen.rest_s, is_busy=is_busy)

    @staticmethod
    def _mover(catalog: Catalog, own: PipelineRun) -> Mover:
        """Return the mover of an ownership, for copies that change places meanwhile."""
        return Mover(
            catalog=catalog,
            pipeline=own.identity.name,
            store=store_named(own.identity.store),
            views=tuple(own.life.views.values()),
            throttle_of=own.throttle,
            stop=own.stop,
            wake=own.life.wake,
        )


def _is_behind(own: PipelineRun) -> bool:
    """Return whether it is left alone by what can wait. A fan-out is none: one may always be under way."""
    return own.pipeline.vitals.state != PipelineState.RUNNING or own.stream_lag_s > BUSY_ABOVE_S
