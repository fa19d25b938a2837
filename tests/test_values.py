"""Values compare, hash and print as those of attrs do, which are the oracle here."""

import copy
import importlib
import pickle
import pkgutil
import re
from typing import Any

import attrs
import pytest
from attrs import evolve

import ductile
from ductile.values import FEW, Field, changed, define, field, frozen, is_value


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


@define
class Count:
    number: int
    _seen: list[int] = field(factory=list)
    limit: int = field(default=9, init=False)


def test_what_is_defined_may_change_and_has_no_hash() -> None:
    count = Count(1, seen=[2])
    count.number += 1
    assert count == Count(2, [2])
    assert (count.limit, count._seen) == (9, [2])
    with pytest.raises(TypeError, match="unhashable"):
        hash(count)
    with pytest.raises(AttributeError):
        count.other = 2  # type: ignore[attr-defined]


def test_each_value_has_its_own_of_what_a_factory_makes() -> None:
    assert Count(1)._seen is not Count(1)._seen


@pytest.fixture(params=[0, FEW + 1], ids=["first", "later"])
def kind(request: pytest.FixtureRequest) -> Any:
    """A class that has no value yet, and one with so many that its constructor is compiled."""

    @define
    class Kind:
        x: int
        _y: int = 2
        z: list[int] = field(factory=list)

    for number in range(request.param):
        Kind(number)
    return Kind


def test_the_first_values_are_made_like_those_that_follow(kind: Any) -> None:
    assert repr(kind(1)) == "kind.<locals>.Kind(x=1, _y=2, z=[])"
    assert kind(1, 3, [4]) == kind(z=[4], y=3, x=1)


@pytest.mark.parametrize(
    ("args", "named", "words"),
    [
        ((), {}, "missing 1 required positional argument: 'x'"),
        ((1, 2, [], 4), {}, "takes from 2 to 4 positional arguments but 5 were given"),
        ((1,), {"x": 1}, "got multiple values for argument 'x'"),
        ((1,), {"nose": 1}, "got an unexpected keyword argument 'nose'"),
        ((1,), {"_y": 1}, "got an unexpected keyword argument '_y'"),
    ],
)
def test_what_no_value_can_be_made_of_is_told_in_the_words_of_python(
    kind: Any, args: tuple[Any, ...], named: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(f"Kind.__init__() {words}")):
        kind(*args, **named)


def test_attrs_takes_a_value_for_its_own() -> None:
    """Also cattrs, which goes by the same fields."""
    theirs = attrs.fields(Noted)
    assert [(each.name, each.type, each.kw_only) for each in theirs] == [
        ("name", str, True),
        ("note", str, True),
        ("made", int, True),
    ]
    assert repr(theirs.name.default) == "NOTHING"
    assert (theirs.note.default, theirs.note.repr, theirs.made.eq) == ("", False, False)
    assert attrs.has(Point)
    assert attrs.asdict(Further(1)) == {"x": 1, "y": 0, "z": 0}
    assert attrs.fields(Count)._seen.alias == "seen"


def test_a_class_of_attrs_may_extend_a_value_but_not_the_other_way_round() -> None:
    theirs = attrs.frozen(type("Theirs", (Point,), {"__annotations__": {"z": int}, "z": 3}))
    assert repr(theirs(1)) == "Theirs(x=1, y=0, z=3)"
    with pytest.raises(TypeError, match="Odd: what extends a class of attrs is one"):
        frozen(type("Odd", (theirs,), {"__annotations__": {"a": int}}))


def test_cases_can_take_a_value_apart() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
        case _:
            pytest.fail("it is a point")


@pytest.mark.parametrize("said", [{"repr": lambda _: "hidden"}, {"eq": str.lower}], ids=["repr", "eq"])
def test_a_field_is_shown_and_compared_as_it_is_or_not_at_all(said: dict[str, Any]) -> None:
    """A field that hides its value by a function of its own must not show it without a word."""
    with pytest.raises(TypeError, match="as it is, or not at all"):
        field(**said)


@pytest.mark.parametrize(
    "said",
    [{"hash": False}, {"validator": print}, {"converter": int}, {"on_setattr": print}],
    ids=lambda said: str(*said),
)
def test_what_only_attrs_could_do_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        field(**said)


def test_a_field_that_attrs_describes_is_refused() -> None:
    """Its default would be the description."""
    with pytest.raises(TypeError, match=r"Odd\.x: .*use ductile\.values\.field"):
        frozen(type("Odd", (), {"__annotations__": {"x": str}, "x": attrs.field(default="")}))


def test_a_class_that_is_made_once_more_cannot_ask_for_its_bases() -> None:
    class Odd(Point):
        def __repr__(self) -> str:
            return super().__repr__()

    with pytest.raises(TypeError, match=r"Odd: a value has no super\(\)"):
        frozen(Odd)


def test_no_class_of_attrs_takes_our_description_for_a_default() -> None:
    """Who makes a class with attrs describes its fields with attrs: ours would be the value of every one of them."""
    for room in pkgutil.walk_packages(ductile.__path__, "ductile."):
        for each in vars(importlib.import_module(room.name)).values():
            if isinstance(each, type) and attrs.has(each) and not is_value(each):
                assert not [one.name for one in attrs.fields(each) if isinstance(one.default, Field)], each


def test_an_exception_is_no_value() -> None:
    with pytest.raises(TypeError, match=r"use attrs\.frozen"):
        frozen(type("Odd", (Exception,), {"__annotations__": {"x": str}}))


def test_a_field_that_must_be_given_cannot_stand_behind_one_that_need_not() -> None:
    """Said when the class is made, and not by the first constructor that is compiled."""
    with pytest.raises(TypeError, match="first"):

        @frozen
        class Backwards:
            first: int = 1
            second: int  # type: ignore[misc]


def test_a_field_has_one_default() -> None:
    with pytest.raises(TypeError, match="not both"):
        field(default=1, factory=int)


def test_no_kind_of_method_can_ask_for_its_bases() -> None:
    """`super()` would ask a class that is no more: in a property as well as in a method."""
    with pytest.raises(TypeError, match="super"):

        @define
        class Shown:
            first: int = 0

            @property
            def shown(self) -> str:
                return super().__repr__()
