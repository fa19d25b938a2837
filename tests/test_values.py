"""Values compare, hash and print as those of attrs do, which are the oracle here."""

import copy
import pickle
from typing import Any

import attrs
import pytest
from attrs import evolve, field

from ductile.values import changed, frozen


@frozen
class Point:
    x: int
    y: Any = 0


@frozen(kw_only=True)
class Noted:
    name: str
    note: str = field(default="", repr=False)
    made: int = field(default=0, eq=False)


@frozen(eq=False)
class Itself:
    x: int = 0


@frozen
class Empty:
    pass


@frozen
class Own:
    x: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


@frozen
class Unhashable:
    x: int

    def __eq__(self, other: object) -> bool:
        return True


@frozen
class Further(Point):
    z: int = 0


def test_values_with_equal_fields_are_equal_and_have_one_hash() -> None:
    assert Point(1, 2) == Point(1, 2)
    assert Point(1, 2) != Point(1, 3)
    assert len({Point(1), Point(1), Point(2)}) == 2
    assert Empty() == Empty()
    assert {Empty(): 1}[Empty()] == 1


def test_values_of_different_classes_differ_whatever_they_hold() -> None:
    assert Point(0, 0) != Further(0, 0, 0)
    others: list[object] = [(0, 0), Noted(name="a"), None]
    assert Point(0, 0) not in others


def test_a_field_can_be_left_out_of_the_comparison_and_out_of_the_repr() -> None:
    assert Noted(name="a", made=1) == Noted(name="a", made=2)
    assert Noted(name="a", note="x") != Noted(name="a", note="y")
    assert repr(Noted(name="a", note="secret")) == "Noted(name='a', made=0)"


def test_a_class_that_asks_for_it_is_equal_to_itself_only() -> None:
    one = Itself()
    assert one == one
    assert one != Itself()
    assert len({one, Itself()}) == 2


def test_what_a_class_writes_itself_stays() -> None:
    assert (Own(1) == Own(2), hash(Own(1)), repr(Own(1))) == (True, 7, "own")
    with pytest.raises(TypeError, match="unhashable"):
        hash(Unhashable(1))


def test_a_value_with_an_unhashable_field_has_no_hash() -> None:
    assert Point(1, []) == Point(1, [])
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1, []))


def test_the_repr_is_that_of_attrs() -> None:
    theirs = attrs.frozen(type("Point", (), {"__annotations__": {"x": int, "y": Any}, "__qualname__": "Point"}))
    assert repr(Point(1, "a")) == repr(theirs(1, "a"))
    assert repr(Further(1)) == "Further(x=1, y=0, z=0)"


def test_nobody_changes_a_value() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Point(1).x = 2  # type: ignore[misc]
    assert evolve(Point(1), y=5) == Point(1, 5)
    with pytest.raises(AttributeError):
        Point(1).other = 2  # type: ignore[attr-defined]


def test_copies_are_equal() -> None:
    assert copy.deepcopy(Point(1, [2])) == Point(1, [2])
    assert pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)


def test_a_changed_value_is_the_same_but_for_what_was_changed() -> None:
    before = Noted(name="a", note="b", made=3)
    after = changed(before, note="c")
    assert after == evolve(before, note="c")
    assert (after.made, before.note) == (3, "b")
    with pytest.raises(TypeError, match="Noted has no nose"):
        changed(before, nose="d")


def test_cases_can_take_a_value_apart() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
        case _:
            pytest.fail("it is a point")


@pytest.mark.parametrize(
    "made",
    [
        {"x": field(repr=lambda _: "hidden")},
        {"x": field(eq=str.lower)},
        {"x": field(hash=False)},
    ],
    ids=["repr", "eq", "hash"],
)
def test_what_only_attrs_could_do_is_refused(made: dict[str, Any]) -> None:
    """A field that hides its value by a function of its own must not show it without a word."""
    with pytest.raises(TypeError, match=r"Odd\.x: a field is shown and compared as it is, or not at all"):
        frozen(type("Odd", (), {"__annotations__": {"x": str}, **made}))


def test_an_exception_is_no_value() -> None:
    with pytest.raises(TypeError, match=r"use attrs\.frozen"):
        frozen(type("Odd", (Exception,), {"__annotations__": {"x": str}}))
