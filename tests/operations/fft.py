"""Fourier transforms along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.ops.fft import Fft, Ifft, Irfft, Rfft
from tests.operations.table import COMPLEX, HOST, SINGLE_AND_DOUBLE, Row, Sample, complexes, normal


def _row(kind: Any, name: str, is_real: bool) -> Row:
    make = normal if is_real else complexes
    own = getattr(np.fft, name)
    return Row(
        kind,
        [
            Sample(kind(3, 1), normal((6, 6, 3))),
            *(
                Sample(kind(points, axis, norm), make((2, 6)))
                for points, axis, norm in ((4, 0, "ortho"), (7, 1, "forward"), (5, 1, "backward"), (6, 1, "backward"))
            ),
        ],
        numpy=lambda x, points, axis, norm: own(x, points, axis, norm),
        torch=lambda torch, x, points, axis, norm: getattr(torch.fft, name)(x, points, axis, norm),
        standard=lambda xp, x, points, axis, norm: getattr(xp.fft, name)(x, n=points, axis=axis, norm=norm),
        dtypes=SINGLE_AND_DOUBLE if is_real else (*SINGLE_AND_DOUBLE, *COMPLEX),
        devices=HOST,
    )


ROWS = [
    _row(kind, name, name == "rfft") for kind, name in ((Fft, "fft"), (Ifft, "ifft"), (Rfft, "rfft"), (Irfft, "irfft"))
]
