"""Models from files: trained ones, the onnx wheel's, torch's exports; against onnxruntime and torch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow import nn, ops
from tests.support.effort import FULL, slow

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from tests.support import onnx_models as models  # noqa: E402

pytestmark = pytest.mark.any_loop

BACKENDS = ("actorflow", "onnxruntime")
#: Of the largest number of an output: sums of float32 in another order, some hundred layers deep.
TOLERANCE = 1e-4
#: Those of many weights take many seconds; the others have all their operators.
QUICK = ("light_shufflenet", "light_squeezenet", "light_inception_v1", "light_densenet121")


def noise(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def session(model: bytes | Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def picture(*shape: int) -> Any:
    """Dark lines on a bright ground, in which the detector finds text."""
    x = np.full(shape, 1.0, np.float32) + noise(*shape) / 20
    x[..., shape[2] // 3 : shape[2] // 3 + 10, 8:-8] -= 2.0 * (np.arange(shape[3] - 16) % 8 < 4)
    return x


async def compare(model: bytes | Path, backend: Any, feeds: list[dict[str, Any]], axes: Any = None) -> None:
    """Check that a model gives what onnxruntime gives, for each of some feeds, whatever their lengths."""
    loaded, peer = af.onnx.load(model, backend=backend, axes=axes), session(model)
    assert list(loaded.outputs) == [output.name for output in peer.get_outputs()]
    if backend == "onnxruntime":
        assert len(list(loaded.graph.ops)) == 1
    async with loaded.graph:
        for each in feeds:
            found, expected = await loaded.run(each), peer.run(None, each)
            for mine, its in zip(found.values(), expected, strict=True):
                assert mine.shape == its.shape
                assert mine.dtype == its.dtype
                largest = np.abs(its).max()
                assert largest > 1e-3
                np.testing.assert_allclose(mine, its, rtol=0, atol=TOLERANCE * largest)


@pytest.mark.parametrize(("name", "shape"), [("cls", (2, 3, 48, 96)), ("rec", (1, 3, 48, 61))])
async def test_all_values_in_between(name: str, shape: tuple[int, ...]) -> None:
    path = models.reading(name)
    loaded = af.onnx.load(path)
    (source,) = loaded.inputs
    names = [each for each in loaded.values if each != source]
    assert len(names) > 150
    proto = onnx.load(path)
    del proto.graph.output[:]
    proto.graph.output.extend([onnx.ValueInfoProto(name=each) for each in names])
    x = picture(*shape)
    expected = session(proto.SerializeToString()).run(names, {source: x})
    async with loaded.graph:
        found = await loaded.run({source: x}, fetch=names)
    for each, its in zip(names, expected, strict=True):
        assert found[each].shape == its.shape, each
        np.testing.assert_allclose(found[each], its, rtol=0, atol=TOLERANCE * np.abs(its).max(), err_msg=each)


@pytest.mark.parametrize("backend", slow(BACKENDS, but=["actorflow"]))
class TestTrained:
    @pytest.mark.parametrize(
        ("name", "shapes"),
        [
            ("det", [(1, 3, 64, 96), (1, 3, 96, 64), (2, 3, 32, 160)]),
            ("cls", [(1, 3, 48, 192), (5, 3, 48, 192), (2, 3, 48, 96)]),
            ("rec", [(1, 3, 48, 160), (3, 3, 48, 100), (1, 3, 48, 61)]),
        ],
    )
    async def test_text_in_pictures(self, name: str, shapes: list[tuple[int, ...]], backend: str) -> None:
        await compare(models.reading(name), backend, [{"x": picture(*shape)} for shape in shapes])

    async def test_lengths_that_do_not_fit(self, backend: str) -> None:
        model = af.onnx.load(models.reading("rec"), backend=backend)
        async with model.graph:
            with pytest.raises(af.ActorflowError, match="100"):  # the height, which would not become one line
                await model.run({"x": noise(1, 3, 100, 64)})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", models.LIGHT if FULL else QUICK[:2])
async def test_batches_of_files_with_a_batch_of_one(name: str, backend: Any) -> None:
    model = models.light(name).SerializeToString()
    peer = session(model)
    (source,) = peer.get_inputs()
    assert source.shape[0] == 1
    loaded = af.onnx.load(model, backend=backend, axes={source.name: {0: "batch"}})
    rows = [noise(*source.shape, seed=seed) for seed in range(3)]
    expected = np.concatenate([peer.run(None, {source.name: row})[0] for row in rows])
    async with loaded.graph:
        (found,) = (await loaded.run({source.name: np.concatenate(rows)})).values()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", slow(models.LIGHT if FULL else QUICK, but=QUICK[:2]))
async def test_models_of_the_wheel(name: str, backend: str) -> None:
    model = models.light(name).SerializeToString()
    (source,) = session(model).get_inputs()
    await compare(model, backend, [{source.name: noise(*source.shape, seed=seed)} for seed in (0, 1)])


@pytest.mark.parametrize("backend", BACKENDS)
class TestExported:
    @pytest.fixture(autouse=True)
    def torch(self) -> Iterator[Any]:
        torch = pytest.importorskip("torch")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield torch
        torch.set_num_threads(threads)

    @pytest.mark.slow
    async def test_resnet(self, backend: str, resnet: bytes) -> None:
        shapes = [(1, 3, 64, 64), (4, 3, 64, 64), (2, 3, 50, 71), (1, 3, 33, 96)]
        await compare(resnet, backend, [{"x": noise(*shape)} for shape in shapes])

    @pytest.mark.slow
    async def test_encoder(self, backend: str) -> None:
        words = [np.random.default_rng(0).integers(0, 50, shape) for shape in ((2, 7), (1, 1), (3, 12), (5, 2))]
        axes = {"words": {0: "batch", 1: "time"}, "y": {0: "batch", 1: "time"}}
        model = models.exported(models.encoder(), {"words": words[0]}, axes)
        await compare(model, backend, [{"words": each} for each in words])

    async def test_gru(self, backend: str) -> None:
        axes = {"x": {0: "batch", 1: "time"}, "y": {0: "batch", 1: "time"}}
        model = models.exported(models.gru(), {"x": noise(2, 7, 8)}, axes)
        shapes = [(2, 7), (1, 7), (5, 7)]
        await compare(model, backend, [{"x": noise(*shape, 8)} for shape in shapes], {"time": 7})
        if backend == "onnxruntime":  # ours compute a known number of steps
            await compare(model, backend, [{"x": noise(*shape, 8)} for shape in ((2, 7), (1, 1), (3, 12), (5, 2))])


@pytest.fixture(scope="module")
def resnet() -> bytes:
    pytest.importorskip("torch")
    axes = {"x": {0: "batch", 2: "height", 3: "width"}, "y": {0: "batch"}}
    return models.exported(models.resnet18(), {"x": noise(2, 3, 64, 64)}, axes)


class TestTraining:
    """A network with normalizations by running statistics, as in inference: nothing else is the same in both."""

    STEPS, RATE = 2, 0.05
    #: Of each weight's largest change; gradients are sums of some 10,000 products in float32.
    TOLERANCE = 1e-3

    @pytest.mark.slow
    @pytest.mark.parametrize("backend", BACKENDS)
    async def test_two_steps_are_those_of_torch(self, backend: Any) -> None:
        torch = pytest.importorskip("torch")
        module = models.resnet18(seed=1)
        names = {"x": {0: "batch"}, "y": {0: "batch"}}
        images, labels = noise(4, 3, 64, 64), np.array([3, 1, 4, 1])
        model = af.onnx.load(
            models.exported(module, {"x": images}, names, folded=False), trainable=True, backend=backend
        )
        graph = model.graph
        target = graph.blob("labels", ("batch",), "int64")
        loss = ops.softmax_loss(model.outputs["y"], target)
        update = nn.SGD(self.RATE, momentum=0.9).minimize(loss)

        optimizer = torch.optim.SGD(module.parameters(), self.RATE, momentum=0.9)
        before = {name: each.detach().numpy().copy() for name, each in module.named_parameters()}
        async with graph:
            for _ in range(self.STEPS):
                result = await graph.run({model.inputs["x"]: images, target: labels}, fetch=[loss, update])
                optimizer.zero_grad()
                expected = torch.nn.functional.cross_entropy(module(torch.as_tensor(images)), torch.as_tensor(labels))
                expected.backward()
                optimizer.step()
                assert result[loss] == pytest.approx(expected.item(), rel=1e-5)
        variables = {variable.name: variable for variable in graph.variables}
        for name, each in module.named_parameters():
            change = each.detach().numpy() - before[name]
            found = variables[name].value - before[name]
            np.testing.assert_allclose(found, change, rtol=0, atol=self.TOLERANCE * np.abs(change).max(), err_msg=name)
