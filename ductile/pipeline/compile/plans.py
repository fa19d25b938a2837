"""The plans of a configuration, by what starts them. Who has no pipeline does without `plan`, where a plan is told."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

from ductile.core.errors import NotFound, did_you_mean

if TYPE_CHECKING:
    from ductile.pipeline.compile.plan import Plan


@frozen(eq=False)
class Plans:
    """Every pipeline, by what starts it, in the order of the configuration."""

    by_name: Mapping[str, "Plan"] = field(factory=dict)
    by_event: Mapping[str, tuple["Plan", ...]] = field(factory=dict)
    by_hook: Mapping[str, tuple["Plan", ...]] = field(factory=dict)

    def named(self, name: str) -> "Plan":
        """The plan of that name; NotFound says which there are."""
        if name in self.by_name:
            return self.by_name[name]
        raise NotFound(
            f"there is no pipeline {name!r}{did_you_mean(name, self.by_name)}",
            hint=f"known: {', '.join(sorted(self.by_name)) or 'none'}",
        )

    def on(self, event_type: str) -> "tuple[Plan, ...]":
        return self.by_event.get(event_type, ())

    def on_hook(self, signal: str) -> "tuple[Plan, ...]":
        return self.by_hook.get(signal, ())
