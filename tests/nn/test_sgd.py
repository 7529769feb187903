"""The optimizer, and training as a whole."""

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops


def quadratic(dtype: str = "float64") -> tuple[af.Graph, af.Variable, af.Blob]:
    """``loss = w ** 2 / 2``, whose gradient is w."""
    graph = af.Graph("g")
    w = graph.variable("w", (), dtype, 1.0)
    return graph, w, ops.scale(ops.multiply(w, w), 0.5)


async def test_steps_follow_the_formula_and_the_rate_can_change_between_frames() -> None:
    graph, w, loss = quadratic()
    optimizer = nn.SGD(0.1, momentum=0.9, weight_decay=0.01)
    train = optimizer.minimize(loss)
    weight, velocity = 1.0, 0.0
    async with graph:
        for rate in (0.1, 0.1, 0.02, 0.02):
            optimizer.rate.value = rate
            result = await graph.run(fetch=[loss, train])
            assert np.isclose(result[loss], weight**2 / 2)  # from before the update
            velocity = 0.9 * velocity + rate * (weight + 0.01 * weight)
            weight -= velocity
            assert np.isclose(w.value, weight)


def test_the_loss_alone_does_not_train() -> None:
    graph, w, loss = quadratic()
    nn.SGD(0.1).minimize(loss)
    graph.run_sync(fetch=[loss])
    assert w.value == 1.0


def test_float32_variables_have_a_float64_rate_that_takes_any_number() -> None:
    graph, w, loss = quadratic("float32")
    optimizer = nn.SGD(0.5)
    train = optimizer.minimize(loss)
    optimizer.rate.value = 0.25
    graph.run_sync(fetch=[train])
    assert w.value.dtype == np.float32
    assert w.value == 0.75


def test_multipliers_are_per_variable() -> None:
    graph = af.Graph("g")
    w, b = graph.variable("w", (1,), "float64", 1.0), graph.variable("b", (1,), "float64", 1.0)
    loss = ops.reshape(ops.add(w, b), ())
    optimizer = nn.SGD(
        0.1, weight_decay=0.5, multipliers=lambda v: nn.Multipliers(2.0, 0.0) if v is b else nn.Multipliers()
    )
    graph.run_sync(fetch=[optimizer.minimize(loss)])
    assert np.isclose(w.value, 1 - 0.1 * (1 + 0.5))
    assert np.isclose(b.value, 1 - 0.2)


def test_bias_multipliers_double_the_rate_of_vectors_without_decay() -> None:
    graph = af.Graph("g")
    assert nn.bias_multipliers(graph.variable("b", (3,))) == (2.0, 0.0)
    assert nn.bias_multipliers(graph.variable("w", (3, 2))) == (1.0, 1.0)


def test_minimize_trains_what_it_is_told() -> None:
    graph = af.Graph("g")
    a, b = graph.variable("a", (), "float64", 1.0), graph.variable("b", (), "float64", 1.0)
    loss = ops.multiply(a, b)
    train = nn.SGD(0.1).minimize(loss, [a])
    graph.run_sync(fetch=[train])
    assert (a.value, b.value) == (0.9, 1.0)


def test_minimize_puts_all_into_one_subgraph() -> None:
    graph, w, loss = quadratic()
    before = set(graph.nodes)
    train = nn.SGD(0.1, name="adapt").minimize(loss)
    made = [node for node in graph.nodes if node not in before]
    assert tuple(made) == train.nodes
    assert {"adapt/rate", "adapt/w.velocity", "adapt/w.update"} < {node.name for node in made}
    (update,) = w.producers
    assert [blob.name for blob in update.inputs] == [
        "w",
        update.inputs[1].name,
        "adapt/w.velocity",
        "adapt/rate",
    ]


def test_a_second_minimize_shares_the_rate() -> None:
    graph = af.Graph("g")
    a, b = graph.variable("a", ()), graph.variable("b", ())
    optimizer = nn.SGD(0.1)
    optimizer.minimize(ops.multiply(a, a))
    rate = optimizer.rate
    optimizer.minimize(ops.multiply(b, b))
    assert optimizer.rate is rate
    assert [v.name for v in graph.variables if "velocity" in v.name] == ["sgd/a.velocity", "sgd_1/b.velocity"]
    _, _, loss = quadratic()
    with pytest.raises(af.GraphError, match="has its rate in graph 'g' and cannot train"):
        optimizer.minimize(loss)


def test_what_cannot_be_trained_is_an_error() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    loss = ops.relu(x)
    with pytest.raises(af.GraphError, match="the rate is a variable of the graph that is trained: call minimize"):
        nn.SGD(0.1).rate  # noqa: B018
    with pytest.raises(af.GraphError, match="loss 'relu/out' depends on no variable that could be trained"):
        nn.SGD(0.1).minimize(loss)
    with pytest.raises(af.GraphError, match="only variables can be trained, not <Blob 'x'"):
        nn.SGD(0.1).minimize(loss, [x])
    with pytest.raises(af.GraphError, match=r"not 'w'; by its name it is graph\[NAME\]"):
        nn.SGD(0.1).minimize(loss, ["w"])  # type: ignore[list-item]
    with pytest.raises(af.GraphError, match="wrt= is empty"):
        nn.SGD(0.1).minimize(loss, [])
