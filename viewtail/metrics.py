"""Prometheus metrics of all pipelines, from the lines their processes report, and the two probes, over HTTP.

Whoever asks cannot hold the run up: each request has a thread of its own and a limit of time, and the oldest of too
many connections is closed.
"""

from __future__ import annotations

import errno
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import orjson
import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from ingest import Margin
from offsets.views import State
from viewtail import probes
from viewtail.changes.errors import SettingsError
from viewtail.changes.pipelines import PipelineState
from viewtail.operations.health import reported

_log = structlog.get_logger("viewtail.run")

Margins: TypeAlias = Callable[[], Mapping[str, Margin]]  # by pipeline

TRY_EVERY_S = 2.0  # for an address that is in use
READ_WITHIN_S = 5.0  # the next bytes of a request
MOST_CONNECTIONS = 32
_METRICS = ("/", "/metrics")
# Of a pipeline; `status` has "down" too, which is that no process says anything of it.
_STATES = (
    PipelineState.STARTING,
    PipelineState.RUNNING,
    PipelineState.STANDBY,
    PipelineState.RETRYING,
    PipelineState.HALTED,
    PipelineState.RESTARTING,
)
_FAMILIES: Sequence[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, str]] = (
    (CounterMetricFamily, "viewtail_rows", "rows", "changed rows read from the source"),
    (CounterMetricFamily, "viewtail_writes", "writes", "writes applied to the store, after coalescing"),
    (CounterMetricFamily, "viewtail_batches", "batches", "batches applied"),
    (CounterMetricFamily, "viewtail_source_reconnects", "reconnects", "reconnects to the source"),
    (CounterMetricFamily, "viewtail_store_retries", "store_retries", "times the store was waited for"),
    (
        GaugeMetricFamily,
        "viewtail_lag_seconds",
        "lag_s",
        "age of the oldest change that is not durable yet; 0 at the source's end",
    ),
    (GaugeMetricFamily, "viewtail_prepared_transactions", "prepared", "XA transactions that hold the offset back"),
    (GaugeMetricFamily, "viewtail_pipeline_paused", "paused", "1 while an operator has the pipeline paused"),
    (GaugeMetricFamily, "viewtail_paused_views", "paused_views", "views that an operator has paused"),
    (GaugeMetricFamily, "viewtail_parked_keys", "parked", "keys among the dead letters"),
    (CounterMetricFamily, "viewtail_cleaner_repairs", "repaired", "entities that the cleaner wrote again"),
    (GaugeMetricFamily, "viewtail_memory_bytes", "memory_bytes", "largest resident memory of the pipeline's process"),
)
# Of what knows them: a process of its store, or, where the source is shared out, a pipeline of a partition.
_FLEET: Sequence[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, str]] = (
    (GaugeMetricFamily, "viewtail_members", "members", "processes that run the store's pipelines or stand by"),
    (GaugeMetricFamily, "viewtail_partitions_owned", "parts", "partitions that this process has in its group"),
    (CounterMetricFamily, "viewtail_rebalances", "rebalances", "times that the group gave this process its share anew"),
    (
        CounterMetricFamily,
        "viewtail_takeovers",
        "takeovers",
        "pipelines taken from an owner that had not given them up",
    ),
    (
        CounterMetricFamily,
        "viewtail_fenced",
        "fenced",
        "pipelines that another process had taken when this one gave them up",
    ),
    (CounterMetricFamily, "viewtail_process_deaths", "deaths", "times that the process died and was started again"),
    (GaugeMetricFamily, "viewtail_lag_messages", "waiting", "messages behind the position of a partition's pipeline"),
)


class _Collector(Collector):
    def __init__(self, reports: Callable[[], Mapping[str, Mapping[str, Any]]], margins: Margins = dict) -> None:
        self._reports = reports
        self._margins = margins

    def collect(self) -> Iterator[Metric]:
        reports = self._reports()
        for families, absent in ((_FAMILIES, 0), (_FLEET, None)):
            for family, name, field, text in families:
                metric = family(name, text, labels=["pipeline"])
                for pipeline, report in reports.items():
                    if (value := report.get(field, absent)) is not None:
                        metric.add_metric([pipeline], value)
                yield metric
        yield from _of_pipelines(reports)
        yield from _of_views(reports)
        yield from _of_margins(self._margins())


def _of_margins(margins: Mapping[str, Margin]) -> Iterator[Metric]:
    """Yield how long sources keep what pipelines need next, whichever process runs these."""
    left = GaugeMetricFamily(
        "viewtail_source_margin_seconds",
        "until the source may remove what the pipeline needs next, at least; absent: it removes nothing by itself, or "
        "was not heard for three minutes",
        labels=["pipeline"],
    )
    ratio = GaugeMetricFamily(
        "viewtail_source_margin_ratio", "the same, of the time that it keeps a change, 0 to 1", labels=["pipeline"]
    )
    for pipeline, margin in margins.items():
        left.add_metric([pipeline], margin.left_s)
        ratio.add_metric([pipeline], margin.ratio)
    yield from (left, ratio)


