"""The two forms of the core."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from actorflow.core import plain


def _compiled() -> ModuleType | None:
    try:
        return import_module("actorflow.core.compiled")
    except ImportError:
        assert os.environ.get("ACTORFLOW_CORE") != "1", "the compiled form is to be there"
        return None


FORMS = {"plain": plain, "compiled": _compiled()}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    found = FORMS[request.param]
    return found or pytest.skip("the core is not compiled here")
