"""Loaders as data sets of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from actorflow.errors import require
from actorflow.pipeline.pipeline import Pipeline
from actorflow.pipeline.stages.passing import Shard
from actorflow.pipeline.stages.source import Source
from actorflow.pipeline.stages.stage import Stage, calling_site


def torch_dataset(loader: Pipeline[Any]) -> Any:
    """A `torch.utils.data.IterableDataset` of a loader's items.

    ::

        for batch in torch.utils.data.DataLoader(af.pipeline.torch_dataset(loader), batch_size=None): ...

    The loader is concurrent by itself, so it needs no workers. If the DataLoader has some, each one takes its share
    of every source's items. Each iteration is an epoch; `state_dict` and `load_state_dict` are the loader's.

    Raises:
        MissingExtraError: if torch is not installed (extra ``torch``).
    """
    return _dataset_class()(loader)


def sharded(stage: Stage, rank: int, world: int) -> Stage:
    """The same stages, with a share of each source's items."""
    made: dict[Stage, Stage] = {}

    def again(stage: Stage) -> Stage:
        if stage not in made:
            copy = stage.on(*(again(upstream) for upstream in stage.upstream)).within(again)
            if isinstance(stage, Source):
                name, site = f"{stage.name}/shard", calling_site()
                copy = Shard(name=name, site=site, upstream=(copy,), rank=rank, world=world, even=False)
            made[stage] = copy
        return made[stage]

    return again(stage)


@cache
def _dataset_class() -> Any:
    data = require("torch.utils.data", extra="torch", purpose="af.pipeline.torch_dataset")

    class LoaderDataset(data.IterableDataset):  # type: ignore[misc, name-defined]
        """See `torch_dataset`."""

        def __init__(self, loader: Pipeline[Any]) -> None:
            self.loader = loader
            self._is_sharded = False

        def __iter__(self) -> Iterator[Any]:
            worker = data.get_worker_info()
            if worker is not None and not self._is_sharded:
                self._is_sharded = True
                loader, self.loader = (
                    self.loader,
                    Pipeline(sharded(self.loader.stage, worker.id, worker.num_workers)),
                )
                self.loader.epoch = loader.epoch
            return self.loader.iter_sync()

        def state_dict(self) -> dict[str, Any]:
            return self.loader.state_dict()

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.loader.load_state_dict(state)

        def __reduce__(self) -> Any:
            return torch_dataset, (self.loader,)

    return LoaderDataset
