"""Messages on machines where CUDA cannot be used."""

import sys
from typing import Any

import pytest

from actorflow.devices import check_place
from actorflow.devices.cuda import CudaDevice, availability, describe_cuda
from actorflow.errors import DeviceUnavailableError
from actorflow.place import Place

PLACE = Place.parse("cuda:0")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the CUDA version of the driver that is found; None for no driver."""

    def set_version(version: tuple[int, int] | None) -> None:
        monkeypatch.setattr(availability, "driver_version", lambda: version)

    set_version(None)
    return set_version


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it raises ModuleNotFoundError


class BrokenFinder:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "cupy":
            raise ImportError("libfoo.so: cannot open\nand more")


class TestCheck:
    def test_a_device_that_is_there(self, cupy: Any, driver: Any) -> None:
        CudaDevice.check(PLACE)
        check_place(Place.parse("cuda:1"))

    @pytest.mark.parametrize(
        ("version", "said"),
        [
            (None, r"neither CuPy nor an NVIDIA driver .* pip install 'actorflow\[cuda13\]'"),
            ((12, 4), r"'cuda:0' needs CuPy: pip install 'actorflow\[cuda12\]'"),
            ((13, 0), r"'cuda:0' needs CuPy: pip install 'actorflow\[cuda13\]'"),
            ((14, 1), r"'cuda:0' needs CuPy: pip install 'actorflow\[cuda13\]'"),
        ],
    )
    def test_no_cupy(self, no_cupy: None, driver: Any, version: Any, said: str) -> None:
        driver(version)
        with pytest.raises(DeviceUnavailableError, match=said):
            CudaDevice.check(PLACE)
        with pytest.raises(DeviceUnavailableError, match=said):
            CudaDevice(PLACE)

    def test_a_broken_cupy(self, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
        monkeypatch.setattr(sys, "meta_path", [BrokenFinder(), *sys.meta_path])
        with pytest.raises(
            DeviceUnavailableError, match=r"(?m)'cuda:0': CuPy does not load: ImportError: libfoo\.so: cann.*n$"
        ):
            CudaDevice.check(PLACE)
        (finding,) = describe_cuda()
        assert (finding.status, "force-reinstall" in finding.advice) == ("broken", True)

    @pytest.mark.parametrize(
        ("version", "status", "said"),
        [
            (None, 35, "'cuda:0': there is no NVIDIA driver .*; install the driver"),
            ((11, 8), 35, r"supports CUDA 11\.8, the CuPy that is installed needs 12\.0 or later; update the driver"),
            ((12, 4), 100, "no CUDA device; check that CUDA_VISIBLE_DEVICES"),
            ((12, 4), 999, "CUDA does not start: FakeCUDARuntimeError: cudaError999; look"),
        ],
    )
    def test_no_device(self, cupy: Any, driver: Any, version: Any, status: int, said: str) -> None:
        driver(version)
        cupy.failure = status
        with pytest.raises(DeviceUnavailableError, match=said):
            CudaDevice.check(PLACE)
        (finding,) = describe_cuda()
        assert (finding.name, finding.status) == ("device cuda", "missing")
        assert finding.advice

    def test_a_cupy_for_a_newer_driver(self, cupy: Any, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        driver((12, 9))
        cupy.failure = 35
        monkeypatch.setattr(type(cupy), "runtimeGetVersion", lambda self: 13_000)
        with pytest.raises(
            DeviceUnavailableError, match=r"uninstall cupy-cuda13x && pip install 'actorflow\[cuda12\]'"
        ):
            CudaDevice.check(PLACE)

    @pytest.mark.parametrize(("devices", "said"), [(1, "only 'cuda:0'"), (3, "'cuda:0' to 'cuda:2'"), (0, "no CUDA")])
    def test_an_index_that_is_too_large(self, cupy: Any, driver: Any, devices: int, said: str) -> None:
        cupy.devices = devices
        with pytest.raises(DeviceUnavailableError, match=said):
            CudaDevice.check(Place.parse("cuda:7"))


class TestDescribe:
    def test_no_cupy(self, no_cupy: None, driver: Any) -> None:
        assert describe_cuda() == [("device cuda", "missing", "no NVIDIA driver, no CuPy", "")]
        driver((12, 4))
        detail = "a driver for CUDA 12.4 is there, CuPy is not"
        assert describe_cuda() == [("device cuda", "missing", detail, "pip install 'actorflow[cuda12]'")]

    def test_each_device(self, cupy: Any, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        class Eight:
            def sum(self) -> int:
                if cupy.device == 1:
                    raise RuntimeError("libnvrtc.so is missing")
                return 28

        monkeypatch.setattr(cupy, "arange", lambda count: Eight(), raising=False)
        good, bad = describe_cuda()
        assert good == ("device cuda:0", "ok", "Fake GPU, 8.0 GiB, CuPy 14.0", "")
        assert bad[:3] == ("device cuda:1", "broken", "CuPy 14.0: RuntimeError: libnvrtc.so is missing")
        assert "cupy-cuda12x[ctk]" in bad.advice
        assert cupy.device == 0

    def test_a_device_that_computes_wrongly(self, cupy: Any, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        cupy.devices = 1
        monkeypatch.setattr(cupy, "arange", lambda count: Wrong(), raising=False)
        (finding,) = describe_cuda()
        assert (finding.status, finding.detail) == ("broken", "computed 27 where 28 is right")


class Wrong:
    def sum(self) -> int:
        return 27


def test_the_drivers_version(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        failed = 0

        def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802  the driver's name
            version._obj.value = 12_040
            return self.failed

    monkeypatch.setattr(availability.ctypes, "CDLL", lambda name: Driver())
    assert availability.driver_version() == (12, 4)
    monkeypatch.setattr(Driver, "failed", 3)
    assert availability.driver_version() is None
    monkeypatch.setattr(availability.ctypes, "CDLL", lambda name: object())
    assert availability.driver_version() is None
