"""Limits of a server of models."""

from __future__ import annotations

from dataclasses import dataclass, fields

from actorflow.errors import seconds, whole


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server of models; who comes beyond one is sent away with an error.

    Attributes:
        body_bytes: Largest body of a request, unpacked.
        pending_bytes: Bytes of the bodies of all requests that are being answered.
        picture_pixels: Pixels of a picture.
        body_timeout_s: Longest time that a body takes to arrive.
        timeout_s: Longest time to the result of a request, whose own ``timeout`` may be shorter.
        queue_rows: Rows that may wait for batched runs of a model; requests, where it runs each by itself.
        sequences: Sequences of a model that are open at a time.
        sequence_idle_s: Longest time between two steps of a sequence.
        in_flight: Frames of a model that run at the same time.
        warm_up_s: Longest time that a model is warmed up before the server says that it is ready; 0 for not at all.

    Example:
        >>> graph = af.Graph("sums")
        >>> y = af.ops.sum(graph.blob("x", ["batch", 2]), 1)
        >>> limits = af.serve.Limits(timeout_s=5, queue_rows=256, body_bytes=1 << 20)
        >>> app = af.serve.create_app({"sums": graph}, limits=limits)
    """

    body_bytes: int = 64 << 20
    pending_bytes: int = 1 << 30
    picture_pixels: int = 1 << 24
    body_timeout_s: float = 60.0
    timeout_s: float = 60.0
    queue_rows: int = 1024
    sequences: int = 1024
    sequence_idle_s: float = 60.0
    in_flight: int = 2
    warm_up_s: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = f"limits: {field.name}", getattr(self, field.name)
            least = name.endswith("sequences")  # a batcher without slots is none
            checked = seconds(name, value, finite=False) if name.endswith("_s") else whole(name, value, int(least))
            object.__setattr__(self, field.name, checked)
