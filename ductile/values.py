"""Frozen classes whose comparison, hash and repr go through their fields, by functions that all of them share.

attrs writes and compiles these for every class anew, and there are hundreds: that was a sixth of every start. What is
left to attrs is what depends on the class: its constructor, its slots, and that nobody changes it.
"""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

T = TypeVar("T", bound=attrs.AttrsInstance)

if TYPE_CHECKING:
    from attrs import frozen as frozen
else:

    def frozen(cls: type | None = None, /, *, eq: bool = True, repr: bool = True, **options: Any) -> Any:  # noqa: A002 (attrs' word)
        """As `attrs.frozen`: what the class has written itself stays, and `eq=False` means identity."""
        if cls is None:
            return lambda cls: frozen(cls, eq=eq, repr=repr, **options)
        written = set(cls.__dict__)
        shared = {"__eq__": _is_same, "__hash__": _hash} if eq and "__eq__" not in written else {}
        shared |= {"__repr__": _repr} if repr else {}
        made = attrs.frozen(cls, eq=False, repr=False, **options)
        _require_plain(made)
        for name, function in shared.items():
            # Whoever writes __eq__ alone has __hash__ = None in its dictionary.
            if name not in written:
                setattr(made, name, function)
        return made


def changed(value: T, /, **fields: Any) -> T:
    """As `attrs.evolve`, in a fifth of the time: nothing is checked or converted once more."""
    made: T = object.__new__(type(value))
    for name in _names(type(value)):
        object.__setattr__(made, name, fields.pop(name) if name in fields else getattr(value, name))
    if fields:
        raise TypeError(f"{type(value).__qualname__} has no {', '.join(fields)}")
    return made


def _require_plain(cls: type[attrs.AttrsInstance]) -> None:
    """What attrs would do and the shared functions do not is refused, so that nobody relies on it."""
    for each in attrs.fields(cls):
        if callable(each.repr) or each.eq_key is not None or each.hash is not None:
            raise TypeError(f"{cls.__qualname__}.{each.name}: a field is shown and compared as it is, or not at all")
    if issubclass(cls, BaseException):
        raise TypeError(f"{cls.__qualname__}: an exception is no value; use attrs.frozen")


def _is_same(self: attrs.AttrsInstance, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    compared = _compared(type(self))
    return compared(self) == compared(other)


def _hash(self: attrs.AttrsInstance) -> int:
    return hash((type(self), _compared(type(self))(self)))


def _repr(self: attrs.AttrsInstance) -> str:
    shown = ((each.name, getattr(self, each.name, attrs.NOTHING)) for each in attrs.fields(type(self)) if each.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in shown)})"


@cache
def _names(cls: type[attrs.AttrsInstance]) -> tuple[str, ...]:
    return tuple(each.name for each in attrs.fields(cls))


@cache
def _compared(cls: type[attrs.AttrsInstance]) -> Callable[[object], Any]:
    names = [each.name for each in attrs.fields(cls) if each.eq]
    return attrgetter(*names) if names else lambda _: ()
