"""Prometheus metrics of all pipelines, from the lines their processes report."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from changes.errors import SettingsError

_log = structlog.get_logger("viewtail.run")

TRY_EVERY_S = 2.0  # for an address that is in use
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
    (GaugeMetricFamily, "viewtail_lag_messages", "waiting", "messages behind the position of a partition's pipeline"),
)


class _Collector(Collector):
    def __init__(self, reports: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        reports = self._reports()
        for family, name, field, text in _FAMILIES:
            metric = family(name, text, labels=["pipeline"])
            for pipeline, report in reports.items():
                metric.add_metric([pipeline], report.get(field, 0))
            yield metric
        for family, name, field, text in _FLEET:
            metric = family(name, text, labels=["pipeline"])
            for pipeline, report in reports.items():
                if field in report:
                    metric.add_metric([pipeline], report[field])
            yield metric
        up = GaugeMetricFamily("viewtail_pipeline_running", "1 while the pipeline keeps up", labels=["pipeline"])
        filled = GaugeMetricFamily("viewtail_fill_rows", "rows read by a running backfill", labels=["pipeline", "view"])
        for pipeline, report in reports.items():
            up.add_metric([pipeline], 1.0 if report.get("state") == "running" else 0.0)
            for one in report.get("backfills", ()):
                filled.add_metric([pipeline, one["view"]], one["rows"])
        yield up
        yield filled


class Server:
    """Serves /metrics, as soon as the address is free: a `run` that stands by on the same machine waits for it."""

    def __init__(self, host: str, port: int, reports: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        """Raises SettingsError when the address cannot be listened on, except that it is in use."""
        self._address = (host, port)
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(reports))
        self._stop = threading.Event()
        self._serving: tuple[Any, threading.Thread] | None = None
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

    def _listens(self) -> bool:
        """Try to; False while the address is in use."""
        host, port = self._address
        try:
            self._serving = start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise SettingsError(
                f"metrics.host, metrics.port: cannot listen on {host}:{port} ({error.strerror}). Set another "
                "VIEWTAIL_METRICS__HOST or VIEWTAIL_METRICS__PORT, or port 0 for no metrics"
            ) from None
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
