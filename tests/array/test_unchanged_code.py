"""Functions of scikit-learn and SciPy, which know nothing of this package, on its arrays."""

import pytest

from tests.support.warm import run_program

PROGRAM = """
import numpy as np
import sklearn
from scipy.special import expit, logsumexp
from scipy.stats import zmap, gmean
from sklearn.metrics import accuracy_score, mean_squared_error, r2_score
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import actorflow.array as xp
from tests.support.warm import run_program

rng = np.random.default_rng(0)
a, b = rng.random((50, 4)), rng.random((50, 4))
x, y = xp.asarray(a), xp.asarray(b)


def same(found, expected):
    assert isinstance(found, xp.Array), type(found)
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-12)


with sklearn.config_context(array_api_dispatch=True):
    same(StandardScaler().fit_transform(x), StandardScaler().fit_transform(a))
    same(MinMaxScaler().fit_transform(x), MinMaxScaler().fit_transform(a))
    assert abs(float(mean_squared_error(x, y)) - float(mean_squared_error(a, b))) < 1e-12
    assert abs(float(r2_score(x, y)) - float(r2_score(a, b))) < 1e-12
    labels, guesses = (a[:, 0] > 0.5).astype(int), (b[:, 0] > 0.5).astype(int)
    assert float(accuracy_score(xp.asarray(labels), xp.asarray(guesses))) == accuracy_score(labels, guesses)
same(logsumexp(x, axis=1), logsumexp(a, axis=1))
same(expit(x), expit(a))
same(gmean(x, axis=0), gmean(a, axis=0))
same(zmap(x, y), zmap(a, b))
print("unchanged")
"""


def test_scikit_learn_and_scipy_run_unchanged() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'actorflow[demo]'")
    # SciPy looks at this when it is imported.
    done = run_program("-c", PROGRAM, environment={"SCIPY_ARRAY_API": "1"})
    assert done.stdout.strip() == "unchanged", done.stderr
