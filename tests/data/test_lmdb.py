"""Images in LMDB databases."""

import json
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.data import (
    Augmentation,
    Batches,
    Blocks,
    CenterCrop,
    Crop,
    Datum,
    LmdbImages,
    Loader,
    Mirror,
    Normalize,
    image_label,
)
from actorflow.errors import DataError
from tests.support.datums import blob_proto, database, datum
from tests.support.effort import slow

pytest.importorskip("lmdb")

IMAGES = np.random.default_rng(0).integers(0, 256, (11, 6, 7, 3), np.uint8)
LABELS = np.arange(11) * 3 % 7


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data") / "train_lmdb"
    return database(place, map(datum, IMAGES, LABELS.tolist()))


def batches(loader: Batches, epochs: int = 1) -> list[tuple[np.ndarray, list[int]]]:
    return [(feed["x"], feed["y"].tolist()) for _ in range(epochs) for feed in loader]


class TestImages:
    def test_they_are_what_was_stored_in_the_order_of_the_keys(self, path: Path) -> None:
        images = LmdbImages(path)
        assert len(images) == len(images.labels) == 11
        np.testing.assert_array_equal(images[:], IMAGES)
        np.testing.assert_array_equal(images.labels[:], LABELS)
        assert images.labels[:].dtype == np.int64
        assert repr(images) == f"<LmdbImages {str(path)!r}: 11 images>"

    @pytest.mark.together(
        "rows",
        [3, -1, np.int64(4), slice(2, 9, 3), np.array([7, 0, -2, 7]), [1, 2], np.array([], np.int64), LABELS == 3],
    )
    def test_rows_are_those_of_an_array(self, path: Path, rows: Any) -> None:
        images = LmdbImages(path)
        np.testing.assert_array_equal(images[rows], IMAGES[rows])
        np.testing.assert_array_equal(images.labels[rows], LABELS[rows])
        assert images[rows].dtype == np.uint8
        assert images.labels[rows].dtype == np.int64

    @pytest.mark.parametrize("rows", [11, -12, np.array([0, 11])])
    def test_rows_that_there_are_not(self, path: Path, rows: Any) -> None:
        for column in (LmdbImages(path), LmdbImages(path).labels):
            with pytest.raises(IndexError):
                column[rows]

    def test_a_file(self, tmp_path: Path) -> None:
        place = database(tmp_path / "train.lmdb", map(datum, IMAGES[:2], [4, 5]), subdir=False)
        np.testing.assert_array_equal(LmdbImages(place)[:], IMAGES[:2])

    def test_colors(self, path: Path, tmp_path: Path) -> None:
        pillow = pytest.importorskip("PIL.Image")
        grey = LmdbImages(path, color=False)
        expected = [np.asarray(pillow.fromarray(image).convert("L")) for image in IMAGES]
        np.testing.assert_array_equal(grey[:], np.array(expected)[..., np.newaxis])
        np.testing.assert_array_equal(LmdbImages(path, bgr=False)[:], IMAGES[..., ::-1])
        place = database(tmp_path / "grey", [datum(IMAGES[0, :, :, :1], 1)])
        assert LmdbImages(place)[0].shape == (6, 7, 1)
        np.testing.assert_array_equal(LmdbImages(place, color=True)[0], IMAGES[0, :, :, :1].repeat(3, -1))
        floating = database(tmp_path / "floating", [datum(IMAGES[0].astype("f"), 1)])
        np.testing.assert_allclose(LmdbImages(floating, color=False)[0], IMAGES[0] @ [[0.299], [0.587], [0.114]], 1e-4)
        with pytest.raises(
            DataError, match=r"record 0 \(b'00000000_0.jpg'\): expected an image of 1 or 3 channels, got 2"
        ):
            LmdbImages(database(tmp_path / "two", [datum(IMAGES[0, :, :, :2], 1)]), color=True)[0]

    def test_records_of_another_form(self, tmp_path: Path) -> None:
        place = database(tmp_path / "numbers", [bytes([label, *range(6)]) for label in (3, 4)])
        images = LmdbImages(place, decode=of_bytes)
        assert images[1].shape == (2, 3, 1)
        assert images.labels[:].tolist() == [3, 4]
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(images))[:], images[:])

    def test_what_is_no_database(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=r"nowhere: expected an LMDB database, but it cannot be read: .*No such file"
        ):
            LmdbImages(tmp_path / "nowhere")
        (tmp_path / "file").write_bytes(b"x" * 10_000)
        with pytest.raises(DataError, match="file: expected an LMDB database, but it cannot be read"):
            LmdbImages(tmp_path / "file")
        with pytest.raises(DataError, match="there is no record in it"):
            LmdbImages(database(tmp_path / "empty", []))

    def test_records_that_cannot_be_read_are_named(self, tmp_path: Path) -> None:
        records = [datum(IMAGES[0], 1), b"\x0b", datum(IMAGES[0][:3], 1), datum(IMAGES[0].astype("f"), 1)]
        images = LmdbImages(database(tmp_path / "mixed", records))
        for column in (images, images.labels):
            with pytest.raises(DataError, match=r"mixed: record 1 \(b'00000001_19.jpg'\): Datum: expected a protocol"):
                column[:2]
        with pytest.raises(DataError, match=r"record 2 .*expected an image uint8\[6, 7, 3\], .*got uint8\[3, 7, 3\]"):
            images[[0, 2]]
        with pytest.raises(DataError, match=r"record 3 .*got float32\[6, 7, 3\]"):
            images[[0, 3]]
        np.testing.assert_array_equal(images[0], IMAGES[0])

    def test_without_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        place = database(tmp_path / "unopened", [datum(IMAGES[0], 1)])
        monkeypatch.setitem(__import__("sys").modules, "lmdb", None)
        with pytest.raises(
            af.MissingExtraError, match=r"reading LMDB databases needs 'lmdb': pip install 'actorflow\[lmdb"
        ):
            LmdbImages(place)

    def test_what_is_read_outlives_the_database(self, tmp_path: Path) -> None:
        place = database(tmp_path / "short", [datum(IMAGES[0, :, :, :1], 1)])
        image = LmdbImages(place)[0]
        image += 1  # and is nobody else's
        np.testing.assert_array_equal(image, IMAGES[0, :, :, :1] + np.uint8(1))
        np.testing.assert_array_equal(LmdbImages(place)[0], IMAGES[0, :, :, :1])


