"""Classes as attrs makes them, at a fraction of what that costs.

There are hundreds and every start makes them anew. attrs writes and compiles functions for each; here all share their
comparison, hash and repr, and a constructor is compiled for classes that have more than a few values. attrs and cattrs
take them for their own. What only attrs can do (validators, converters) is refused: use `attrs.frozen` for that.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from inspect import get_annotations
from operator import attrgetter
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from attrs import AttrsInstance
    from attrs import define as define
    from attrs import field as field
    from attrs import frozen as frozen

T = TypeVar("T", bound="AttrsInstance")

NOTHING: Any = type("Nothing", (), {"__slots__": (), "__repr__": lambda _: "NOTHING"})()
"""Instead of a default: there is none."""
FEW = 12
"""Values that are cheaper to fill than a constructor is to compile."""


_NONE: Mapping[str, Any] = MappingProxyType({})


class Field:
    """What was said about one field of a class; `alias` is its name in the constructor."""

    __slots__ = ("alias", "default", "eq", "factory", "init", "kw_only", "metadata", "name", "repr", "type")

    def __init__(
        self,
        *,
        default: Any = NOTHING,
        factory: Callable[[], Any] | None = None,
        init: bool = True,
        repr: bool = True,  # noqa: A002 (attrs' word)
        eq: bool = True,
        kw_only: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        if repr not in (True, False) or eq not in (True, False):
            raise TypeError("a field is shown and compared as it is, or not at all")
        if factory is not None and default is not NOTHING:
            raise TypeError("a field has a default or makes one, not both")
        self.name = self.alias = ""
        self.type: Any = None
        self.default, self.factory = default, factory
        self.init, self.repr, self.eq, self.kw_only = init, repr, eq, kw_only
        self.metadata = _NONE if metadata is None else metadata


if not TYPE_CHECKING:
    field = Field

    def frozen(cls: type | None = None, /, **options: bool) -> Any:
        """As `attrs.frozen`: what the class has written itself stays, and `eq=False` means identity."""
        return _made(cls, _FROZEN, **options) if cls else lambda cls: _made(cls, _FROZEN, **options)

    def define(cls: type | None = None, /, **options: bool) -> Any:
        """As `attrs.define`: fields may be changed, so that nothing that is compared by them has a hash."""
        return _made(cls, _OPEN, **options) if cls else lambda cls: _made(cls, _OPEN, **options)


def fields(cls: type) -> tuple[Field, ...]:
    """As `attrs.fields`: those of its bases first."""
    found: tuple[Field, ...] = cls.__fields__  # type: ignore[attr-defined]
    return found


def is_value(kind: Any) -> bool:
    """True for a class that was made here."""
    return isinstance(kind, type) and hasattr(kind, "__fields__")


def resolve_types(cls: type) -> None:
    """Types that stand as text, since they name what did not exist yet, become what they name."""
    for each in fields(cls):
        if isinstance(each.type, str):
            each.type = eval(each.type, vars(sys.modules[cls.__module__]))  # our own source, read as Python would


def changed(value: T, /, **those: Any) -> T:
    """As `attrs.evolve`, without asking attrs about the class: no default is made once more."""
    made: T = object.__new__(type(value))
    for name, fill in _places(type(value)):
        fill(made, those.pop(name) if name in those else getattr(value, name))
    if those:
        raise TypeError(f"{type(value).__qualname__} has no {', '.join(those)}")
    return made


# ── making a class ──────────────────────────────────────────────────────────────────────────────────────────────────


def _made(cls: type, kind: Mapping[str, Any], *, kw_only: bool = False, eq: bool = True, repr: bool = True) -> type:  # noqa: A002 (attrs' word)
    """The class once more: slots are given to a class when it is made, or never."""
    _require_plain(cls)
    own = {each.name: each for each in _own_fields(cls, kw_only=kw_only)}
    inherited = {each.name: each for base in reversed(cls.__mro__) for each in base.__dict__.get("__fields__", ())}
    every = (*(each for name, each in inherited.items() if name not in own), *own.values())
    _require_order(cls, every)
    body: dict[str, Any] = dict(kind)
    if repr:
        body["__repr__"] = _repr
    if not eq or "__eq__" in cls.__dict__:  # whoever writes __eq__ alone has __hash__ = None in its dictionary
        del body["__eq__"], body["__hash__"]
    body |= {name: what for name, what in cls.__dict__.items() if name not in own and name not in _OF_THE_FIRST}
    body["__qualname__"] = cls.__qualname__
    body["__fields__"] = every
    body["__match_args__"] = tuple(each.name for each in every if each.init and not each.kw_only)
    body["__slots__"] = [name for name in own if name not in inherited]
    if not any(base.__weakrefoffset__ for base in cls.__bases__):
        body["__slots__"].append("__weakref__")
    made = type(cls)(cls.__name__, cls.__bases__, body)
    if "__init__" not in body:
        made.__init__ = _first_init(made)  # type: ignore[misc]
    return made


def _own_fields(cls: type, *, kw_only: bool) -> Iterator[Field]:
    for name, kind in get_annotations(cls).items():
        if kind is ClassVar or getattr(kind, "__origin__", None) is ClassVar:
            continue
        default = cls.__dict__.get(name, NOTHING)
        if default is not NOTHING and type(default).__module__.partition(".")[0] == "attr":
            raise TypeError(f"{cls.__qualname__}.{name}: what attrs describes, attrs makes; use ductile.values.field")
        each = default if isinstance(default, Field) else Field(default=default)
        each.name, each.alias, each.type = name, name.lstrip("_"), kind
        each.kw_only = each.kw_only or kw_only
        yield each


def _require_plain(cls: type) -> None:
    """What attrs would do and is not done here is refused, so that nobody relies on it."""
    if issubclass(cls, BaseException):
        raise TypeError(f"{cls.__qualname__}: an exception is no value; use attrs.frozen")
    for base in cls.__mro__:
        if "__attrs_attrs__" in base.__dict__ and "__fields__" not in base.__dict__:
            raise TypeError(f"{cls.__qualname__}: what extends a class of attrs is one; use attrs.frozen")
    for name, what in cls.__dict__.items():
        if name == "__attrs_post_init__" or (isinstance(what, _METHODS) and _knows_its_class(what)):
            raise TypeError(f"{cls.__qualname__}: a value has no super() and no __attrs_post_init__; use attrs.frozen")


_METHODS = (FunctionType, property, classmethod, staticmethod)


def _knows_its_class(method: Any) -> bool:
    """Whether a function behind the method, whatever kind of method it is, names the class it was written in."""
    inner = (method, *(getattr(method, name, None) for name in ("fget", "fset", "__func__")))
    return any("__class__" in each.__code__.co_freevars for each in inner if type(each) is FunctionType)


def _require_order(cls: type, every: Iterable[Field]) -> None:
    """Refused at once, and not when a constructor is compiled."""
    optional = ""
    for each in every:
        if each.init and not each.kw_only:
            if each.factory is not None or each.default is not NOTHING:
                optional = each.name
            elif optional:
                raise TypeError(f"{cls.__qualname__}.{each.name}: must be given, but stands behind {optional}")


def _first_init(cls: Any) -> Callable[..., None]:
    """The constructor of the first values. Most classes have few, and to fill those is cheaper than to compile."""
    left = FEW

    def init(self: object, *args: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0 or not _filled(self, fields(cls), args, named):
            cls.__init__ = _constructor(cls)
            cls.__init__(self, *args, **named)

    return init


def _filled(self: object, every: tuple[Field, ...], args: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """False if that is not what the constructor takes: it has the words for what is wrong."""
    at, by_name = 0, 0
    for each in every:
        if each.init and not each.kw_only and at < len(args):
            value, at = args[at], at + 1
        elif each.init and each.alias in named:
            value, by_name = named[each.alias], by_name + 1
        elif each.factory is not None:
            value = each.factory()
        elif each.default is not NOTHING:
            value = each.default
        elif each.init:
            return False
        else:
            continue
        object.__setattr__(self, each.name, value)
    return at == len(args) and by_name == len(named)


def _constructor(cls: Any) -> Callable[..., None]:
    """`__init__` as one would write it by hand, for many values."""
    given, named, body = ["self"], ["*"], ["pass"]
    scope: dict[str, Any] = {"NOTHING": NOTHING}
    takes_changes = cls.__setattr__ is object.__setattr__
    for number, each in enumerate(fields(cls)):
        if not takes_changes:
            scope[f"_set{number}"] = getattr(cls, each.name).__set__
        value = each.alias if each.init else f"_default{number}"
        if each.factory is not None:
            scope[f"_make{number}"], scope[f"_default{number}"] = each.factory, NOTHING
            value = f"_make{number}() if {value} is NOTHING else {value}"
        elif each.default is not NOTHING:
            scope[f"_default{number}"] = each.default
        elif not each.init:
            continue
        body.append(f"self.{each.name} = {value}" if takes_changes else f"_set{number}(self, {value})")
        if each.init:
            default = f"=_default{number}" if f"_default{number}" in scope else ""
            (named if each.kw_only else given).append(f"{each.alias}{default}")
    takes = ", ".join(given + (named if len(named) > 1 else []))
    exec(f"def __init__({takes}):\n " + "\n ".join(body), scope)
    made: FunctionType = scope["__init__"]
    made.__module__, made.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    return made


class _ForAttrs:
    """`__attrs_attrs__`, by which attrs and cattrs know a class and its fields: made for who asks, and few do."""

    def __get__(self, _: object, cls: Any) -> Any:
        import attrs

        described = {each.name: _in_words_of_attrs(each) for each in fields(cls)}
        cls.__attrs_attrs__ = attrs.fields(attrs.make_class(cls.__name__, described, eq=False, repr=False))
        return cls.__attrs_attrs__


def _in_words_of_attrs(each: Field) -> Any:
    import attrs

    has_default = {"factory": each.factory} if each.factory else {"default": each.default}
    return attrs.field(
        **(has_default if each.factory or each.default is not NOTHING else {}),
        init=each.init,
        repr=each.repr,
        eq=each.eq,
        kw_only=each.kw_only,
        metadata=dict(each.metadata),
        type=each.type,
    )


# ── what all of them share ──────────────────────────────────────────────────────────────────────────────────────────


def _is_same(self: "AttrsInstance", other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    compared = _compared(type(self))
    return compared(self) == compared(other)


def _hash(self: "AttrsInstance") -> int:
    return hash((type(self), _compared(type(self))(self)))


def _repr(self: "AttrsInstance") -> str:
    shown = ((each.name, getattr(self, each.name, NOTHING)) for each in fields(type(self)) if each.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in shown)})"


def _refuse_change(self: object, name: str, value: Any = None) -> None:
    from attrs.exceptions import FrozenInstanceError

    raise FrozenInstanceError


def _state(self: "AttrsInstance") -> dict[str, Any]:
    return {name: getattr(self, name) for name in _names(type(self))}


def _take_state(self: object, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        object.__setattr__(self, name, value)


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(cls))


@cache
def _places(cls: type) -> tuple[tuple[str, Callable[[object, Any], None]], ...]:
    """Every field with what fills it, also in a value that is frozen."""
    return tuple((name, getattr(cls, name).__set__) for name in _names(cls))


@cache
def _compared(cls: type) -> Callable[[object], Any]:
    names = [each.name for each in fields(cls) if each.eq]
    return attrgetter(*names) if names else lambda _: ()


_OF_THE_FIRST = ("__dict__", "__weakref__")
_OPEN = {
    "__eq__": _is_same,
    "__hash__": None,
    "__getstate__": _state,
    "__setstate__": _take_state,
    "__attrs_attrs__": _ForAttrs(),
}
_FROZEN = {**_OPEN, "__hash__": _hash, "__setattr__": _refuse_change, "__delattr__": _refuse_change}
