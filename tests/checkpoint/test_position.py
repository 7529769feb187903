"""The place in the data: what is read is what was written, or the key of what JSON would change is named."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow.checkpoint.checkpoint import position_text

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
POSITIONS = st.dictionaries(
    st.text(), st.recursive(PLAIN, lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts))
)
#: Each takes long to draw.
EXAMPLES = settings(max_examples=settings.default.max_examples // 5)
#: What JSON cannot hold, or gives back as something else.
STRANGE = [(1, 2), {3: "x"}, {True: 1}, {None: 1}, {1, 2}, b"x", 1j, np.arange(3), np.int64(3), object(), range(2)]


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@EXAMPLES
@given(POSITIONS)
def test_what_is_read_is_what_was_written(position: dict[str, Any]) -> None:
    assert same(json.loads(position_text(position)), position)


@EXAMPLES
@given(POSITIONS, st.sampled_from(range(len(STRANGE))), st.data())
def test_what_would_change_is_named_wherever_it_is(position: dict[str, Any], strange: int, data: st.DataObject) -> None:
    """It is put somewhere into a position; the message says where."""
    where, at = "position", position
    while True:
        if isinstance(at, dict):
            key: Any = data.draw(st.sampled_from(sorted(at)) | st.text()) if at else "key"
            at.setdefault(key, None)
        else:
            at.append(None)
            key = data.draw(st.integers(0, len(at) - 1))
        where += f"[{key!r}]"
        if not isinstance(at[key], dict | list) or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = STRANGE[strange]
    with pytest.raises(af.CheckpointError) as caught:
        position_text(position)
    assert f"the position must be what JSON can hold: {where} " in str(caught.value)


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ({"at": {3: "x"}}, r"position\['at'\] has the key 3, of type int, and JSON's keys are texts: use '3'"),
        ({4: 1}, "position has the key 4"),
        ({"at": [0, (1, 2)]}, r"position\['at'\]\[1\] is of type tuple, which would come back as a list: \(1, 2\)"),
        ({"feeds": {"rows": np.arange(2)}}, r"position\['feeds'\]\['rows'\] is of type ndarray: array\(\[0, 1\]\)"),
    ],
)
async def test_a_graph_is_not_saved_with_it(tmp_path, position, message) -> None:
    graph = af.Graph("g")
    graph.variable("w", ())
    for save in (
        lambda: af.save_checkpoint(graph, tmp_path / "f", position),
        lambda: af.Checkpoints(graph, tmp_path).save(1, position),
    ):
        with pytest.raises(af.CheckpointError, match=message):
            await save()
    assert not list(tmp_path.iterdir())


def test_a_position_that_contains_itself_is_an_error() -> None:
    position: dict[str, Any] = {}
    position["self"] = [position]
    with pytest.raises(af.CheckpointError, match="what JSON can hold: RecursionError"):
        position_text(position)
