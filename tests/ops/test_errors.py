"""What operations refuse, and the words that they name it with."""

from __future__ import annotations

import pytest

import actorflow.array as xp
from tests.operations import WRONG
from tests.operations.functions import linalg
from tests.operations.table import Wrong


@pytest.mark.together("wrong", WRONG, ids=[f"{i}-{wrong.match[:30]}" for i, wrong in enumerate(WRONG)])
def test_what_does_not_fit_is_named(wrong: Wrong) -> None:
    with pytest.raises(wrong.error, match=wrong.match):
        wrong.apply()


@pytest.mark.together("wrong", linalg.WRONG, ids=[wrong.match[:30] for wrong in linalg.WRONG])
def test_functions_refuse_arrays_with_the_same_words(wrong: Wrong) -> None:
    if any(spec.dtype == "float16" for spec in wrong.specs):
        pytest.skip("arrays of linear algebra have no half precision")
    with pytest.raises(wrong.error, match=wrong.match):
        wrong.what(*(xp.ones(spec.shape, dtype=getattr(xp, spec.dtype.name)) for spec in wrong.specs))
