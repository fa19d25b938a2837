"""Plain YAML values → section classes, as cheaply as a configuration that is sound allows.

Works on marked nodes. Stops at the first thing that is wrong: then `complaints` reads it again, and tells all of it.
Knows types and rules, not what the sections mean; rules that span sections are the doctor's.
"""

from functools import cache
from typing import Any

from ductile.config.hooks import FACTORIES, SCALARS, Hook, members_of, yaml_names
from ductile.config.sections import Settings
from ductile.strict_yaml import Node
from ductile.values import fields, is_value


def structure(root: Node) -> Settings:
    """The settings that `root` spells out; ConfigInvalid lists everything that is wrong with it."""
    try:
        settings: Settings = read(root, Settings)
    except Exception:  # whatever it is, the one who collects complaints decides and tells it
        from ductile.config.complaints import structure_or_complain

        return structure_or_complain(root)
    return settings


def read(node: Node, kind: Any) -> Any:
    """The value of this kind that `node` spells out; an exception of any type if it does not."""
    return hook_of(kind)(node, kind)


@cache
def hook_of(kind: Any) -> Hook:
    """How a value of this kind is read."""
    if is_value(kind):
        return _class_hook(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    return next(factory(kind, hook_of) for fits, factory in FACTORIES if fits(kind))


def _class_hook(cls: Any) -> Hook:
    @cache
    def keys() -> dict[str, tuple[str, Any, Hook]]:  # made when needed: a step holds steps, and most texts few sections
        names = yaml_names(cls)
        return {names[field.name]: (field.alias, field.type, hook_of(field.type)) for field in fields(cls)}

    def build(node: Node, _: Any) -> Any:
        known, values = keys(), {}
        for name, member in members_of(node).items():
            alias, kind, hook = known[name]  # KeyError: nobody knows this key
            values[alias] = hook(member, kind)
        return cls(**values)  # TypeError: a key is missing

    return build
