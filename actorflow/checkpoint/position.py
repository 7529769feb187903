"""The place in the data as text: what is read is what was written, or it is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from actorflow.errors import CheckpointError

#: Where an application is in its data.
Position = Mapping[str, Any]


def position_text(position: Position | None) -> str:
    """A position as JSON.

    Raises:
        CheckpointError: naming the key of what JSON cannot hold, or would give back as something else: a tuple as a
            list, a key that is no text as one.
    """
    plain = dict(position or {})
    try:
        _check(plain, "position")
        return json.dumps(plain)
    except (RecursionError, ValueError) as error:  # it contains itself, say
        raise CheckpointError(f"the position must be what JSON can hold: {type(error).__name__}: {error}") from error


def _check(value: Any, where: str) -> None:
    """Check a value and all that is in it."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CheckpointError(
                    f"the position must be what JSON can hold: {where} has the key {key!r}, of type "
                    f"{type(key).__name__}, and JSON's keys are texts: use {str(key)!r}, or a list of pairs"
                )
            _check(item, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check(item, f"{where}[{i}]")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        hint = ", which would come back as a list" if isinstance(value, tuple) else ""
        raise CheckpointError(
            f"the position must be what JSON can hold: {where} is of type {type(value).__name__}{hint}: {value!r:.200}"
        )
