"""What the demo prints when it has trained: where the time went."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from actorflow.graph.graph import Graph


def time_table(graph: Graph, elapsed_s: float) -> Table:
    """Where the time went: calls, total and share per kind of operation, the longest first; failed calls if any.

    Args:
        graph: A graph that has run.
        elapsed_s: Wall time that it ran for, in seconds.
    """
    ops: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    total_ns: Counter[str] = Counter()
    profile = graph.engine.profile
    for op in graph.ops:
        if op.id in profile:
            kind = op.operation.kind
            ops[kind] += 1
            calls[kind] += profile[op.id].calls
            failed[kind] += profile[op.id].failed
            total_ns[kind] += profile[op.id].total_ns
    in_ops_s = total_ns.total() / 1e9
    table = Table(
        title="where the time went",
        caption=f"{in_ops_s:.2f} s in operations, {elapsed_s:.2f} s by the clock",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("operation")
    failures = ["failed"] if failed.total() else []
    for header in ("ops", "calls", *failures, "total", "mean", "share"):
        table.add_column(header, justify="right")
    for kind, spent_ns in total_ns.most_common():
        table.add_row(
            kind,
            f"{ops[kind]}",
            f"{calls[kind]:,}",
            *[f"{failed[kind]:,}" if failed[kind] else "" for _ in failures],
            f"{spent_ns / 1e9:.2f} s",
            f"{spent_ns / 1e3 / max(calls[kind], 1):,.0f} us",
            f"{spent_ns / max(total_ns.total(), 1):.1%}",
        )
    return table
