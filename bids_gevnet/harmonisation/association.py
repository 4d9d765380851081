r"""How strongly site and diagnosis, or site and a number, are associated.

Cramér's V with the bias correction of Bergsma (2013). For a table of n people, r rows and c
columns, with :math:`\varphi^2 = \chi^2 / n`,

.. math:: V = \sqrt{\frac{\max\bigl(0, \varphi^2 - (r - 1)(c - 1) / (n - 1)\bigr)}
                         {\min(\tilde r, \tilde c) - 1}},
          \qquad \tilde r = r - \frac{(r - 1)^2}{n - 1}.

Without the correction, unrelated categories of a small sample seem related. Of a number and k
categories, the correlation ratio with the same aim, from the share of variance between categories
:math:`\eta^2`:

.. math:: \sqrt{\max\bigl(0, 1 - (1 - \eta^2) (n - 1) / (n - k)\bigr)}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def cross_table(first: Sequence[str], second: Sequence[str]) -> NDArray[np.intp]:
    """Count how often each pair of categories occurs: (n_first, n_second) array.

    Examples
    --------
    >>> cross_table(["A", "A", "B"], ["x", "y", "y"]).tolist()
    [[1, 1], [0, 1]]
    """
    rows, columns = sorted(set(first)), sorted(set(second))
    counts = np.zeros((len(rows), len(columns)), np.intp)
    for row, column in zip(first, second, strict=True):
        counts[rows.index(row), columns.index(column)] += 1
    return counts


def cramers_v(counts: NDArray[np.intp]) -> float | None:
    """Association of the rows and columns of a table, corrected for bias.

    Parameters
    ----------
    counts : (n_rows, n_columns) array of int

    Returns
    -------
    association : float or None
        From 0 (none) to 1 (one determines the other); None where fewer than two rows or columns
        hold anybody, or too few people are counted to tell.

    Examples
    --------
    >>> cramers_v(np.array([[25, 25], [25, 25]]))
    0.0
    >>> cramers_v(np.array([[50, 0], [0, 50]]))
    1.0
    """
    table = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0].astype(float)
    n, (rows, columns) = table.sum(), table.shape
    if min(rows, columns) < 2 or n < 2:
        return None
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / n
    phi2 = ((table - expected) ** 2 / expected).sum() / n
    corrected = max(0.0, phi2 - (rows - 1) * (columns - 1) / (n - 1))
    fewest = min(rows - (rows - 1) ** 2 / (n - 1), columns - (columns - 1) ** 2 / (n - 1)) - 1
    return float(min(1.0, np.sqrt(corrected / fewest))) if fewest > 0 else None


def correlation_ratio(categories: Sequence[str], numbers: Sequence[float]) -> float | None:
    """Association of a number with categories, corrected for bias.

    Parameters
    ----------
    categories : sequence of str
    numbers : sequence of float

    Returns
    -------
    association : float or None
        From 0 (none) to 1 (the category determines the number); None where there are fewer than
        two categories, or too few people to tell.

    Examples
    --------
    >>> correlation_ratio(["A", "A", "B", "B"], [1.0, 1.0, 2.0, 2.0])
    1.0
    >>> correlation_ratio(["A", "B"] * 2, [1.0, 1.0, 2.0, 2.0])
    0.0
    """
    values, names = np.asarray(numbers, dtype=np.float64), np.asarray(categories, dtype=str)
    kinds = np.unique(names)
    total = float(np.square(values - values.mean()).sum()) if len(values) else 0.0
    if len(kinds) < 2 or len(values) <= len(kinds) or total == 0:
        return None
    within = sum(
        float(np.square(values[names == k] - values[names == k].mean()).sum()) for k in kinds
    )
    unexplained = within / total * (len(values) - 1) / (len(values) - len(kinds))
    return float(np.sqrt(max(0.0, 1 - unexplained)))
