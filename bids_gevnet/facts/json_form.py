"""Facts to JSON and back.

The types of the fields decide what is accepted: text, numbers, flags, words from a list
(`Literal`), tuples, mappings and further facts. `Annotated[type, Check(...)]` adds a condition.
Whatever is of the wrong kind is left out, and a sentence names it, so that a report can be built
from a file of any version and after any accident and still say what it could not read.
"""

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

_LONGEST = 60
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a finite number"}


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on a value, and the words for it."""

    expected: str
    holds: Callable[[Any], bool]


Count = Annotated[int, Check("a whole number from 0 up", lambda value: value >= 0)]
Positive = Annotated[int, Check("a whole number from 1 up", lambda value: value >= 1)]
Fraction = Annotated[float, Check("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Rows = Annotated[
    tuple[tuple[float, ...], ...],
    Check("rows of one length", lambda rows: len({len(row) for row in rows}) <= 1),
]
"""A matrix as rows."""


class Facts:
    """What one stage did, as a frozen dataclass with a default for every field."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def to_json(self) -> dict[str, Any]:
        """Return plain values; what is not known is left out."""
        return {
            f.name: _plain(value)
            for f in fields(self)
            if f.metadata.get("in_json", True)
            and (value := getattr(self, f.name)) not in (None, "", (), {})
        }

    @classmethod
    def from_json(cls, raw: object) -> tuple[Self, tuple[str, ...]]:
        """Read plain values; return the facts and a sentence for each value left out.

        Parameters
        ----------
        raw : object
            Anything that JSON can hold.
        """
        unread: list[str] = []
        return _read_facts(cls, raw, "", unread), tuple(unread)


def outside_json() -> Any:
    """Declare a field that is not part of the JSON form."""
    return field(default=(), metadata={"in_json": False})


class _WrongKindError(ValueError):
    """A value is not what its field declares; the message says what was expected."""


def _plain(value: Any) -> Any:
    if isinstance(value, Facts):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


@cache
def _kinds(facts: "type[Facts]") -> Mapping[str, Any]:
    """Types of the fields that the JSON form has."""
    hints = typing.get_type_hints(facts, include_extras=True)
    return {f.name: hints[f.name] for f in fields(facts) if f.metadata.get("in_json", True)}


def _read_facts(facts: Any, raw: object, place: str, unread: list[str]) -> Any:
    if not isinstance(raw, Mapping):
        unread.append(_sentence(place or "the facts", "an object", raw))
        return facts()
    kinds = _kinds(facts)
    values = {}
    for name, value in raw.items():
        where = f"{place}.{name}" if place else str(name)
        if name not in kinds:
            unread.append(f"{_short(where)}: not known to this version")
        elif value is not None:
            try:
                values[name] = _read(value, kinds[name], where, unread)
            except _WrongKindError as error:
                unread.append(_sentence(where, str(error), value))
    return facts(**values)


def _read(value: Any, kind: Any, where: str, unread: list[str]) -> Any:
    """Turn a plain value into the kind a field declares, or raise with what was expected."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _read_checked(value, arguments, where, unread)
    if origin in {types.UnionType, typing.Union}:
        # Always "kind | None", and null has been left out before.
        return _read(value, arguments[0], where, unread)
    if origin in {tuple, Mapping}:
        return _read_collection(value, origin, arguments, where, unread)
    if isinstance(kind, type) and issubclass(kind, Facts):
        return _read_facts(kind, value, where, unread)
    return _read_scalar(value, kind)


def _read_collection(
    value: Any, origin: type, arguments: tuple[Any, ...], where: str, unread: list[str]
) -> Any:
    if origin is tuple:
        if not isinstance(value, list):
            raise _WrongKindError("a list")
        try:
            return tuple(
                _read(item, arguments[0], f"{where}[{i}]", unread) for i, item in enumerate(value)
            )
        except _WrongKindError as error:
            raise _WrongKindError(f"a list with {error} in every place") from None
    if not isinstance(value, Mapping):
        raise _WrongKindError("an object")
    return {
        str(key): _read(item, arguments[1], f"{where}.{key}", unread)
        for key, item in value.items()
    }


def _read_checked(value: Any, arguments: tuple[Any, ...], where: str, unread: list[str]) -> Any:
    kind, check = arguments
    try:
        result = _read(value, kind, where, unread)
    except _WrongKindError as error:
        raise _WrongKindError(check.expected if kind in (int, float) else str(error)) from None
    if not check.holds(result):
        raise _WrongKindError(check.expected)
    return result


def _read_scalar(value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise _WrongKindError(f"one of {', '.join(get_args(kind))}")
        return value
    if kind is float and type(value) is int:
        value = _to_float(value)
    right = type(value) is kind
    if kind is float:
        right = right and math.isfinite(value)
    if not right:
        raise _WrongKindError(_WORDS[kind])
    return value


def _to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _sentence(where: str, expected: str, value: object) -> str:
    return f"{_short(where)}: {expected} was expected, found {_short(repr(value))}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
