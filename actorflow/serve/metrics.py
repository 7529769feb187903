"""Counters of a server of models for Prometheus, beside those of its graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from actorflow.graph.graph import Graph
from actorflow.serve.account import Account
from actorflow.serve.models import Hosted, Models
from actorflow.web.api import Family, exposition, histogram


def metrics(models: Models, account: Account) -> tuple[Callable[[], Iterable[str]], str]:
    """Function that takes all counters and gives the text for Prometheus in pieces, and its content type.

    Raises:
        MissingExtraError: without the package prometheus-client.
    """
    graphs: dict[str, Graph] = {hosted.label: hosted.model.graph for hosted in models}
    return exposition(graphs, partial(_families, [*models], account))


def _families(models: list[Hosted], account: Account) -> Iterator[Family]:
    labels = ["model", "version"]
    own = [([hosted.name, hosted.version], hosted) for hosted in models]
    answers = [([*of, str(status)], count) for of, hosted in own for status, count in hosted.answers.items()]
    yield Family("Counter", "actorflow_serve_answers", "Answers by their status.", [*labels, "status"], answers)
    cancelled = [(of, hosted.cancelled) for of, hosted in own]
    yield Family("Counter", "actorflow_serve_cancelled", "Requests whose client has hung up.", labels, cancelled)
    times = [(of, *histogram(hosted.latency_s.statistics())) for of, hosted in own]
    yield Family("Histogram", "actorflow_serve_latency_seconds", "Time from a request to its answer.", labels, times)
    held: list[tuple[list[str], int]] = [([], account.held_bytes)]
    about = "Bytes of bodies, pictures and answers of the requests that are being answered."
    yield Family("Gauge", "actorflow_serve_held_bytes", about, [], held)
