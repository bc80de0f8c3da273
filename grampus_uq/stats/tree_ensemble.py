"""A sum of small decision trees as plain arrays, evaluated without scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.arrays import FloatArray, IntArray
from grampus_uq.stats.prefix_features import LARGEST
from grampus_uq.stats.stored_values import STORED

_Node = tuple[int, float, Any, Any]  # (feature, threshold, left, right); a leaf is a float in place of a node


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEnsemble:
    """`f(x) = baseline + sum over trees of the value of the leaf that x falls into`, added in the order of the trees.

    An inner node sends x left when `x[feature] <= threshold`. Nodes of all trees stand in one list, each tree's root
    first (`roots`), children after their parent.

    Attributes:
        baseline: the constant.
        roots: index of each tree's first node.
        feature: feature of an inner node, -1 for a leaf.
        threshold: within +-1e100; 0 for a leaf.
        left, right: indices of the children; 0 for a leaf.
        value: what a leaf adds, within +-1e100; 0 for an inner node.

    Raises:
        ConfigurationError: lists of unequal length, a child that does not come after its parent, a leaf or threshold
            beyond +-1e100, where sums could overflow.

    >>> stump = TreeEnsemble(baseline=0.5, roots=(0,), feature=(0, -1, -1), threshold=(0.2, 0.0, 0.0),
    ...                      left=(1, 0, 0), right=(2, 0, 0), value=(0.0, -1.0, 1.0))
    >>> evaluate_one(stump, [0.2]), evaluate_one(stump, [0.3])
    (-0.5, 1.5)
    """

    baseline: float
    roots: tuple[int, ...]
    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]
    nested: tuple[_Node | float, ...] = field(init=False, repr=False, compare=False)

    __pydantic_config__ = STORED

    def __post_init__(self) -> None:
        size = len(self.feature)
        if any(len(column) != size for column in (self.threshold, self.left, self.right, self.value)):
            raise ConfigurationError.of("value", "TreeEnsemble", f"as long as 'feature' ({size})", len(self.value))
        if not all(abs(x) <= LARGEST for x in (self.baseline, *self.threshold, *self.value)):
            rule = f"within +-{LARGEST:g}, as baseline and thresholds"
            raise ConfigurationError.of("value", "TreeEnsemble", rule, self.value)
        for parent, (feature, *children) in enumerate(zip(self.feature, self.left, self.right, strict=True)):
            if feature >= 0 and not all(parent < child < size for child in children):
                raise ConfigurationError.of("left", "TreeEnsemble", "a later node's index", children)
        if not all(0 <= root < size for root in self.roots):
            raise ConfigurationError.of("roots", "TreeEnsemble", f"in 0..{size - 1}", self.roots)
        object.__setattr__(self, "nested", self._nested())

    def _nested(self) -> tuple[_Node | float, ...]:
        """The trees as nested tuples, which a live step walks fast."""
        built: list[_Node | float] = [0.0] * len(self.feature)
        for node in range(len(self.feature) - 1, -1, -1):
            leaf = self.feature[node] < 0
            children = (built[self.left[node]], built[self.right[node]])
            built[node] = self.value[node] if leaf else (self.feature[node], self.threshold[node], *children)
        return tuple(built[root] for root in self.roots)


def evaluate_one(trees: TreeEnsemble, x: Sequence[float]) -> float:
    """Value for one row of features; bit for bit what `evaluate_many` gives for it."""
    total = trees.baseline
    for tree in trees.nested:
        node = tree
        while node.__class__ is tuple:
            feature, threshold, left, right = node
            node = left if x[feature] <= threshold else right
        total += node  # type: ignore[operator]  # what is not a tuple is a leaf
    return total


def evaluate_many(trees: TreeEnsemble, x: FloatArray) -> FloatArray:
    """Values for many rows: `x` of shape (features, rows), finite, a feature a line; returns shape (rows,)."""
    feature = np.asarray(trees.feature, dtype=np.intp)
    threshold, value = np.asarray(trees.threshold), np.asarray(trees.value)
    left, right = np.asarray(trees.left, dtype=np.intp), np.asarray(trees.right, dtype=np.intp)
    total = np.full(x.shape[1], trees.baseline)
    everyone = np.arange(x.shape[1])
    stack: list[tuple[int, IntArray]]
    for root in trees.roots:
        stack = [(root, everyone)]
        while stack:
            node, rows = stack.pop()
            if feature[node] < 0:
                total[rows] += value[node]
                continue
            goes_left = x[feature[node]][rows] <= threshold[node]
            stack.append((int(left[node]), rows[goes_left]))
            stack.append((int(right[node]), rows[~goes_left]))
    return total