def of_bytes(record: memoryview) -> Datum:
    return Datum(np.frombuffer(record[1:], np.uint8).reshape(2, 3, 1), record[0])


def total(images: LmdbImages, answer: Any) -> None:
    """In another process."""
    again = LmdbImages(images.path)
    answer.send((int(images[:].astype(int).sum()), int(again.labels[:].sum()), len(again)))


class TestSharing:
    """LMDB opens a database once in a process, and not across a fork."""

    def test_any_number_in_one_process(self, path: Path) -> None:
        several = [LmdbImages(path), LmdbImages(str(path)), LmdbImages(path.parent / "." / path.name)]
        for images in several:
            np.testing.assert_array_equal(images[4], IMAGES[4])
        assert len({id(images._environment) for images in several}) == 1

    def test_it_is_closed_when_nobody_reads_it(self, path: Path) -> None:
        import lmdb

        images = LmdbImages(path)
        assert images[0].shape == (6, 7, 3)
        with pytest.raises(lmdb.Error, match="already open"):
            lmdb.open(str(path), readonly=True, lock=False)
        del images
        lmdb.open(str(path), readonly=True, lock=False).close()

    @pytest.mark.parametrize("method", ["fork", *slow(["spawn"])])
    def test_another_process_opens_it_anew(self, path: Path, method: str) -> None:
        context = multiprocessing.get_context(method)
        images = LmdbImages(path)
        expected = (int(images[:].astype(int).sum()), int(LABELS.sum()), 11)
        for _ in range(2):
            mine, other = context.Pipe()
            process = context.Process(target=total, args=(images, other))
            process.start()
            assert mine.poll(60)
            assert mine.recv() == expected
            process.join(60)
            assert process.exitcode == 0
            mine.close()
            other.close()
        np.testing.assert_array_equal(images[:], IMAGES)  # here it is still open

    def test_a_fork_in_the_middle_of_opening(self, path: Path, monkeypatch) -> None:
        from actorflow import threads
        from actorflow.data import lmdb as module

        monkeypatch.setattr(threads, "_PATIENCE_S", 0.0)  # the thread that forks has the lock: no patience helps
        context = multiprocessing.get_context("fork")
        images = LmdbImages(path)
        mine, other = context.Pipe()
        with module._opened._lock:
            process = context.Process(target=total, args=(images, other))
            process.start()
        assert mine.poll(60)
        assert mine.recv()[2] == 11
        process.join(60)
        mine.close()
        other.close()

    def test_many_threads(self, path: Path) -> None:
        images, wrong = LmdbImages(path), []

        def read(seed: int) -> None:
            for row in np.random.default_rng(seed).integers(0, 11, 50).tolist():
                if not np.array_equal(images[row], IMAGES[row]) or images.labels[row] != LABELS[row]:
                    wrong.append(row)

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(read, range(6)))
        assert wrong == []

    @pytest.mark.parametrize("executor", ["thread", "process"])
    async def test_in_a_pipeline(self, path: Path, executor: str) -> None:
        images = LmdbImages(path)
        pipeline = af.pipeline.source(range(11)).map(images.__getitem__, executor=executor, concurrency=2)
        found = [image async for image in pipeline]
        np.testing.assert_array_equal(found, IMAGES)


