"""Graphs and plans in Graphviz's language, with their times as colours if wanted, and as SVG by its program ``dot``."""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable

from actorflow.errors import GraphError, MissingExtraError, visible
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Variable
from actorflow.plan.plan import Plan, PlannedOp, Slot
from actorflow.show.tables import kernel_name, step_name, time_text
from actorflow.trace.counters import OpProfile

#: Colours of ops that took no time at all, and of the op that took most; red, green, blue.
_COLD, _HOT = (255, 255, 255), (240, 90, 60)


def graph_dot(graph: Graph, *, times: bool = False) -> str:
    """A graph in Graphviz's language; see `Graph.to_dot`."""
    heat = _Heat(graph.root.engine.profile if times else {}, (node.id for node in graph.nodes))
    lines = [f"digraph {_quote(graph.name)} {{", "  rankdir=LR;"]
    nodes = set(graph.nodes)
    for node in graph.nodes:
        if isinstance(node, Blob):
            style = ["bold"] if isinstance(node, Variable) else []
            lines.append(_node(node.id, "ellipse", [node.name, str(node.spec)], style, heat, node.id))
    for op in graph.ops:
        lines.append(_node(op.id, "box", [op.name, str(op.operation)], [], heat, op.id))
        lines += [f"  n{blob.id} -> n{op.id};" for blob in op.inputs if blob in nodes]
        lines += [f"  n{op.id} -> n{blob.id};" for blob in op.outputs if blob in nodes]
    return "\n".join([*lines, "}", ""])


def plan_dot(plan: Plan, *, times: bool = False) -> str:
    """A plan in Graphviz's language; see `Plan.to_dot`."""
    heat = _Heat(plan.graph.engine.profile if times else {}, (op.site.id for op in plan.ops))
    lines = [f"digraph {_quote(plan.graph.name)} {{", "  rankdir=LR;"]
    lanes: dict[str, list[PlannedOp]] = defaultdict(list)
    for op in plan.ops:
        lanes[f"{op.place} {op.lane}"].append(op)
    for number, (lane, ops) in enumerate(lanes.items()):
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quote(lane)};"]
        lines += ["  " + _node(op.index, "box", [step_name(op), kernel_name(op)], [], heat, op.site.id) for op in ops]
        lines.append("  }")
    used = {slot for op in plan.ops for slot in (*op.inputs, *op.outputs)}
    lines += [_slot(slot) for slot in plan.slots if slot.index in used]
    for op in plan.ops:
        lines += [f"  s{slot} -> n{op.index};" for slot in op.inputs]
        lines += [f"  n{op.index} -> s{slot};" for slot in op.outputs]
    for slot in plan.slots:
        if slot.updates is not None and plan.reads.get(slot.updates) in used:
            lines.append(f"  s{slot.index} -> s{plan.reads[slot.updates]} [style=dashed, constraint=false];")
    return "\n".join([*lines, "}", ""])


def to_svg(dot: str) -> str:
    """Draw a text in Graphviz's language as SVG; its program ``dot`` does it, so this waits for a process.

    Raises:
        MissingExtraError: if there is no such program.
        GraphError: if it fails; the message has its own.
    """
    program = shutil.which("dot")
    if program is None:
        raise MissingExtraError(
            "to_svg() needs Graphviz, whose program 'dot' is not on the PATH: install the package 'graphviz' of your "
            "system (apt, dnf, brew, winget); to_dot() gives the text without it"
        )
    done = subprocess.run(  # noqa: S603  the program is the user's, the input is not interpreted by a shell
        [program, "-Tsvg"], input=dot, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode:
        raise GraphError(f"{program} failed with exit code {done.returncode}: {done.stderr.strip() or 'no message'}")
    return done.stdout


class _Heat:
    """Colours and words for the times of some nodes: white for none, the redder the more."""

    def __init__(self, profile: dict[int, OpProfile], ids: Iterable[int]) -> None:
        self._profiles = {node_id: profile[node_id] for node_id in ids if node_id in profile}
        totals = [one.total_ns for one in self._profiles.values()]
        self._most_ns, self._all_ns = max(totals, default=0), sum(totals)

    def of(self, node_id: int) -> tuple[str, str] | None:
        """A colour and a line of text; None for a node without calls."""
        profile = self._profiles.get(node_id)
        if profile is None or not (profile.calls or profile.failed):
            return None
        level = profile.total_ns / max(self._most_ns, 1)
        colour = "".join(f"{round(cold + (hot - cold) * level):02x}" for cold, hot in zip(_COLD, _HOT, strict=True))
        share = profile.total_ns / max(self._all_ns, 1)
        said = ["1 call" if profile.calls == 1 else f"{profile.calls:,} calls"]
        if profile.failed:
            said.append(f"{profile.failed:,} failed")
        if profile.calls:
            said += [time_text(profile.total_ns), f"{share:.1%}"]
        return f"#{colour}", ", ".join(said)


def _node(number: int, shape: str, lines: list[str], style: list[str], heat: _Heat, node_id: int) -> str:
    warmth = heat.of(node_id)
    attributes = [f"shape={shape}"]
    if warmth is not None:
        colour, text = warmth
        style, lines = [*style, "filled"], [*lines, text]
        attributes.append(f'fillcolor="{colour}"')
    if style:
        attributes.append(f"style={style[0]}" if len(style) == 1 else f'style="{",".join(style)}"')
    return f"  n{number} [{', '.join(attributes)}, label={_quote(*lines)}];"


def _slot(slot: Slot) -> str:
    kind = "dotted" if slot.is_constant else "dashed" if slot.is_fed else ""
    kind = "bold" if isinstance(slot.blob, Variable) else kind
    style = f", style={kind}" if kind else ""
    rings = ", peripheries=2" if slot.is_fetched else ""
    return f"  s{slot.index} [shape=ellipse{style}{rings}, label={_quote(slot.blob.name, str(slot.spec))}];"


def _quote(*lines: str) -> str:
    escaped = (visible(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
