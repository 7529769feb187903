"""Resizing against PyTorch, to the second derivative."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow import ops
from tests.oracle.comparison import check, drawn, examples

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")

pytestmark = pytest.mark.oracle

#: Their mode, the number of spatial axes, and ours.
MODES = [
    *(("nearest", rank, {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"}) for rank in (1, 2, 3)),
    *(("nearest-exact", rank, {"mode": "nearest", "rounding": "round_prefer_ceil"}) for rank in (1, 2, 3)),
    *((mode, rank, {"mode": "linear"}) for rank, mode in enumerate(["linear", "bilinear", "trilinear"], start=1)),
    ("bicubic", 2, {"mode": "cubic"}),
]


@examples(60)
@given(
    st.sampled_from(MODES),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 13)), min_size=3, max_size=3),
    st.sampled_from([None, 0.5, 1.25, 2.0, 3.0]),
    st.booleans(),
    st.sampled_from(["float32", "float64"]),
    st.integers(0, 2**32 - 1),
)
def test_resize(mode, sizes, scale, align_corners, dtype, seed) -> None:
    theirs, rank, how = mode
    old, new = zip(*sizes[:rank], strict=True)
    if scale is not None and any(int(n * scale) in (0, n) for n in old):
        scale = None  # torch's gradient of what has the old size is that of a copy
    options: dict[str, Any] = {"mode": theirs}
    if how["mode"] != "nearest":
        options["align_corners"] = align_corners
        how = {**how, "coordinates": "align_corners" if align_corners else "half_pixel"}
    size = {"size": new} if scale is None else {}

    def oracle(x: Any) -> Any:
        first = (x * x).movedim(-1, 1)
        return torch.nn.functional.interpolate(first, scale_factor=scale, **size, **options).movedim(1, -1)

    # Of squares, so that there is a second derivative.
    check(lambda x: ops.resize(x * x, scale=scale, **size, **how), oracle, drawn(seed, (2, *old, 3), dtype=dtype))