class TestBlocks:
    @pytest.mark.together(
        ("count", "offset", "interval", "block", "expected"),
        [
            (10, 0, 2, 2, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]),
            (10, 0, 4, 2, [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 0, 1]),
            (10, 2, 4, 2, [2, 3, 6, 7, 0, 1, 4, 5]),
            (7, 0, 3, 3, [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4]),
            (5, 13, 5, 1, [3, 3, 3]),
            (4, 0, 9, 2, [0, 1, 1, 2, 2, 3]),
            (3, 1, 3, 3, [1, 2, 0, 1, 2, 0]),
        ],
    )
    def test_the_order_is_purines(
        self, count: int, offset: int, interval: int, block: int, expected: list[int]
    ) -> None:
        order = Blocks(count, None, offset, interval, block)
        assert len(order) % block == 0
        found = np.concatenate([order.rows(epoch) for epoch in range(len(expected))])
        assert found[: len(expected)].tolist() == expected

    @given(st.integers(1, 40), st.integers(0, 50), st.integers(1, 8), st.integers(0, 30))
    def test_it_is_that_of_a_cursor(self, count: int, offset: int, block: int, more: int) -> None:
        """Purine2 goes on record by record, and to the first one at the end."""
        block = min(block, count)
        order = Blocks(count, None, offset, block + more, block)
        taken = np.concatenate([order.rows(epoch) for epoch in range(3)]).tolist()
        cursor, expected = offset % count, []
        while len(expected) < len(taken):
            for _ in range(block):
                expected.append(cursor)
                cursor = (cursor + 1) % count
            for _ in range(more):
                cursor = (cursor + 1) % count
        assert taken == expected

    def test_ranks_share_the_records(self) -> None:
        shares = [Blocks(24, None, rank * 2, 3 * 2, 2).rows(0).tolist() for rank in range(3)]
        assert sorted(np.concatenate(shares).tolist()) == list(range(24))

    @pytest.mark.together(
        "numbers", [(5, 1, 0, 1, 1), (5, None, -1, 1, 1), (5, None, 0, 2, 3), (5, None, 0, 9, 6), (5, None, 0, 1, 0)]
    )
    def test_what_is_no_order(self, numbers: Any) -> None:
        with pytest.raises(DataError, match=r"Blocks: expected no seed, 0 <= offset, 1 <= block <= interval"):
            Blocks(*numbers)
        with pytest.raises(DataError, match="epoch must be at least 0, got -1"):
            Blocks(5).rows(-1)


