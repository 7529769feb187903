"""Constants of a graph: what they hold, what they are not."""

import numpy as np
import pytest

import actorflow as af
from actorflow.errors import DTypeError, FeedError, ShapeError
from actorflow.ops.fills import Constant

FLOATS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float64)


@pytest.mark.together(
    ("value", "dtype", "expected"),
    [
        (2.5, None, np.array(2.5, np.float32)),
        (3, None, np.array(3)),
        (True, None, np.array(True)),
        (1j, None, np.array(1j, np.complex64)),
        ([1.5, 2], None, np.array([1.5, 2], np.float32)),
        ([], None, np.array([], np.float32)),
        ([1, 2], "float32", np.array([1, 2], np.float32)),
        (["a", "bc"], None, np.array(["a", "bc"])),
        (np.float64(0.1), None, np.array(0.1)),
        (FLOATS, None, FLOATS),
        (FLOATS, "float32", FLOATS.astype(np.float32)),
        (FLOATS.T, None, FLOATS.T),
    ],
)
def test_the_value_and_its_type(value, dtype, expected) -> None:
    graph = af.Graph("g")
    blob = graph.constant(value, dtype)
    assert blob.spec == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(graph.run_sync(fetch=blob)[blob], expected, strict=True)


@pytest.mark.together(
    ("value", "dtype", "error", "words"),
    [
        ([[1], [1, 2]], None, ShapeError, "inhomogeneous"),
        (None, None, DTypeError, "expected an array, got NoneType"),
        (np.array([None]), None, DTypeError, "Python objects"),
        ([300], "uint8", DTypeError, "integers from 300 to 300"),
        ([0.5], "int32", DTypeError, "expected dtype int32"),
    ],
)
def test_what_is_refused(value, dtype, error, words) -> None:
    graph = af.Graph("g")
    with pytest.raises(error, match=words):
        graph.constant(value, dtype)
    assert not graph.nodes


def test_names_scopes_and_places() -> None:
    graph = af.Graph("g")
    assert [graph.constant(1).name, graph.constant(1).name, graph.constant(1, name="one").name] == [
        "constant/out",
        "constant_1/out",
        "one/out",
    ]
    scope = graph.subgraph("scope")
    assert scope.constant(1).name == "scope/constant/out"
    assert str(graph.constant(1, place="sim:0").place) == "sim:0"
    with graph.at("sim:1"):
        assert str(graph.constant(1).place) == "sim:1"


def test_the_array_is_copied() -> None:
    graph, array = af.Graph("g"), np.ones(3, np.float32)
    blob = graph.constant(array)
    array[:] = 2
    first = graph.run_sync(fetch=blob)[blob]
    np.testing.assert_array_equal(first, np.ones(3))
    first[:] = 3
    np.testing.assert_array_equal(graph.run_sync(fetch=blob)[blob], np.ones(3))


def test_it_is_neither_fed_nor_trained_nor_saved() -> None:
    graph = af.Graph("g")
    x, w = graph.blob("x", (3,)), graph.variable("w", (3,), init=1)
    c = graph.constant([1.0, 2.0, 3.0])
    loss = af.ops.sum(af.ops.multiply(af.ops.multiply(x, w), c))
    train = af.nn.SGD(0.1).minimize(loss)
    assert graph.sources == (x,)
    assert not any(isinstance(blob, af.Variable) for blob in (c, c.producers[0]))
    graph.run_sync({x: np.ones(3, "f")}, fetch=train)
    np.testing.assert_allclose(w.value, [0.9, 0.8, 0.7], rtol=1e-6)
    with pytest.raises(FeedError, match=r"cannot feed blob 'constant/out': op 'constant' writes it"):
        graph.run_sync({x: np.ones(3, "f"), c: np.ones(3, "f")})


def test_it_has_a_gradient() -> None:
    """A blob is differentiated by whatever it comes from."""
    graph = af.Graph("g")
    c = graph.constant([1.0, 2.0])
    grad = af.gradient(af.ops.sum(af.ops.square(c)), c)
    np.testing.assert_array_equal(graph.run_sync(fetch=grad)[grad], np.array([2.0, 4.0], np.float32), strict=True)


class TestOperation:
    def test_equal_arrays_are_equal_constants(self) -> None:
        one, other = Constant(FLOATS), Constant(FLOATS.copy(order="F"))
        assert one == other
        assert hash(one) == hash(other)
        assert one not in (Constant(FLOATS.astype("f")), Constant(FLOATS.reshape(4)), Constant(FLOATS + 1), 1.0)
        nan = np.array(np.nan)
        assert Constant(nan) == Constant(nan)

    def test_the_text_is_short(self) -> None:
        assert str(Constant(np.array(2.5))) == "Constant(2.5)"
        text = str(Constant(np.zeros((100, 100))))
        assert text.startswith("Constant(float64[100, 100], ")
        assert len(text) < 50
        assert text != str(Constant(np.ones((100, 100))))

    def test_an_array_of_its_own_that_none_can_change_is_not_copied(self) -> None:
        array = np.ones(3)
        assert Constant(array).value is not array
        array.setflags(write=False)
        assert Constant(array).value is array
        assert not Constant(np.ones(3)[::2]).value.flags.writeable
