"""Facts to JSON and back: nothing is lost, and what is wrong is left out and named."""

import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bids_gevnet import facts as package
from bids_gevnet.facts import (
    AcquisitionFacts,
    ConformFacts,
    CorrectionFacts,
    JoinFacts,
    ScanFacts,
    ScannerFacts,
    ShellFacts,
    SphereFacts,
)
from bids_gevnet.facts.json_form import Count, Facts, Fraction, Positive, Rows

CLASSES = [
    kind for kind in vars(package).values() if isinstance(kind, type) and issubclass(kind, Facts)
]
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values that a field of this type may have."""
    known = {Count: st.integers(0, 10**9), Positive: st.integers(1, 10**9),
             Fraction: st.floats(0, 1), str: st.text(max_size=20), bool: st.booleans(),
             float: NUMBERS,
             Rows: st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple)}  # fmt: skip
    if kind in known:
        return known[kind]
    arguments = get_args(kind)
    collections = {
        types.UnionType: lambda: st.none() | values_of(arguments[0]),
        typing.Union: lambda: st.none() | values_of(arguments[0]),
        Literal: lambda: st.sampled_from(arguments),
        tuple: lambda: st.lists(values_of(arguments[0]), max_size=2).map(tuple),
        Mapping: lambda: st.dictionaries(st.text(max_size=9), values_of(arguments[1]), min_size=1),
        None: lambda: facts_of(kind),
    }
    return collections[get_origin(kind)]()


def facts_of(kind: type[Facts]) -> st.SearchStrategy[Facts]:
    hints = typing.get_type_hints(kind, include_extras=True)
    named = {f.name: values_of(hints[f.name]) for f in fields(kind) if f.name != "unread"}
    return st.builds(kind, **named)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_goes_round(kind):
    @given(facts_of(kind))
    def check(facts):
        back, unread = kind.from_json(json.loads(json.dumps(facts.to_json())))
        assert back == facts
        assert unread == ()

    check()


@pytest.mark.parametrize("kind", CLASSES)
def test_every_field_says_what_it_is_in_its_class(kind):
    """The reference is generated from the docstrings."""
    _, _, attributes = kind.__doc__.partition("    Attributes\n")
    entry = re.compile(r"^    (\w[\w, ]*) : .+\n((?:        .+\n)+)", re.MULTILINE)
    described = {}
    for names, text in entry.findall(attributes):
        described |= dict.fromkeys(names.split(", "), text)
    assert list(described) == [f.name for f in fields(kind)]
    assert all(text.strip().endswith((".", ":")) for text in described.values())


WRONG: list[tuple[Any, Any]] = [
    (str, [3, 1.5, True, ["a"], {"a": 1}]),
    (bool, [0, 1, "yes", [], {}]),
    (float, ["1", True, float("nan"), float("inf"), 10**400, [1.0], {}]),
    (Count, [-1, 1.5, True, "3", [], {}]),
    (Positive, [0, -1, 2.0, False, "3"]),
    (Fraction, [-0.1, 1.1, "0.5", True, float("nan")]),
    (Rows, [3, "text", [1.0], [[1.0], [1.0, 2.0]], [["a"]], {}]),
    (Literal, ["another word", 3, None.__class__.__name__, ["eddy"], {}]),
    (tuple, [3, "text", {}, [{"a": 1}, object.__name__]]),
    (Mapping[str, Fraction], [3, "text", [], {"a": "x"}, {"a": 2.0}]),
    (Mapping[str, float], [3, "text", [], {"a": "x"}, {"a": float("inf")}]),
    (Facts, [3, "text", [], True]),
]


def bare(kind: Any) -> Any:
    """Return what WRONG lists under: without None, and the origin of a collection."""
    if get_origin(kind) in {types.UnionType, typing.Union}:
        return bare(get_args(kind)[0])
    if get_origin(kind) in {Annotated, Mapping}:
        return kind
    if isinstance(kind, type) and issubclass(kind, Facts):
        return Facts
    return get_origin(kind) or kind


def every_field() -> list[Any]:
    cases = []
    for kind in CLASSES:
        hints = typing.get_type_hints(kind, include_extras=True)
        for name in sorted(hints.keys() - {"unread", "__dataclass_fields__"}):
            values = next(values for known, values in WRONG if known == bare(hints[name]))
            cases += [pytest.param(kind, name, v, id=f"{kind.__name__}.{name}") for v in values]
    return cases


@pytest.mark.parametrize(("kind", "name", "value"), every_field())
def test_a_value_of_the_wrong_kind_is_left_out_and_named(kind, name, value):
    facts, unread = kind.from_json({name: value})
    assert unread, f"{name} = {value!r} was taken"
    assert all(sentence.startswith(name) for sentence in unread)
    left = {f.name: getattr(facts, f.name) for f in fields(kind)}
    empty = {f.name: getattr(kind(), f.name) for f in fields(kind)}
    if not isinstance(left[name], tuple | Facts):  # entries of these keep their places
        assert left == empty


def test_good_values_beside_a_wrong_one_stay():
    raw = {"nside": 4, "residual_rms": "high", "kernel": "spline", "smoothing": 0}
    facts, unread = SphereFacts.from_json(raw)
    assert facts == SphereFacts(nside=4, kernel="spline", smoothing=0.0)
    assert unread == ("residual_rms: a finite number was expected, found 'high'",)


def test_the_place_of_a_wrong_value_is_named():
    raw = {
        "correction": [{"method": "magic"}, {"outliers": [{"volume": 1}, {"volume": -1}]}],
        "acquisition": [{"scanner": {"field_strength_t": "strong"}}],
        "quality": {"gradient_checks": [{"outcome": "perhaps"}]},
    }
    facts = ScanFacts.read(raw)
    places = [sentence.split(":")[0] for sentence in facts.unread]
    assert places == [
        "correction[0].method",
        "correction[1].outliers[1].volume",
        "acquisition[0].scanner.field_strength_t",
        "quality.gradient_checks[0].outcome",
    ]
    assert (
        "one of eddy, model, ants, none, preprocessed was expected, found 'magic'"
        in facts.unread[0]
    )


def test_what_a_later_version_wrote_is_named_and_the_rest_is_read():
    facts = ScanFacts.read({"name": "sub-01", "spin": {"a": 1}, "mask": {"shape": 3}})
    assert facts.name == "sub-01"
    assert facts.unread == (
        "spin: not known to this version",
        "mask.shape: not known to this version",
    )


def test_runs_keep_their_places():
    # The second run must not be taken for the first when the first has no facts.
    facts = ScanFacts.read({"conform": [None, {"not_finite": 3}]})
    assert facts.conform == (ConformFacts(), ConformFacts(not_finite=3))
    assert facts.unread == ("conform[0]: an object was expected, found None",)


@pytest.mark.parametrize("raw", [None, [], "text", 3, True])
def test_no_object_at_all(raw):
    facts = ScanFacts.read(raw)
    assert replace(facts, unread=()) == ScanFacts()
    (sentence,) = facts.unread
    assert sentence.startswith("the facts: an object was expected")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([f.name for f in fields(ScanFacts)]), JSON))
def test_anything_can_be_read_and_what_was_read_goes_round(raw):
    facts = ScanFacts.read(raw)
    assert ScanFacts.read(facts.to_json()) == replace(facts, unread=())


def test_long_values_do_not_fill_the_report():
    facts = ScanFacts.read({"name": ["x" * 10_000], "y" * 10_000: 1})
    assert all(len(sentence) < 200 for sentence in facts.unread)


def test_what_is_not_known_is_not_written():
    assert ShellFacts().to_json() == {}
    assert JoinFacts(runs=0).to_json() == {"runs": 0}
    assert CorrectionFacts(eddy_currents=False, note="").to_json() == {"eddy_currents": False}
    assert "unread" not in ScanFacts(unread=("x",)).to_json()


@pytest.mark.parametrize("kind", CLASSES)
def test_facts_cannot_be_changed(kind):
    with pytest.raises(FrozenInstanceError):
        setattr(kind(), fields(kind)[0].name, "other")


def test_a_scanner_is_written_as_a_person_would():
    scanner = ScannerFacts(manufacturer="Siemens", model="Prisma", field_strength_t=3)
    assert str(scanner) == "Siemens, Prisma, 3 T"
    assert str(AcquisitionFacts().scanner) == ""