class TestImageLabel:
    def test_batches_in_order_over_the_end(self, path: Path) -> None:
        found = batches(image_label(path, "x", "y", batch_size=4), 3)
        order = np.arange(24) % 11
        assert [labels for _, labels in found] == LABELS[order].reshape(6, 4).tolist()
        np.testing.assert_array_equal(np.concatenate([images for images, _ in found]), IMAGES[order].astype("f"))
        assert found[0][0].dtype == np.float32

    def test_each_rank_reads_its_own(self, path: Path) -> None:
        ranks = [image_label(path, "x", "y", batch_size=2, offset=2 * rank, interval=4) for rank in range(2)]
        found = [[labels for _, labels in batches(rank, 2)] for rank in ranks]
        rows = [[[0, 1], [4, 5], [8, 9], [1, 2]], [[2, 3], [6, 7], [10, 0], [3, 4]]]
        assert found == [[LABELS[each].tolist() for each in of_rank] for of_rank in rows]

    @pytest.mark.together("crop_size", [1, 4, 6])
    @pytest.mark.together("random", [False, True])
    @pytest.mark.together("mirror", [False, True])
    def test_crops_and_mirrors_are_those_of_augmentations(
        self, path: Path, crop_size: int, random: bool, mirror: bool
    ) -> None:
        loader = image_label(
            path, "x", "y", batch_size=5, crop_size=crop_size, random=random, mirror=mirror, mean=[3, 2, 1], seed=9
        )
        steps: list[Any] = [Normalize([3, 2, 1]), (Crop if random else CenterCrop)(crop_size), *[Mirror()] * mirror]
        augment = Augmentation(steps, seed=9)
        for epoch in range(3):
            for number, feed in enumerate(loader):
                rows = (np.arange(5) + (epoch * 2 + number) * 5) % 11
                np.testing.assert_array_equal(feed["x"], augment(IMAGES[rows], rows, epoch))
                assert feed["x"].shape == (5, crop_size, crop_size, 3)

    def test_a_crop_as_large_as_the_images(self, tmp_path: Path) -> None:
        """Purine2 divided by zero here."""
        square = IMAGES[:, :, :6]
        place = database(tmp_path / "square", map(datum, square, LABELS.tolist()))
        for random in (False, True):
            ((images, _),) = batches(image_label(place, "x", "y", batch_size=11, crop_size=6, random=random))
            np.testing.assert_array_equal(images, square.astype("f"))

    def test_random_crops_are_of_all_places(self, path: Path) -> None:
        loader = image_label(path, "x", "y", batch_size=11, crop_size=5, random=True, seed=1)
        found = set()
        for _ in range(40):
            for images, _ in batches(loader):
                row = int(np.flatnonzero([images[0].tobytes() in _parts(image) for image in IMAGES])[0])
                found.add(_parts(IMAGES[row])[images[0].tobytes()])
        assert found == {(y, x) for y in range(2) for x in range(3)}

    def test_a_mean_of_the_images_goes_with_its_pixels(self, path: Path, tmp_path: Path) -> None:
        mean = np.random.default_rng(1).uniform(0, 255, (6, 7, 3)).astype("f")
        file = tmp_path / "mean.binaryproto"
        file.write_bytes(blob_proto(mean))
        for given_ in (mean, file, str(file)):
            ((images, _),) = batches(image_label(path, "x", "y", batch_size=11, crop_size=4, mean=given_))
            np.testing.assert_array_equal(images, (IMAGES - mean)[:, 1:5, 1:5])

    def test_a_mean_of_the_crop_is_subtracted_before_it_is_mirrored(self, path: Path, tmp_path: Path) -> None:
        """As Purine2 does: the mean of a pixel is its own."""
        mean = np.random.default_rng(1).uniform(0, 255, (4, 4, 3)).astype("f")
        loader = image_label(path, "x", "y", batch_size=11, crop_size=4, mean=mean, mirror=True, seed=2)
        ((images, _),) = batches(loader)
        straight = IMAGES[:, 1:5, 1:5] - mean
        turned = [bool((image == whole[:, ::-1]).all()) for image, whole in zip(images, straight, strict=True)]
        assert {True, False} == set(turned)
        for image, whole, is_turned in zip(images, straight, turned, strict=True):
            np.testing.assert_array_equal(image, whole[:, ::-1] if is_turned else whole)

    def test_grey(self, path: Path) -> None:
        ((images, _),) = batches(image_label(path, "x", "y", batch_size=11, color=False, mean=100))
        np.testing.assert_array_equal(images, LmdbImages(path, color=False)[:] - np.float32(100))

    @pytest.mark.together(
        ("options", "message"),
        [
            (
                {"mean": np.ones((5, 5, 3))},
                r"a mean of 3 channels, one for each or for pixels of 6x7 or 4x4, got .*\(5, 5",
            ),
            ({"mean": np.ones((6, 7, 1))}, None),
            ({"mean": np.ones((6, 7, 2))}, r"got one of shape \(6, 7, 2\)"),
            ({"mean": np.ones(2)}, r"got one of shape \(2,\)"),
            ({"mean": np.ones((7, 3))}, r"got one of shape \(7, 3\)"),
            ({"mean": "nowhere"}, "nowhere: expected a mean image"),
            ({"crop_size": 7}, "expected a crop_size from 1 to the size of the images, 6x7, got 7"),
            ({"crop_size": 0}, "crop_size must be at least 1, got 0"),
            ({"interval": 2}, "1 <= block <= interval"),
            ({"batch_size": 12}, "block <= count"),
        ],
    )
    def test_what_does_not_fit(self, path: Path, options: dict[str, Any], message: str | None) -> None:
        chosen = {"batch_size": 3, "crop_size": 4, **options}
        if message is None:
            image_label(path, "x", "y", **chosen)
            return
        with pytest.raises(DataError, match=message):
            image_label(path, "x", "y", **chosen)

    @pytest.mark.slow
    @given(st.integers(0, 12), st.integers(1, 5), st.integers(0, 6))
    def test_a_place_is_gone_back_to(self, path: Path, taken: int, size: int, more: int) -> None:
        def made() -> Batches:
            return image_label(
                path, "x", "y", batch_size=size, offset=3, interval=size + more, crop_size=3, random=True, mirror=True
            )

        def some(loader: Batches, count: int) -> list[bytes]:
            found: list[bytes] = []
            while len(found) < count:
                for feed in loader:
                    found.append(feed["x"].tobytes() + feed["y"].tobytes())
                    if len(found) == count:
                        break
            return found

        first, second = made(), made()
        whole = some(made(), taken + 4)
        assert some(first, taken) == whole[:taken]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert some(second, 4) == whole[taken:]

    def test_the_place_of_another_order_is_refused(self, path: Path) -> None:
        state = image_label(path, "x", "y", batch_size=2).state_dict()
        with pytest.raises(DataError, match=r"expected the state of a loader like this, .*'block': 3"):
            image_label(path, "x", "y", batch_size=3).load_state_dict(state)
        plain = Loader({"x": LmdbImages(path)}, 2)
        with pytest.raises(DataError, match="expected the state of a loader like this"):
            plain.load_state_dict(state)

    async def test_it_trains(self, path: Path) -> None:
        graph = af.Graph("g")
        x, y = graph.blob("x", (5, 4, 4, 3)), graph.blob("y", 5, "int64")
        scores = af.nn.InnerProduct(7)(af.nn.Flatten()(af.ops.scale(x, 1 / 255)))
        loss = af.ops.softmax_loss(scores, y)
        trainer = af.nn.Trainer(loss, af.nn.SGD(0.5).minimize(loss))
        loader = image_label(path, x, y, batch_size=5, crop_size=4, mean=128)
        async with graph:
            first, *_, last = await trainer.fit(loader, epochs=40)
        assert last.means["loss"] < 0.5 * first.means["loss"]


def _parts(image: np.ndarray) -> dict[bytes, tuple[int, int]]:
    return {image[y : y + 5, x : x + 5].astype("f").tobytes(): (y, x) for y in range(2) for x in range(3)}
