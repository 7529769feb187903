"""Places: the sign rule, the text form, and texts that are not places."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af

kinds = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda kind: kind != "cpu")
places = st.one_of(
    st.builds(af.Place, st.integers(0, 10_000)),
    st.builds(af.Place, st.integers(0, 10_000), st.integers(0, 64), kinds),
)


@pytest.mark.together(
    ("text", "place", "written"),
    [
        ("cpu", af.Place(), "cpu"),
        ("3/cpu", af.Place(3), "3/cpu"),
        ("cuda:0", af.Place(0, 0, "cuda"), "cuda:0"),
        ("cuda", af.Place(0, 0, "cuda"), "cuda:0"),
        ("0/cuda:2", af.Place(0, 2, "cuda"), "cuda:2"),
        ("1/cuda:0", af.Place(1, 0, "cuda"), "1/cuda:0"),
        ("sim:7", af.Place(0, 7, "sim"), "sim:7"),
    ],
)
def test_text_form(text: str, place: af.Place, written: str) -> None:
    assert af.Place.parse(text) == place
    assert str(place) == written


@given(places)
def test_text_form_is_read_back(place: af.Place) -> None:
    assert af.Place.parse(str(place)) == place
    assert af.Place.parse(place) is place
    assert pickle.loads(pickle.dumps(place)) == place


def test_places_are_values() -> None:
    assert {af.Place.parse("cuda:1"), af.Place(0, 1, "cuda")} == {af.Place(0, 1, "cuda")}
    with pytest.raises(AttributeError):
        af.Place().rank = 1  # type: ignore[misc]


@pytest.mark.together(
    "text",
    ["", " cpu", "CPU", "cuda:", "cuda:-1", "cuda:0:1", "-1/cpu", "/cpu", "1/", "cpu\n", "cuda:x", None, 0, b"cpu"],
)
def test_no_place(text: object) -> None:
    with pytest.raises(af.PlaceError, match=r"is not a place: write 'cpu', 'cuda:0' or '1/cuda:0'"):
        af.Place.parse(text)


def test_the_cpu_has_no_index() -> None:
    with pytest.raises(af.PlaceError, match=r"'1/cpu:0' is not a place: the CPU has no index, write 'cpu'"):
        af.Place.parse("1/cpu:0")


def test_a_text_is_no_rank() -> None:
    with pytest.raises(af.PlaceError, match=r"rank must be a number, got 'cuda:0': Place\.parse reads"):
        af.Place("cuda:0")  # type: ignore[arg-type]


def test_negative_rank() -> None:
    with pytest.raises(af.PlaceError, match="rank must be at least 0, got -1"):
        af.Place(-1)


@pytest.mark.parametrize(("device", "kind"), [(0, "cpu"), (-1, "cuda"), (-2, "sim")])
def test_sign_and_kind_agree(device: int, kind: str) -> None:
    with pytest.raises(
        af.PlaceError, match=f"device {device} does not fit kind '{kind}': a negative device is the CPU"
    ):
        af.Place(0, device, kind)
