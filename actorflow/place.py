"""Places: devices of machines, on which tensors live and operations run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from actorflow.errors import PlaceError, text, whole

_TEXT = re.compile(r"(?:(?P<rank>\d+)/)?(?P<kind>[a-z][a-z0-9_]*)(?::(?P<index>\d+))?")


@dataclass(frozen=True, slots=True)
class Place:
    """A device of a machine: ``(rank, device)``, with the sign rule of Purine2.

    Args:
        rank: The machine (MPI rank), 0 without MPI.
        device: Index of the accelerator; negative means the CPU.
        kind: Kind of device: ``"cpu"``, ``"cuda"``, ``"sim"``, or one that a third party registers.

    The text form is ``cpu``, ``cuda:0``, ``1/cuda:0``; `parse` reads it and ``str`` writes it.

    Raises:
        PlaceError: if the rank is negative or a text, or if the kind and the sign of ``device`` disagree.

    Example:
        >>> af.Place.parse("cuda:0")
        Place(rank=0, device=0, kind='cuda')
        >>> str(af.Place(rank=1, device=0, kind="cuda"))
        '1/cuda:0'
    """

    rank: int = 0
    device: int = -1
    kind: str = "cpu"

    def __post_init__(self) -> None:
        given: Any = self.rank
        if isinstance(given, str):
            raise PlaceError(f"a place's rank must be a number, got {given!r}: Place.parse reads a place's text")
        object.__setattr__(self, "rank", whole("a place's rank", given, 0, error=PlaceError))
        object.__setattr__(self, "device", whole("a place's device", self.device, error=PlaceError))
        text("a place's kind", self.kind)
        if (self.kind == "cpu") != (self.device < 0):
            raise PlaceError(
                f"device {self.device} does not fit kind {self.kind!r}: "
                "a negative device is the CPU, and no other kind has one"
            )

    @classmethod
    def parse(cls, text: object) -> Place:
        """Read a place from its text form; a `Place` is returned as it is.

        Raises:
            PlaceError: if the text is not of the form ``[rank/]kind[:index]``.

        Example:
            >>> af.Place.parse("sim:1").device, af.Place.parse("2/cpu").rank
            (1, 2)
        """
        if isinstance(text, Place):
            return text
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise PlaceError(f"{text!r} is not a place: write 'cpu', 'cuda:0' or '1/cuda:0'")
        kind, index = match["kind"], match["index"]
        if kind == "cpu" and index is not None:
            raise PlaceError(f"{text!r} is not a place: the CPU has no index, write 'cpu'")
        device = -1 if kind == "cpu" else int(index or 0)
        return cls(int(match["rank"] or 0), device, kind)

    def __str__(self) -> str:
        device = "cpu" if self.device < 0 else f"{self.kind}:{self.device}"
        return f"{self.rank}/{device}" if self.rank else device
