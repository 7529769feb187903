"""A training's progress on the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from actorflow.errors import visible, whole
from actorflow.nn.steps import Mean, Step, means

if TYPE_CHECKING:
    from rich.console import Console


_REFRESH_S = 0.1


class Progress:
    """A bar per epoch at a terminal, with the means of the epoch so far; elsewhere one line per epoch.

    Args:
        epochs: How many epochs there will be.
        steps: Steps per epoch; None where that is not known.
        console: Where to print; the default is standard output.

    Example:
        >>> with af.nn.Progress(epochs=1) as progress:
        ...     for number in 1, 2:
        ...         progress.advance(af.nn.Step(number, epoch=0, loss=1 / number, metrics={"accuracy": 0.5}))
        ...     progress.validated({"accuracy": 0.75})
        epoch 1/1  loss 0.750  accuracy 0.500  validation accuracy 0.750
    """

    def __init__(self, epochs: int, steps: int | None = None, console: Console | None = None) -> None:
        epochs, steps = whole("epochs", epochs), None if steps is None else whole("steps", steps)
        from rich import console as consoles  # rich is loaded only to show progress
        from rich import progress

        self._console = console or consoles.Console()
        self._epochs = epochs
        self._steps = steps
        self._epoch = -1
        self._gathered: dict[str, Mean] = {}
        self._next_refresh = 0.0
        # Drawn from the loop and not by rich's thread, which would compete with the steps for the GIL.
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[means]}"),
            progress.TimeRemainingColumn(),
            console=self._console,
            auto_refresh=False,
            disable=not self._console.is_terminal,
        )
        self._task = progress.TaskID(0)
        self._count = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._end_epoch({})
        self._bar.stop()

    def advance(self, step: Step) -> None:
        """Count a step; the first one of an epoch ends the epoch before."""
        if step.epoch != self._epoch:
            self._end_epoch({})
            self._epoch, self._count = step.epoch, 0
            self._task = self._bar.add_task(self._title, total=self._steps, means="")
        self._count += 1
        step.add_to(self._gathered)
        if self._count == self._steps or time.monotonic() >= self._next_refresh:
            self._refresh({})

    def validated(self, validation: Mapping[str, float]) -> None:
        """End the epoch, and show the results of its validation."""
        self._end_epoch(validation)

    def _end_epoch(self, validation: Mapping[str, float]) -> None:
        if not self._gathered:
            return
        self._refresh(validation)
        if not self._console.is_terminal:
            self._console.print(f"{self._title}  {self._text(validation)}", highlight=False, soft_wrap=True)
        self._gathered = {}

    def _refresh(self, validation: Mapping[str, float]) -> None:
        self._bar.update(self._task, completed=self._count, means=self._text(validation))
        self._bar.refresh()
        self._next_refresh = time.monotonic() + _REFRESH_S

    @property
    def _title(self) -> str:
        return f"epoch {self._epoch + 1:{len(str(self._epochs))}}/{self._epochs}"

    def _text(self, validation: Mapping[str, float]) -> str:
        shown = {**means(self._gathered), **{f"validation {name}": value for name, value in validation.items()}}
        return "  ".join(f"{visible(name)} {value:.3f}" for name, value in shown.items())
