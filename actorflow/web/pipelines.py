"""Stages of the data pipelines that are being iterated in this process, as the page and programs get them."""

from __future__ import annotations

from typing import Any

from actorflow.pipeline import live_loaders

__all__ = ["pipelines"]


def pipelines() -> list[dict[str, Any]]:
    """One entry for each loader: how long the application waited, which stage to widen, its stages in order."""
    described = []
    for loader in live_loaders():
        stats = loader.stats()
        stages = [
            {
                "name": stage.name,
                "kind": stage.kind,
                "items": stage.items_out,
                "per_s": round(stage.items_per_s, 3),
                "running": stage.running,
                "concurrency": stage.concurrency,
                "held": stage.held,
                "busy": round(stage.utilization, 4),
                "p50_us": round(stage.p50_s * 1e6, 3),
                "p99_us": round(stage.p99_s * 1e6, 3),
                "skipped": stage.skipped,
            }
            for stage in stats.stages
        ]
        described.append(
            {
                "delivered": stats.delivered,
                "elapsed_s": round(stats.elapsed_s, 3),
                "wait_s": round(stats.wait_s, 3),
                "bottleneck": loader.bottleneck(),
                "stages": stages,
            }
        )
    return described
