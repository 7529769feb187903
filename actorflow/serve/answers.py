"""Answers in the form of the Open Inference Protocol: JSON, an error as ``{"error": ...}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from actorflow.errors import visible
from actorflow.web.http import Refused, Response

JSON = "application/json"
#: When to try again what was refused for the moment.
RETRY = {"Retry-After": "1"}


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON as a response."""
    return Response(status, [json.dumps(content).encode()], JSON, headers or {})


def refused(status: int, text: str, headers: Mapping[str, str] | None = None) -> Refused:
    """Ends a request with an error response."""
    return Refused(answer({"error": visible(text, lines=True)}, status, headers))
