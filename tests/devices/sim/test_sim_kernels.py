"""Kernels of a simulated device: all that the CPU has, with the same results, run when the stream gets to them."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.ops.sim
from actorflow.ops import registry
from actorflow.ops.cpu.described import make
from actorflow.ops.operation import Operation
from tests.operations import EACH


def of_cpu() -> list[registry.Kernel]:
    """The kernels that the package has for the CPU, but for what takes results piece by piece."""
    numpy = [known for key, known in registry._kernels.items() if (key.device, key.library) == ("cpu", "numpy")]
    made = "actorflow.ops.cpu.described"  # makes those that no one has registered
    modules = [known.function.__module__ for known in numpy]
    own = [module.startswith("actorflow.ops.cpu.") and module != made for module in modules]
    found = [known for known, is_own in zip(numpy, own, strict=True) if is_own]
    return [known for known in found if known.key.operation not in ("Followed", "Together")]


def run(sim: Any, operation: Operation, arrays: list[np.ndarray], frame: int = 0) -> list[np.ndarray]:
    """Outputs of the kernel of a simulated device."""
    device = sim.device()
    specs = [af.TensorSpec(np.shape(x), np.asarray(x).dtype) for x in arrays]
    outputs = operation.infer(*specs)
    assert outputs is not None
    kernel = registry.lookup(operation, "sim", "sim", (specs or outputs)[0].dtype)
    assert kernel is not None
    inputs = [device.upload(np.asarray(x)) for x in arrays]
    results = None if kernel.returns else [device.allocate(spec) for spec in outputs]
    stream = device.make_stream("main")
    with stream.current():
        returned = kernel.function(operation, inputs, results, *([frame] if kernel.random else []))
    stream.record().synchronize()
    return [result.get() for result in results or returned]


@pytest.mark.together("known", of_cpu(), ids=lambda known: known.key.operation)
def test_every_kernel_of_the_package_has_one(known: registry.Kernel) -> None:
    mine = registry._kernels[known.key._replace(device="sim", library="sim")]
    assert (mine.random, mine.inplace) == (known.random, known.inplace)
    assert mine.returns == (known.key.operation == "Reshape")  # parts, views on the CPU, are copied
    assert mine.supports is known.supports


def test_every_kind_is_tried() -> None:
    key = registry.KernelKey("", "cpu", "numpy", "float32", "any")
    made = {name for name, (operation, _) in EACH.items() if make(type(operation), key)}  # of rows, and of compute()
    assert {known.key.operation for known in of_cpu()} | made == EACH.keys()


def test_in_place(sim: Any) -> None:
    device = sim.device()
    x = sim.array(device, -1, 2)
    kernel = registry.find_kernel(af.ops.Relu(), "sim", x.dtype, libraries=("sim",))
    stream = device.make_stream("main")
    with stream.current():
        kernel.function(af.ops.Relu(), [x], [x])
    stream.record().synchronize()
    assert x.get().tolist() == [0, 2]


def test_a_reshape_is_a_view_and_no_work(sim: Any) -> None:
    device = sim.device(kernel_s=1.0)
    x = sim.array(device, 1, 2, 3, 4)
    stream = device.make_stream("main")
    kernel = registry.find_kernel(af.ops.Reshape((2, 2)), "sim", x.dtype, libraries=("sim",))
    with stream.current():
        (y,) = kernel.function(af.ops.Reshape((2, 2)), [x], None)
    assert y.base is x
    assert stream.record().finish_ns == 0


OTHERS = """
import actorflow as af

af.ops.kernel("Theirs")(lambda operation, inputs, outputs: None)
import actorflow.ops.sim

print(*[key.device for key in af.ops.registered_kernels() if key.operation in ("Theirs", "Relu")])
"""


def test_kernels_of_others_do_not_come_along() -> None:
    """They may count on the host's memory; the plan runs them on the CPU."""
    done = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == ["cpu", "cpu", "sim"]


def test_arrays_of_another_device_are_refused(sim: Any) -> None:
    x, y = sim.array(sim.device(), 1), sim.array(sim.device("sim:1"), 1)
    kernel = registry.find_kernel(af.ops.Relu(), "sim", x.dtype, libraries=("sim",))
    for wrong in (y, y.get()):
        with sim.devices[0].make_stream("main").current():
            with pytest.raises(af.DeviceError, match=r"^Relu on lane 'main' of sim:0 takes arrays of sim:0, got "):
                kernel.function(af.ops.Relu(), [wrong], [x])
