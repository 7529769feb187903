"""Fourier transforms."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

from tests.array.cases.registry import CASES, call, case
from tests.array.families import COMPLEX, FLOATS, Call, arrays

for _name, _dtypes in (
    *((each, COMPLEX) for each in ("fft", "ifft", "irfft", "hfft")),
    *((each, FLOATS) for each in ("rfft", "ihfft")),
):

    def _transform(draw: st.DrawFn, name: str = _name, dtypes: tuple[str, ...] = _dtypes) -> Call:
        x = draw(arrays(dtypes, (draw(st.integers(2, 5)), draw(st.integers(2, 5))), small=True))
        axis, n = draw(st.integers(-2, 1)), draw(st.one_of(st.none(), st.integers(1, 6)))
        norm = draw(st.sampled_from(("backward", "ortho", "forward")))
        return call([x], lambda xp, x: getattr(xp.fft, name)(x, n=n, axis=axis, norm=norm))

    CASES[_name] = _transform

for _name, _dtypes in (("fftn", COMPLEX), ("ifftn", COMPLEX), ("irfftn", COMPLEX), ("rfftn", FLOATS)):

    def _transforms(draw: st.DrawFn, name: str = _name, dtypes: tuple[str, ...] = _dtypes) -> Call:
        x = draw(arrays(dtypes, (3, 2, 4), small=True))
        axes = draw(st.sampled_from((None, (0, 1), (2,), (-1, 0))))
        s = draw(st.sampled_from((None, 4))) if axes is not None else None
        lengths = None if s is None else (s,) * len(axes)
        norm = draw(st.sampled_from(("backward", "ortho", "forward")))
        return call([x], lambda xp, x: getattr(xp.fft, name)(x, s=lengths, axes=axes, norm=norm))

    CASES[_name] = _transforms


@case
def frequencies(draw: st.DrawFn) -> Call:
    n, d = draw(st.integers(1, 9)), draw(st.sampled_from((1.0, 0.5)))
    dtype = draw(st.sampled_from(FLOATS))

    def make(xp: Any) -> Any:
        kind = getattr(xp, dtype)
        typed = xp.fft.fftfreq(n, d=d, dtype=kind), xp.fft.rfftfreq(n, d=d, dtype=kind)
        return xp.fft.fftfreq(n, d=d), xp.fft.rfftfreq(n), *typed

    return call([], make)


@case
def shifts(draw: st.DrawFn) -> Call:
    x = draw(arrays((*FLOATS, *COMPLEX), (4, 5)))
    axis = draw(st.sampled_from((None, 0, 1, (0, 1))))
    return call([x], lambda xp, x: (xp.fft.fftshift(x, axes=axis), xp.fft.ifftshift(x, axes=axis)))
