"""Augmentation: the same for an example in whatever batch it comes, and what each step does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actorflow.data import Augmentation, CenterCrop, Crop, Draws, Mirror, Normalize
from actorflow.errors import DataError


def numbered(count: int, height: int, width: int, channels: int = 1, dtype: str = "int64") -> np.ndarray:
    """Images of which no two pixels are the same."""
    return np.arange(1, count * height * width * channels + 1).astype(dtype).reshape(count, height, width, channels)


def draws(count: int, seed: int = 0) -> Draws:
    return Draws(seed, 0, np.arange(count))


@st.composite
def augmentations(draw) -> tuple[Augmentation, np.ndarray, np.ndarray]:
    """Some steps, images that they fit, and their rows."""
    count, height, width = draw(st.integers(1, 8)), draw(st.integers(1, 7)), draw(st.integers(1, 7))
    padding = draw(st.integers(0, 3))
    size = draw(st.integers(1, height + 2 * padding)), draw(st.integers(1, width + 2 * padding))
    steps = [
        Crop(size, padding=padding, fill=draw(st.sampled_from([0, 9]))),
        Mirror(draw(st.sampled_from([0, 0.5, 1]))),
        Normalize(mean=draw(st.sampled_from([0, [1.5, 2, 3]])), std=2),
        CenterCrop((1, 1)),
        lambda images, draws: images + draws.uniform(2)[:, :1, np.newaxis, np.newaxis],
    ]
    chosen = draw(st.permutations(range(5)).map(lambda order: order[: 1 + order[0]]))
    if 3 in chosen and 0 in chosen and chosen.index(3) < chosen.index(0):
        chosen.remove(0)
    images = numbered(count, height, width, 3, draw(st.sampled_from(["uint8", "float32", "float64"])))
    rows = draw(hnp.arrays(np.int64, count, elements=st.integers(0, 10**9)))
    return Augmentation([steps[i] for i in chosen], seed=draw(st.integers(0, 99))), images, rows


@given(augmentations(), st.integers(0, 1000), st.data())
def test_an_example_is_the_same_in_any_batch(augmentation, epoch, data) -> None:
    augment, images, rows = augmentation
    before = images.copy()
    whole = augment(images, rows, epoch)
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10))
    np.testing.assert_array_equal(augment(images[order], rows[order], epoch), whole[order])
    np.testing.assert_array_equal(augment(images[order[0]][np.newaxis], rows[order[:1]], epoch)[0], whole[order[0]])
    np.testing.assert_array_equal(images, before)


def test_epochs_examples_and_seeds_differ() -> None:
    image = np.repeat(numbered(1, 9, 9), 40, axis=0)
    found = {
        Augmentation([Crop(4), Mirror()], seed=seed)(image, np.arange(40), epoch).tobytes()
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(found) == 25
    crops = Augmentation([Crop(4), Mirror()])(image, np.arange(40), 0)
    assert len({crop.tobytes() for crop in crops}) > 25


def test_images_and_masks_move_together() -> None:
    images = numbered(30, 8, 8, 3)
    masks = images[..., :1].astype(np.uint8)
    steps = [Crop(5, padding=2), Mirror()]
    moved = [Augmentation(steps, seed=4)(part, np.arange(30), 1) for part in (images, masks)]
    np.testing.assert_array_equal(moved[0][..., :1].astype(np.uint8), moved[1])


def test_steps_draw_for_themselves() -> None:
    """Two mirrors are not one that is undone."""
    images = numbered(200, 1, 2)
    twice = Augmentation([Mirror(), Mirror()])(images, np.arange(200), 0)
    assert 60 < (twice == images).all(axis=(1, 2, 3)).sum() < 140


@pytest.mark.parametrize("rows", [[0, 1, 2], [[0, 1]], 0])
def test_a_row_for_each_image(rows) -> None:
    with pytest.raises(DataError, match=r"a row for each, got shapes \(2, 3, 3, 1\) and"):
        Augmentation([Mirror()])(numbered(2, 3, 3), rows, 0)


def test_images_are_batches() -> None:
    with pytest.raises(DataError, match=r"got shapes \(3, 3, 1\) and \(3,\)"):
        Augmentation([Mirror()])(numbered(1, 3, 3)[0], [0, 1, 2], 0)


def test_seeds_are_not_negative() -> None:
    with pytest.raises(DataError, match="seed must be at least 0, got -1"):
        Augmentation([], seed=-1)


# -- mirror -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 3])
def test_mirror_turns_some_images_left_to_right(dtype, channels) -> None:
    images = numbered(400, 2, 3, channels, dtype)
    mirrored = Mirror()(images, draws(400))
    assert mirrored.dtype == dtype
    turned = (mirrored == images[:, :, ::-1]).all(axis=(1, 2, 3))
    assert ((mirrored == images).all(axis=(1, 2, 3)) != turned).all()
    assert 160 < turned.sum() < 240


def test_mirror_takes_any_layout_and_probability() -> None:
    images = numbered(20, 4, 5, 3).transpose(0, 2, 1, 3)[::2, ::-1]
    np.testing.assert_array_equal(Mirror(0)(images, draws(10)), images)
    np.testing.assert_array_equal(Mirror(1)(images, draws(10)), images[:, :, ::-1])
    assert Mirror(0.9)(images[:0], draws(0)).shape == (0, 5, 4, 3)
    with pytest.raises(DataError, match=r"from 0 to 1, got 1\.5"):
        Mirror(1.5)


# -- crop ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3), st.integers(0, 5), st.data())
def test_a_crop_is_a_part_of_the_padded_image(height, width, padding, fill, data) -> None:
    size = data.draw(st.integers(1, height + 2 * padding)), data.draw(st.integers(1, width + 2 * padding))
    images = numbered(5, height, width, 2)
    cropped = Crop(size, padding=padding, fill=fill)(images, draws(5, data.draw(st.integers(0, 50))))
    assert cropped.shape == (5, *size, 2)
    around = ((padding, padding), (padding, padding), (0, 0))
    for part, image in zip(cropped, images, strict=True):
        padded = np.pad(image, around, constant_values=fill)
        windows = np.lib.stride_tricks.sliding_window_view(padded, size, axis=(0, 1))
        assert (windows == part.transpose(2, 0, 1)).all(axis=(2, 3, 4)).any()


def test_every_place_is_as_likely() -> None:
    images = np.broadcast_to(numbered(1, 5, 6), (3_000, 5, 6, 1))
    corners = Crop((3, 4))(images, draws(3_000))[:, 0, 0, 0]
    found = np.unique(corners, return_counts=True)
    np.testing.assert_array_equal(found[0], images[0, :3, :3, 0].ravel())
    assert found[1].min() > 250


def test_a_crop_as_large_as_the_image_is_the_image() -> None:
    images = numbered(7, 4, 6, 3)
    np.testing.assert_array_equal(Crop((4, 6))(images, draws(7)), images)
    np.testing.assert_array_equal(CenterCrop((4, 6))(images, draws(7)), images)


def test_the_middle() -> None:
    images = numbered(2, 5, 6)
    np.testing.assert_array_equal(CenterCrop(3)(images, draws(2)), images[:, 1:4, 1:4])


@pytest.mark.together(
    ("make", "message"),
    [
        (lambda: Crop(0), "Crop: size must be at least 1, got 0"),
        (lambda: Crop((3, 0)), "Crop: size must be at least 1, got 0"),
        (lambda: Crop(3, padding=-1), "Crop: padding must be at least 0, got -1"),
        (lambda: CenterCrop(0), "CenterCrop: size must be at least 1, got 0"),
        (lambda: Crop(6)(numbered(2, 5, 6), draws(2)), "at least 6x6 pixels to crop, got 5x6"),
        (lambda: Crop(8, padding=1)(numbered(2, 6, 5), draws(2)), "at least 8x8 .* got 6x5 and a padding of 1"),
        (lambda: CenterCrop((2, 7))(numbered(2, 5, 6), draws(2)), "at least 2x7 pixels to crop, got 5x6"),
    ],
)
def test_crops_that_do_not_fit(make, message) -> None:
    with pytest.raises(DataError, match=message):
        make()
