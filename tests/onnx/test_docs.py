"""The lists of operators in the page onnx are those of the table: ``python -m tests.onnx.test_docs`` writes them."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from onnx.defs import get_all_schemas

from actorflow.onnx import by_data, flow
from actorflow.onnx.folding import WHY_NOT
from actorflow.onnx.operators import TABLE

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "onnx.md"
#: Operators whose bodies have operators that are refused.
REFUSED_BODIES = {"Bernoulli"}
#: Operators on sequences and optional values.
SEQUENCES = {name for name in by_data.FUNCTIONS if name.startswith(("Sequence", "Optional"))} | {"SplitToSequence"}


def by_body() -> set[str]:
    """Operators that are lowered by the function that ONNX describes them by."""
    own = [schema for schema in get_all_schemas() if not schema.domain]
    described = {schema.name for schema in own if schema.has_function or schema.has_context_dependent_function}
    return described - set(TABLE) - set(WHY_NOT) - REFUSED_BODIES


def listed(operators: Iterable[str]) -> str:
    return ", ".join(sorted(operators))


def table() -> str:
    kinds, limits, reasons = defaultdict(list), defaultdict(list), defaultdict(list)
    for row in TABLE.values():
        kinds[row.lower.__module__.rpartition(".")[2]].append(row.operator)
        if row.limits:
            limits[row.limits].append(row.operator)
    for operator, limit in flow.OPERATORS.items():
        if limit:
            limits[limit].append(operator)
    for operator, why in WHY_NOT.items():
        reasons[why].append(operator)
    return "\n".join(
        [
            "| kind | operators |",
            "|---|---|",
            *[f"| {kind} | {listed(kinds[kind])} |" for kind in sorted(kinds)],
            f"| with graphs inside | {listed(flow.OPERATORS)} |",
            f"| of sequences and optional values, as Python objects | {listed({*SEQUENCES, 'ConcatFromSequence'})} |",
            f"| by the function that ONNX describes them by | {listed(by_body())} |",
            "",
            "| of these | refused are |",
            "|---|---|",
            *[f"| {listed(operators)} | {why} |" for why, operators in sorted(limits.items())],
            f"| {listed(by_data.SLOW)}, those with graphs inside or of other domains | parameters, and lengths of "
            "inputs, that depend on data, where the file does not declare the shape of the result |",
            "",
            "| refused altogether | because |",
            "|---|---|",
            *[f"| {listed(operators)} | {why} |" for why, operators in sorted(reasons.items())],
        ]
    )


def test_the_page_lists_what_the_table_has() -> None:
    assert table() in PAGE.read_text()


if __name__ == "__main__":
    begin, end = "<!-- operators -->\n\n", "\n\n<!-- end of operators -->"
    text = PAGE.read_text()
    head, _, rest = text.partition(begin)
    PAGE.write_text(head + begin + table() + end + rest.partition(end)[2])
