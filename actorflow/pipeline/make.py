"""Where pipelines begin: sources, and several pipelines made one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actorflow.data.sampler import Sampler
from actorflow.errors import PipelineError
from actorflow.pipeline.calls.options import Executor, is_async_function
from actorflow.pipeline.pipeline import Pipeline, unique_name
from actorflow.pipeline.stages.join import Concat, Interleave, Merge, Zip
from actorflow.pipeline.stages.source import Source, check_data, is_indexable
from actorflow.pipeline.stages.stage import Stage, calling_site, check_at_least


def source(
    data: Any,
    *,
    shuffle: bool = False,
    seed: int = 0,
    sampler: Sampler | None = None,
    executor: Executor = "auto",
    name: str = "source",
) -> Pipeline:
    """A pipeline that gives the items of something.

    Args:
        data: A sequence (anything with ``len`` and ``[]``, an array or a map-style data set say), an iterable, an async
            iterable, or a function that gives one of these for an epoch, counted from 0. One that has `state_dict` and
            `load_state_dict` goes on in the middle by these; a sequence by numbers; others are taken up again from
            their start, and what went out before is dropped.
        shuffle: Whether the items of a sequence come in another order each epoch.
        seed: Of these orders.
        sampler: The order of a sequence's items, instead.
        executor: Where it is iterated: "loop", "thread", or "auto" for the loop if it takes less than 100 us per item.
        name: For messages and statistics.
    Raises:
        PipelineError: if it is nothing of that, or something other than a sequence is to be shuffled.
    """
    check_data(data)
    if executor not in ("auto", "loop", "thread"):
        raise PipelineError(f"the executor of a source must be auto, loop or thread, got {executor!r}")
    if is_async_function(data):
        raise PipelineError("a source's function must give an iterable, not a coroutine: it may give an async iterable")
    if (shuffle or sampler is not None) and not is_indexable(data):
        raise PipelineError(
            f"only a sequence can be taken in another order, got {type(data).__name__}: .shuffle(size) mixes any stream"
        )
    if shuffle and sampler is None and len(data):
        check_at_least("seed", seed, 0)
        sampler = Sampler(len(data), seed)
    if sampler is not None and sampler.count != len(data):
        raise PipelineError(f"the sampler is for {sampler.count} items, but there are {len(data)}")
    return Pipeline(Source(name=name, site=calling_site(), data=data, sampler=sampler, place=executor))


def zip_(*pipelines: Pipeline, strict: bool = False, name: str = "zip") -> Pipeline:
    """Tuples of an item of each pipeline, until the shortest ends.

    Args:
        pipelines: At least one.
        strict: Whether it is an error if they are not of one length.
        name: For messages and statistics.
    """
    return _join(Zip, pipelines, name, strict=strict)


def concat(*pipelines: Pipeline, name: str = "concat") -> Pipeline:
    """All items of the first pipeline, then all of the second, ..."""
    return _join(Concat, pipelines, name)


def interleave(*pipelines: Pipeline, block: int = 1, name: str = "interleave") -> Pipeline:
    """``block`` items of each pipeline in turn; one that has ended is left out."""
    check_at_least("block", block, 1)
    return _join(Interleave, pipelines, name, block=block)


def merge(*pipelines: Pipeline, name: str = "merge") -> Pipeline:
    """The items of several pipelines as they come; those of each one keep their order."""
    return _join(Merge, pipelines, name)


def _join(kind: type[Stage], pipelines: Sequence[Pipeline], name: str, **fields: Any) -> Pipeline:
    if not pipelines:
        raise PipelineError(f"{name}: expected at least one pipeline, got none")
    for pipeline in pipelines:
        if not isinstance(pipeline, Pipeline):
            raise PipelineError(f"{name}: expected pipelines, got {type(pipeline).__name__}")
    parts = [stage for pipeline in pipelines for stage in pipeline.stages]
    if len(parts) != len(set(parts)):
        raise PipelineError(f"{name}: a pipeline is joined with itself: make it twice")
    stage = kind(
        name=unique_name(name, {part.name for part in parts}),
        site=calling_site(),
        upstream=tuple(pipeline.stage for pipeline in pipelines),
        **fields,
    )
    return Pipeline(stage)
