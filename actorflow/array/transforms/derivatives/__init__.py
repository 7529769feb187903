"""Gradients of operations on arrays: a rule for each, and the way back through records.

`rule` registers another one; `pull_back` walks.
"""

from actorflow.array.transforms.derivatives import arranging, elementwise, fourier, matrices, products, statistics
from actorflow.array.transforms.derivatives.backward import depends, pull_back
from actorflow.array.transforms.derivatives.rules import Application, fit, known_rules, outputs_of, rule, rule_of

__all__ = [
    "Application",
    "arranging",
    "depends",
    "elementwise",
    "fit",
    "fourier",
    "known_rules",
    "matrices",
    "outputs_of",
    "products",
    "pull_back",
    "rule",
    "rule_of",
    "statistics",
]
