"""Gradients of operations on arrays: a rule for each, and the way back through records.

`rule` registers another one; `pull_back` walks.
"""

from actorflow.array.transforms.derivatives import statistics
from actorflow.array.transforms.derivatives.rules import (
    Application,
    depends,
    fit,
    known_rules,
    pull_back,
    rule,
    rule_of,
)

__all__ = ["Application", "depends", "fit", "known_rules", "pull_back", "rule", "rule_of"]
__all__ += ["statistics"]
