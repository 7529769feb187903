"""Features that all optimizers share: states, steps, limits, rates, and when an update can run."""

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from actorflow.nn import rates
from actorflow.ops.nn.updates import SquareSum

ml_dtypes = pytest.importorskip("ml_dtypes")

OPTIMIZERS = {
    "sgd": (lambda **settings: nn.SGD(0.1, momentum=0.9, **settings), ["velocity"]),
    "adam": (lambda **settings: nn.Adam(**settings), ["mean", "square"]),
    "adamw": (lambda **settings: nn.AdamW(**settings), ["mean", "square"]),
    "adagrad": (lambda **settings: nn.Adagrad(**settings), ["square"]),
    "rmsprop": (lambda **settings: nn.RMSProp(**settings), ["square"]),
    "all of rmsprop": (lambda **settings: nn.RMSProp(momentum=0.9, centered=True, **settings), None),
}


def two_layers(dtype="float32") -> tuple[af.Graph, list[af.Variable], af.Blob]:
    """Two layers on constant inputs, and the loss."""
    graph = af.Graph("g")
    x = graph.variable("x", (4, 3), dtype, np.ones((4, 3)))
    first, second = (graph.variable(name, (3, 3), dtype, nn.init.gaussian(1.0, seed=1)) for name in ("w1", "w2"))
    y = ops.tanh(ops.inner(ops.tanh(ops.inner(x, first)), second))
    flat = ops.reshape(y, (1, 12))
    return graph, [first, second], ops.reshape(ops.inner(flat, flat), ())


def ops_before(blob: af.Blob) -> set[af.Op]:
    found: set[af.Op] = set()
    waiting = [*blob.producers]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            # A variable that is read has its value: its update comes after.
            waiting += [
                producer for read in op.inputs if not isinstance(read, af.Variable) for producer in read.producers
            ]
    return found


def update_of(variable: af.Variable) -> af.Op:
    (update,) = variable.producers
    return update


@pytest.mark.together("kind", OPTIMIZERS)
def test_states_are_named_variables_of_the_weights_place(kind) -> None:
    make, names = OPTIMIZERS[kind]
    graph, weights, loss = two_layers()
    train = make().minimize(loss, weights)
    states = [variable for variable in train.nodes if isinstance(variable, af.Variable) and variable.shape == (3, 3)]
    expected = names or ["square", "velocity", "mean"]
    scope = train.name
    assert [state.name for state in states] == [f"{scope}/{w}.{name}" for w in ("w1", "w2") for name in expected]
    assert all(state.place == weights[0].place for state in states)
    before = [w.value for w in weights]
    graph.run_sync(fetch=[train])
    assert all((w.value != old).all() for w, old in zip(weights, before, strict=True))


@pytest.mark.together("kind", OPTIMIZERS)
def test_an_update_waits_for_its_own_gradient_alone(kind) -> None:
    make, _ = OPTIMIZERS[kind]
    _, (first, second), loss = two_layers()
    make().minimize(loss, [first, second])
    grads = [update_of(weight).inputs[1] for weight in (first, second)]
    for own, other in (grads, reversed(grads)):
        assert own.producers[0] in ops_before(own)
        assert own.producers[0] not in ops_before(other)


def test_clipping_by_norm_makes_all_wait_for_all() -> None:
    _, (first, second), loss = two_layers()
    nn.SGD(0.1, clip=nn.Clip(norm=1.0)).minimize(loss, [first, second])
    for weight in (first, second):
        before = ops_before(update_of(weight).inputs[1])
        assert sum(isinstance(op.operation, SquareSum) for op in before) == 2


