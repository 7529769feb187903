"""Stages of the data pipelines that are being iterated in this process, as the page and programs get them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from actorflow.graph.nodes import Blob
from actorflow.pipeline import live_loaders

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.pipeline.stages.stage import Stage


def pipelines(graph: Graph) -> list[dict[str, Any]]:
    """One entry for each loader: how long the application waited, which stage to widen, its stages in order.

    Args:
        graph: ``feeds`` are the ids of its blobs that the loader feeds.
    """
    described = []
    for loader in live_loaders():
        stats, behind = loader.stats(), _behind(loader.stages)
        stages = [
            {
                "name": stage.name,
                "kind": stage.kind,
                "items": stage.items_out,
                "per_s": round(stage.items_per_s, 3),
                "running": stage.running,
                "concurrency": stage.concurrency,
                "held": stage.held,
                "queued": stage.queued,
                "room": stage.room,
                "busy": round(stage.utilization, 4),
                "p50_us": round(stage.p50_s * 1e6, 3),
                "p99_us": round(stage.p99_s * 1e6, 3),
                "skipped": stage.skipped,
                "behind": behind[number],
            }
            for number, stage in enumerate(stats.stages)
        ]
        described.append(
            {
                "delivered": stats.delivered,
                "elapsed_s": round(stats.elapsed_s, 3),
                "wait_s": round(stats.wait_s, 3),
                "queued": stats.queued,
                "room": stats.room,
                "bottleneck": loader.bottleneck(),
                "stages": stages,
                "feeds": _ids(graph, loader.fed),
            }
        )
    return described


def _behind(stages: list[Stage]) -> list[list[int]]:
    """For each stage the numbers of those that it takes its items from."""
    numbers = {stage: number for number, stage in enumerate(stages)}

    def sources(stage: Stage) -> list[int]:
        # A branch begins at what has no number of its own.
        return [n for up in stage.upstream for n in ([numbers[up]] if up in numbers else sources(up))]

    return [sources(stage) for stage in stages]


def _ids(graph: Graph, blobs: Iterable[Blob | str]) -> list[int]:
    nodes = [graph.resolve(blob) for blob in blobs if blob in graph]
    return [node.id for node in nodes if isinstance(node, Blob)]
