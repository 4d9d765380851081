"""Take a part of very many things, spread evenly over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


def at_equal_steps(items: Sequence[T], most: int) -> list[T]:
    """Choose so many at equal steps, the first among them; all, if there are not more.

    Examples
    --------
    >>> at_equal_steps("abcdef", 3)
    ['a', 'c', 'e']
    """
    steps = range(min(most, len(items)))
    return [items[step * len(items) // len(steps)] for step in steps]
