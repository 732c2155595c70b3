"""What Prometheus may know: requests, batches and times. Nothing of rows, models, points or
principals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from dpflow.server.batches import Batches

CONTENT_TYPE = CONTENT_TYPE_LATEST
#: Seconds: from an answer that is stored to a batch that waits for a busy ledger.
_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The counts of one service.

    Args:
        batches: counts its transactions and the points that they answered.
        is_ready: whether points are answered now.
    """

    def __init__(self, batches: Batches, is_ready: Callable[[], bool]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "dpflow_requests",
            "Answered requests by endpoint and HTTP status.",
            ["endpoint", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "dpflow_request_seconds",
            "Seconds from a request's first byte to its answer, by endpoint.",
            ["endpoint"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_BatchCounts(batches, is_ready))

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def render(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)


class _BatchCounts(Collector):
    """What the batching thread counts, read when somebody asks."""

    def __init__(self, batches: Batches, is_ready: Callable[[], bool]) -> None:
        self._batches, self._is_ready = batches, is_ready

    def collect(self) -> Iterator[Metric]:
        """The counts as they are now."""
        yield CounterMetricFamily(
            "dpflow_batches", "Ledger transactions that answered points.", self._batches.batches
        )
        yield CounterMetricFamily(
            "dpflow_answered_points", "Points in answered requests.", self._batches.points
        )
        yield GaugeMetricFamily(
            "dpflow_ready", "1 once models are learned and points are answered.", self._is_ready()
        )
