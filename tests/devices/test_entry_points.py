"""A device of an installed package is found by the text of its place alone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import actorflow as af
from actorflow.devices import check_place, device_kind, known_kinds, open_device, register_device, registry
from actorflow.testing import check_device

MODULE = '''
from actorflow.devices import CPU


class Abacus(CPU):
    """Beads."""

    libraries = ()


class NoDevice:
    pass
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that names kinds of devices, on the path of this process."""
    (tmp_path / "af_abacus.py").write_text(MODULE, encoding="utf-8")
    info = tmp_path / "af_abacus-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: af-abacus\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[actorflow.devices]\n"
        "abacus = af_abacus:Abacus\n"
        "no_device = af_abacus:NoDevice\n"
        "no_name = af_abacus:Nothing\n"
        "no_module = af_nowhere:Abacus\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))
    importlib.invalidate_caches()


@pytest.mark.usefixtures("installed")
class TestInstalled:
    async def test_a_graph_runs_on_it(self) -> None:
        sys.modules.pop("af_abacus", None)
        graph = af.Graph("beads")
        x = graph.blob("x", shape=(3,))
        with graph.at("abacus:0"):
            y = af.ops.scale(x, 2.0)
        assert "af_abacus" not in sys.modules
        async with graph:
            result = await graph.run({x: [1.0, 2.0, 3.0]})
        np.testing.assert_array_equal(af.to_numpy(result[y]), [2.0, 4.0, 6.0])
        assert device_kind("abacus").__module__ == "af_abacus"

    async def test_it_passes_the_suite(self) -> None:
        report = await check_device("abacus:0")
        assert "graphs.chain" in report.passed

    def test_it_is_known(self) -> None:
        assert {"cpu", "cuda", "sim", "abacus"} <= set(known_kinds())

    @pytest.mark.parametrize(
        ("kind", "says"),
        [
            ("no_device", "not a subclass of Device"),
            ("no_name", r"\(af_abacus:Nothing\) does not load: .*Nothing"),
            ("no_module", r"\(af_nowhere:Abacus\) does not load: No module named 'af_nowhere'"),
        ],
    )
    def test_what_is_wrong_with_an_entry_point_is_said(self, kind: str, says: str) -> None:
        with pytest.raises(af.DeviceUnavailableError, match=says):
            check_place(af.Place.parse(f"{kind}:0"))

    def test_its_kind_is_taken(self) -> None:
        kind = device_kind("abacus")
        register_device("abacus", kind)
        with pytest.raises(af.DeviceError, match="'abacus' is registered already: Abacus"):
            register_device("abacus", type("Other", (kind,), {}))


def test_a_place_may_be_given_by_its_text() -> None:
    check_place("sim:1")
    device = open_device("sim:1")
    assert device.place == af.Place.parse("sim:1")
    device.close()
    with pytest.raises(af.DeviceUnavailableError, match="place 'sim:16'"):
        open_device("sim:16")


def test_without_the_distribution_the_kind_is_unknown() -> None:
    with pytest.raises(
        af.DeviceUnavailableError, match=r"place 'abacus:0': no device of kind 'abacus'; known: cpu, sim, cuda"
    ):
        check_place(af.Place.parse("abacus:0"))
