"""Whether BLAS uses the vectors that the processor has."""

from __future__ import annotations

from benchmarks.machine import describe_machine

__all__ = ["core_type"]


def core_type() -> str | None:
    """What ``OPENBLAS_CORETYPE`` must be for NumPy's OpenBLAS to use AVX-512; None where it does, or cannot.

    OpenBLAS chooses its kernels by the processor's model when it is loaded. It takes those for AVX2 where it does not
    know the model, as 0.3.31 does not know AMD's fifth generation of EPYC.
    """
    from numpy._core._multiarray_umath import __cpu_features__ as features

    blas = describe_machine()["blas"]
    is_narrow = any(b["internal_api"] == "openblas" and b["architecture"] in ("Haswell", "Zen") for b in blas)
    return "SkylakeX" if is_narrow and features.get("AVX512_SKX", features.get("X86_V4", False)) else None
