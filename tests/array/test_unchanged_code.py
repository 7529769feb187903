"""Functions of scikit-learn and SciPy, which know nothing of this package, on its arrays."""

from importlib.util import find_spec

import pytest

from tests.support.effort import slow
from tests.support.warm import run_program

BEGIN = """
import numpy as np
import actorflow.array as xp

rng = np.random.default_rng(0)
a, b = rng.random((50, 4)), rng.random((50, 4))
x, y = xp.asarray(a), xp.asarray(b)


def same(found, expected):
    assert isinstance(found, xp.Array), type(found)
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-12)
"""
OF_SCIKIT_LEARN = """
import sklearn
from sklearn.metrics import accuracy_score, mean_squared_error, r2_score
from sklearn.preprocessing import MinMaxScaler, StandardScaler

with sklearn.config_context(array_api_dispatch=True):
    same(StandardScaler().fit_transform(x), StandardScaler().fit_transform(a))
    same(MinMaxScaler().fit_transform(x), MinMaxScaler().fit_transform(a))
    assert abs(float(mean_squared_error(x, y)) - float(mean_squared_error(a, b))) < 1e-12
    assert abs(float(r2_score(x, y)) - float(r2_score(a, b))) < 1e-12
    labels, guesses = (a[:, 0] > 0.5).astype(int), (b[:, 0] > 0.5).astype(int)
    assert float(accuracy_score(xp.asarray(labels), xp.asarray(guesses))) == accuracy_score(labels, guesses)
"""
OF_SCIPY = """
from scipy.special import expit, logsumexp

same(logsumexp(x, axis=1), logsumexp(a, axis=1))
same(expit(x), expit(a))
"""
OF_STATISTICS = """
from scipy.stats import gmean, zmap

same(gmean(x, axis=0), gmean(a, axis=0))
same(zmap(x, y), zmap(a, b))
"""


@pytest.mark.parametrize(
    ("module", "program"),
    [("scipy", OF_SCIPY), *slow([("scipy", OF_STATISTICS), ("sklearn", OF_SCIKIT_LEARN)])],
    ids=["special", "statistics", "scikit-learn"],
)
def test_scipy_and_scikit_learn_run_unchanged(module: str, program: str) -> None:
    if find_spec(module) is None:
        pytest.skip("scikit-learn is not installed: pip install 'actorflow[demo]'")
    # SciPy looks at this when it is imported.
    done = run_program("-c", BEGIN + program, environment={"SCIPY_ARRAY_API": "1"})
    assert (done.returncode, done.stderr) == (0, "")