@pytest.mark.together("kind", OPTIMIZERS, at_once=20)
@pytest.mark.together("dtype", ["float16", ml_dtypes.bfloat16])
def test_moments_of_16_bit_weights_have_32(kind, dtype) -> None:
    make, _ = OPTIMIZERS[kind]
    graph = af.Graph("g")
    w = graph.variable("w", (3,), dtype, np.asarray([1.0, -2.0, 0.5], dtype))
    g = graph.variable("g", (3,), dtype, np.asarray([1e-4, 1e-4, 1e-3], dtype))
    other = af.Graph("other")
    wide = other.variable("w", (3,), "float32", w.value.astype("float32"))
    wide_g = other.variable("g", (3,), "float32", g.value.astype("float32"))
    for place, weight, grad in ((graph, w, g), (other, wide, wide_g)):
        optimizer = make()
        operation = optimizer.operation(nn.Multipliers())
        spec = optimizer.state_spec(weight.spec)
        inputs = {"weight": weight, "grad": grad, "rate": place.variable("rate", (), "float64", 0.1)}
        inputs["step"] = place.variable("step", (), "int64")
        states = [name for name in optimizer.arguments(operation) if name not in inputs]
        inputs |= {name: place.variable(name, spec.shape, spec.dtype) for name in states}
        (
            [inputs[name] for name in optimizer.arguments(operation)]
            >> place.op("update", operation)
            >> [
                weight,
                *(inputs[name] for name in states),
            ]
        )
        for _ in range(5):
            place.run_sync(fetch=["update"])
    np.testing.assert_allclose(w.value.astype("float32"), wide.value, rtol=0.05, atol=0.02)
    if kind != "sgd":
        assert all(graph[name].dtype == np.float32 for name in states)
        np.testing.assert_allclose(graph[states[0]].value, other[states[0]].value, rtol=1e-5)


@pytest.mark.together("kind", OPTIMIZERS)
def test_a_device_takes_the_steps_of_the_cpu(kind) -> None:
    make, _ = OPTIMIZERS[kind]
    found = []
    for place in ("cpu", "sim:0"):
        graph = af.Graph("g")
        with graph.at(place):
            w = graph.variable("w", (40, 30), "float32", nn.init.gaussian(1.0, seed=1))
            flat = ops.reshape(w, (1, 1200))
            loss = ops.reshape(ops.inner(flat, flat), ())
        train = make(clip=nn.Clip(norm=1.0)).minimize(loss)
        for _ in range(4):
            graph.run_sync(fetch=[train])
        found.append({variable.name: variable.value for variable in graph.variables})
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


# -- rates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sgd", "adam"])
async def test_a_policy_gives_each_step_its_rate_without_recompiling(kind) -> None:
    graph, weights, loss = two_layers()
    policy = rates.MultiStep(0.5, (2, 3))
    optimizer = {"sgd": nn.SGD, "adam": nn.Adam}[kind](policy)
    train = optimizer.minimize(loss, weights)
    rate = graph[f"{train.name}/rate"]
    async with graph:
        found = [
            result[rate] async for result in graph.stream(({} for _ in range(5)), fetch=[rate, train], in_flight=3)
        ]
        assert len(graph.engine._programs) == 1
    assert [float(value) for value in found] == [policy(step) for step in range(5)]
    assert graph[f"{train.name}/step"].value == 5
    with pytest.raises(af.GraphError, match=r"the rate follows MultiStep\(rate=0.5"):
        optimizer.rate  # noqa: B018


def test_any_function_is_a_policy_and_a_rate_below_0_is_an_error() -> None:
    graph, weights, loss = two_layers()
    train = nn.SGD(lambda step: 1.0 - step).minimize(loss, weights)
    graph.run_sync(fetch=[train])
    graph.run_sync(fetch=[train])
    with pytest.raises(af.OpError, match="at step 2: rate must not be negative, got -1"):
        graph.run_sync(fetch=[train])


