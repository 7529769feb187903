"""Methods of arrays against NumPy's, and what is said of those that there are not."""

import re
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.foreign import METHODS as ELSEWHERE
from tests.ops.test_operators import METHODS

CUBE = np.arange(24.0).reshape(2, 3, 4)


@pytest.mark.together(
    ("method", "value"),
    [
        *METHODS,
        (lambda x: x.sum(0), CUBE),
        (lambda x: x.sum(axis=1, dtype=np.float32), CUBE),
        (lambda x: x.any(-1, keepdims=True), CUBE),
        (lambda x: x.astype("float64", copy=False), CUBE),
        (lambda x: x.transpose(None), CUBE),
    ],
)
def test_methods(method: Any, value: np.ndarray) -> None:
    expected, found = np.asarray(method(value)), method(xp.asarray(value))
    assert isinstance(found, xp.Array)
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-14, strict=True)


def test_values_as_python_numbers() -> None:
    x = xp.asarray(CUBE)
    assert x.tolist() == CUBE.tolist()
    assert x[0, 0, 1].tolist() == 1.0
    for array, expected in ((x.sum(), 276.0), (x[:1, :1, 1:2].astype("int8"), 1), (x[0, 0, 0] == 0, True)):
        assert type(array.item()) is type(expected)
        assert array.item() == expected
    with pytest.raises(af.ShapeError, match=r"item\(\): expected an array of one element, got shape \(2, 3, 4\)"):
        x.item()


@pytest.mark.together(
    "function",
    [np.sum, np.mean, np.prod, np.max, np.any, np.argmin, np.transpose, np.squeeze, np.reshape, np.std],
)
def test_functions_of_numpy_still_take_arrays(function: Any) -> None:
    more = {"shape": (4, 6)} if function is np.reshape else {}
    np.testing.assert_allclose(function(xp.asarray(CUBE), **more), function(CUBE, **more), rtol=1e-14)


@pytest.mark.together(("module", "name"), [(module, name) for module in ELSEWHERE for name in ELSEWHERE[module]])
def test_methods_of_other_libraries_lead_to_what_is_there(module: str, name: str) -> None:
    x = af.Graph("g").blob("x", (2, 2)) if module == "actorflow.ops" else xp.asarray(CUBE[0])
    with pytest.raises(AttributeError, match=rf"^'(Blob|Array)' object has no attribute {name!r}; here: ") as caught:
        getattr(x, name)
    for start, path in re.findall(r"\b(af|graph|x)\.([\w.]+)", str(caught.value)):
        found: Any = {"af": af, "graph": af.Graph("h"), "x": x}[start]
        for part in path.split("."):
            found = getattr(found, part)


@pytest.mark.together(
    ("name", "hint"),
    [
        ("cumsum", "; here: af.array.cumulative_sum(x)"),
        ("std", "; there is the function af.array.std(x)"),
        ("flaten", "; did you mean 'flatten'?"),
        ("nothing_like_it", ""),
        ("_hidden", ""),
    ],
)
def test_what_is_said_of_other_names(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(xp.asarray(1.0), name)
    assert str(caught.value) == f"'Array' object has no attribute {name!r}{hint}"


def test_array_copies_as_numpys_does() -> None:
    x = xp.array([[1, 2], [3, 4]], "float32")
    y, same = xp.array(x), xp.array(x, copy=None)
    x[0, 0] = 7
    assert (x[0, 0].item(), y[0, 0].item()) == (7.0, 1.0)
    assert xp.array(x, copy=None) is x
    assert same is x
    assert xp.array(np.arange(3)).dtype == np.int64
