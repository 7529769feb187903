"""The cases that the package onnx ships: all are tried, none gives a wrong result, and what is refused says so."""

import asyncio
from collections import Counter

import numpy as np
import onnx
import pytest

import actorflow as af
from tests.support.onnx_files import Case, cases

#: Operators whose cases are refused, some of them or all, and why.
REFUSED = {
    "text": {"Equal", "StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "LabelEncoder"},
    "random numbers": {"Bernoulli", "RandomUniformLike"},
    "files": {"ImageDecoder"},
    "opset 1": {"Not"},
}  # fmt: skip
#: Cases whose results no runtime gives: ONNX Runtime leaves them out, and PyTorch agrees with it, and so do we.
OTHERWISE = {
    "test_resize_downsample_scales_cubic_align_corners",  # corners of a length that is no whole number
    "test_resize_downsample_scales_linear_align_corners",
}
#: Of 1,884 cases of onnx 1.23.
PASSED = 1838


def difference(got: object, want: object, case: Case) -> str | None:
    """What a tensor, a sequence or an optional value has that was not wanted."""
    if want is None or isinstance(want, list | tuple):
        if want is None or not isinstance(got, list) or len(got) != len(want):
            return None if got is want is None else f"is {got}, not {want}"
        return next(filter(None, (difference(*each, case) for each in zip(got, want, strict=True))), None)
    assert isinstance(got, np.ndarray)
    want = np.asarray(want)
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"is {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    rtol = max(case.rtol, 2**-6) if got.dtype.name == "bfloat16" else case.rtol
    a, b = (each.astype("float32") if each.dtype.kind == "V" else each for each in (got, want))
    return None if np.allclose(a, b, rtol, case.atol, equal_nan=True) else f"is {got}, not {want}"


def fault(case: Case, model: af.Model) -> str | None:
    """What is wrong with the results; compared as the package onnx does."""

    async def run() -> str | None:
        async with model.graph:
            for given, expected in case.runs:
                names = [each.name for each in case.model.graph.input]
                found = await model.run(dict(zip(names, given, strict=False)))
                for (name, got), want in zip(found.items(), expected, strict=True):
                    if why := difference(got, want, case):
                        return f"{name} {why}"
        return None

    return asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.slow
def test_node_cases() -> None:
    passed, wrong, refused, unnamed = 0, {}, Counter[str](), {}
    for case in cases("node"):
        try:
            model = af.onnx.load(case.model.SerializeToString())
        except af.GraphError as error:
            operator, rest = str(error).partition("these nodes cannot be loaded:\n")[2].strip().split(" ", 1)
            refused[operator] += 1
            if operator.encode() not in case.model.SerializeToString() or not rest.startswith("'"):
                unnamed[case.name] = str(error)
            continue
        found = fault(case, model)
        if found is None:
            passed += 1
        else:
            wrong[case.name] = found
    assert wrong.keys() == OTHERWISE
    assert unnamed == {}
    assert set(refused) <= set().union(*REFUSED.values())
    if onnx.__version__.startswith("1.23."):
        assert passed == PASSED
        assert set(refused) == set().union(*REFUSED.values())
    assert passed >= 1450


@pytest.mark.parametrize("kind", ["pytorch-converted", "pytorch-operator"])
def test_pytorch_cases(kind: str) -> None:
    tried = 0
    for case in cases(kind):
        assert fault(case, af.onnx.load(case.model.SerializeToString())) is None, case.name
        tried += 1
    assert tried == {"pytorch-converted": 82, "pytorch-operator": 35}[kind]