def test_policies() -> None:
    def first(policy: rates.Policy, count: int = 6) -> list[float]:
        return [round(policy(step), 6) for step in range(count)]

    assert first(rates.Fixed(0.1)) == [0.1] * 6
    assert first(rates.StepDecay(1.0, 2, 0.5)) == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert first(rates.MultiStep(1.0, (1, 4), 0.5)) == [1, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert first(rates.Poly(1.0, 4)) == [1, 0.75, 0.5, 0.25, 0, 0]
    assert first(rates.Poly(0.01, 100_000, 0.5), 1) == [0.01]  # Purine2's GoogLeNet
    assert rates.Poly(0.01, 100_000, 0.5)(75_000) == pytest.approx(0.005)
    assert first(rates.Cosine(1.0, 4, floor=0.5)) == [1.0, 0.926777, 0.75, 0.573223, 0.5, 0.5]
    assert first(rates.Warmup(rates.Poly(1.0, 2), 4)) == [0, 0.25, 0.5, 0.75, 1, 0.5]
    assert first(rates.Warmup(rates.Fixed(1.0), 2, start=0.5), 4) == [0.5, 0.75, 1, 1]
    assert first(rates.Warmup(lambda step: 2.0 + step, 2), 4) == [0, 1, 2, 3]


# -- multipliers --------------------------------------------------------------------------------------------------


def test_layers_multiply_what_their_variables_have_anyway() -> None:
    """Purine2's network: biases at twice the rate and without decay, the last layer at a tenth of it."""
    graph = af.Graph("g")
    hidden, scores = nn.InnerProduct(4, name="hidden"), nn.InnerProduct(2, name="scores")
    loss = ops.softmax_loss(scores(hidden(graph.blob("x", (3, 5)))), graph.blob("labels", (3,), "int64"))
    multipliers = nn.layer_multipliers({scores: nn.Multipliers(rate=0.1)}, nn.bias_multipliers)
    train = nn.SGD(0.1, 0.9, 1e-4, multipliers=multipliers).minimize(loss)
    updates = {
        op.outputs[0].name: (op.operation.rate_scale, op.operation.weight_decay)
        for op in train.ops
        if isinstance(op.operation, ops.SgdUpdate)
    }
    assert updates == {
        "hidden/weight": (1.0, 1e-4),
        "hidden/bias": (2.0, 0.0),
        "scores/weight": (0.1, 1e-4),
        "scores/bias": (0.2, 0.0),
    }


def test_layers_that_have_not_been_built_are_an_error() -> None:
    _, weights, loss = two_layers()
    multipliers = nn.layer_multipliers({nn.InnerProduct(4, name="late"): nn.Multipliers(0.1)})
    with pytest.raises(af.GraphError, match="layer 'late' has no variables: build it before"):
        nn.SGD(0.1, multipliers=multipliers).minimize(loss, weights)


class TestDescend:
    """Updates by gradients that are made elsewhere."""

    @pytest.mark.parametrize("clip", [None, nn.Clip(value=0.1, norm=0.05)])
    async def test_it_is_minimize_without_the_gradient(self, clip) -> None:
        values = []
        for by_hand in (False, True):
            graph, weights, loss = two_layers()
            optimizer = nn.Adam(0.1, clip=clip)
            if by_hand:
                train = optimizer.descend(dict(zip(weights, af.gradient(loss, weights), strict=True)))
            else:
                train = optimizer.minimize(loss, weights)
            for _ in range(3):
                await graph.run(fetch=[train])
            values.append([weight.value.copy() for weight in weights])
            await graph.aclose()
        np.testing.assert_array_equal(*values)

    async def test_copies_take_the_factors_of_the_first_and_are_limited_apart(self) -> None:
        graph = af.Graph("g")
        first, second = (graph.variable(name, 2, "float64") for name in ("first", "second"))
        grads = [graph.blob(f"g{i}", 2, "float64") for i in range(2)]
        optimizer = nn.SGD(
            1.0,
            clip=nn.Clip(norm=5.0),
            multipliers=lambda variable: nn.Multipliers(rate=3.0 if variable is first else 1.0),
        )
        train = optimizer.descend({first: grads[0]}, {second: grads[1]})
        await graph.run({grads[0]: [3.0, 4.0], grads[1]: [30.0, 40.0]}, fetch=[train])
        for variable in (first, second):
            np.testing.assert_allclose(variable.value, [-9.0, -12.0], rtol=1e-6)
        assert optimizer.rate.value == 1.0
        await graph.aclose()

    def test_refusals(self) -> None:
        graph = af.Graph("g")
        x, v = graph.blob("x", ()), graph.variable("v", ())
        with pytest.raises(af.GraphError, match="needs at least one variable"):
            nn.SGD(0.1).descend({})
        with pytest.raises(af.GraphError, match="only variables can be trained"):
            nn.SGD(0.1).descend({x: x})
        with pytest.raises(af.GraphError, match=r"have as many variables, got \[1, 2\]"):
            nn.SGD(0.1).descend({v: x}, {v: x, graph.variable("u", ()): x})
        optimizer = nn.SGD(0.1)
        optimizer.descend({v: x})
        other = af.Graph("other")
        with pytest.raises(af.GraphError, match="has its rate in graph 'g'"):
            optimizer.descend({other.variable("v", ()): other.blob("x", ())})
