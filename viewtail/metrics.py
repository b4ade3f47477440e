"""Prometheus metrics of all pipelines, from the lines their processes report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from changes.errors import SettingsError

_COUNTERS = {
    "viewtail_rows": ("rows", "changed rows read from the source"),
    "viewtail_writes": ("writes", "writes applied to the store, after coalescing"),
    "viewtail_batches": ("batches", "batches applied"),
    "viewtail_source_reconnects": ("reconnects", "reconnects to the source"),
    "viewtail_store_retries": ("store_retries", "times the store was waited for"),
}
_GAUGES = {
    "viewtail_lag_seconds": (
        "lag_s",
        "age of the oldest change that is not durable yet; 0 at the source's end",
    ),
    "viewtail_parked_keys": ("parked", "keys among the dead letters"),
    "viewtail_memory_bytes": ("memory_bytes", "largest resident memory of the pipeline's process"),
}


class _Collector(Collector):
    def __init__(self, reports: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        reports = self._reports()
        for name, (field, text) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["pipeline"])
            for pipeline, report in reports.items():
                counter.add_metric([pipeline], report.get(field, 0))
            yield counter
        for name, (field, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["pipeline"])
            for pipeline, report in reports.items():
                gauge.add_metric([pipeline], report.get(field, 0))
            yield gauge
        up = GaugeMetricFamily(
            "viewtail_pipeline_running", "1 while the pipeline keeps up", labels=["pipeline"]
        )
        filled = GaugeMetricFamily(
            "viewtail_fill_rows", "rows read by a running fill", labels=["pipeline", "view"]
        )
        for pipeline, report in reports.items():
            up.add_metric([pipeline], 1.0 if report.get("state") == "running" else 0.0)
            for fill in report.get("fills", ()):
                filled.add_metric([pipeline, fill["view"]], fill["rows"])
        yield up
        yield filled


def serve(host: str, port: int, reports: Callable[[], Mapping[str, Mapping[str, Any]]]) -> Callable[[], None]:
    """Serve /metrics; returns what stops it. Raises SettingsError when the address cannot be listened on."""
    registry = CollectorRegistry()
    registry.register(_Collector(reports))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise SettingsError(
            f"metrics.host, metrics.port: cannot listen on {host}:{port} ({error.strerror}). Set another "
            "VIEWTAIL_METRICS__PORT, or 0 for no metrics"
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