def _of_pipelines(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    up = GaugeMetricFamily("viewtail_pipeline_running", "1 while the pipeline keeps up", labels=["pipeline"])
    state = GaugeMetricFamily(
        "viewtail_pipeline_state", "1 for the state that the pipeline is in", labels=["pipeline", "state"]
    )
    age = GaugeMetricFamily(
        "viewtail_report_age_seconds", "since the pipeline's process last said how it is", labels=["pipeline"]
    )
    for pipeline, report in reports.items():
        judged = reported(report)
        up.add_metric([pipeline], float(judged.runs))
        for name in dict.fromkeys((*_STATES, judged.state)):
            state.add_metric([pipeline, name], float(name == judged.state))
        if judged.age_s is not None:
            age.add_metric([pipeline], judged.age_s)
    yield from (up, state, age)


def _of_views(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of views of pipelines that this process runs: one that stands by says nothing of them."""
    labels = ["pipeline", "view"]
    rows = GaugeMetricFamily("viewtail_fill_rows", "rows read by a running backfill", labels=labels)
    state = GaugeMetricFamily("viewtail_view_state", "1 for the state that the view is in", labels=[*labels, "state"])
    filled = GaugeMetricFamily(
        "viewtail_view_filled_ratio", "how much of the view is backfilled, 0 to 1", labels=labels
    )
    parked = GaugeMetricFamily("viewtail_view_parked_keys", "keys of the view among the dead letters", labels=labels)
    proven = GaugeMetricFamily(
        "viewtail_view_proven_timestamp_seconds",
        "through this moment the view was compared with its table, and equal; absent: nothing is proven",
        labels=labels,
    )
    for pipeline, report in reports.items():
        for one in report.get("backfills", ()):
            rows.add_metric([pipeline, one["view"]], one["rows"])
        for one in report.get("views", ()):
            of_view = [pipeline, one["view"]]
            for name in State:
                state.add_metric([*of_view, name], 1.0 if name == one["state"] else 0.0)
            if one["filled"] is not None:
                filled.add_metric(of_view, one["filled"])
            parked.add_metric(of_view, one["parked"])
            if one["proven_s"] is not None:
                proven.add_metric(of_view, one["proven_s"])
    yield from (rows, state, filled, parked, proven)


class _Handler(WSGIRequestHandler):
    """Logs no requests; a reader that sends or takes nothing is left."""

    timeout = READ_WITHIN_S

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: probes come every few seconds."""


class _Server(ThreadingWSGIServer):
    """A thread a connection, and so many at most: the oldest is closed for a new one."""

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self._open: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = self._open.popleft() if len(self._open) >= MOST_CONNECTIONS else None
            self._open.append(request)
        if oldest is not None:
            _end(oldest)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread is to be had: the reader asks again
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away, mostly."""
        _log.debug("a request for metrics failed", error=repr(sys.exception()))


def _end(connection: socket.socket) -> None:
    """Wake the thread that waits for it; that thread closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is gone already


class Server:
    """Serves /metrics and the probes, as soon as the address is free: of two `run` on one machine the second waits."""

    def __init__(self, host: str, port: int, supervisor: probes.Watched, margins: Margins = dict) -> None:
        """Raise SettingsError when the address cannot be listened on, except that it is in use."""
        self._address = (host, port)
        registry = CollectorRegistry()
        registry.register(_Collector(supervisor.reports, margins))
        self._metrics = make_wsgi_app(registry)
        self._probes = {"/livez": lambda: probes.livez(supervisor), "/readyz": lambda: probes.readyz(supervisor)}
        self._stop = threading.Event()
        self._serving: tuple[WSGIServer, threading.Thread] | None = None
        self._waiting: threading.Thread | None = None
        if not self._listens():
            _log.warning(
                "metrics wait: another process listens there, as a second viewtail on this machine does",
                url=self.url,
                mend="for metrics of both at once, set another VIEWTAIL_METRICS__PORT for one",
            )
            self._waiting = threading.Thread(target=self._wait, name="metrics", daemon=True)
            self._waiting.start()

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://{host}:{port}/metrics"

    def _answer(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        """The WSGI application."""
        path = environ["PATH_INFO"]
        if path in _METRICS:
            answered: Iterable[bytes] = self._metrics(environ, start_response)
            return answered
        probe = self._probes.get(path)
        if probe is None:  # a probe whose path is mistyped must not seem to pass
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [f"there are {', '.join((*_METRICS[1:], *self._probes))}\n".encode()]
        answer = probe()
        status = "200 OK" if answer.is_good else "503 Service Unavailable"
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [orjson.dumps(answer.body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)]

    def _listens(self) -> bool:
        """Try to; False while the address is in use."""
        host, port = self._address
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            server = _Server((str(address[0]), port), family)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise SettingsError(
                f"metrics.host, metrics.port: cannot listen on {host}:{port} ({error.strerror}). Set another "
                "VIEWTAIL_METRICS__HOST or VIEWTAIL_METRICS__PORT, or port 0 for no metrics"
            ) from None
        server.set_app(self._answer)
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        self._serving = server, thread
        _log.info("metrics", url=self.url)
        return True

    def _wait(self) -> None:
        while not self._stop.wait(TRY_EVERY_S):
            try:
                if self._listens():
                    return
            except SettingsError as error:
                _log.error("no metrics", error=str(error))
                return

    def close(self) -> None:
        self._stop.set()
        if self._waiting is not None:
            self._waiting.join()
        if self._serving is not None:
            server, thread = self._serving
            server.shutdown()
            server.server_close()
            thread.join()
