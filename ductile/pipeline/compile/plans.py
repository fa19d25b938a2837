"""The plans of a configuration, indexed by trigger.

Separate from `plan`, so that a configuration without pipelines does not import the pipeline language.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

from ductile.core.errors import NotFound, did_you_mean

if TYPE_CHECKING:
    from ductile.pipeline.compile.plan import Plan


@frozen(eq=False)
class Plans:
    """All plans, by name and by trigger, in the order of the configuration."""

    by_name: Mapping[str, "Plan"] = field(factory=dict)
    by_event: Mapping[str, tuple["Plan", ...]] = field(factory=dict)
    by_hook: Mapping[str, tuple["Plan", ...]] = field(factory=dict)

    def require(self, name: str) -> "Plan":
        """Return the plan with this name. Raises NotFound."""
        if name in self.by_name:
            return self.by_name[name]
        raise NotFound(
            f"pipeline {name!r} does not exist{did_you_mean(name, self.by_name)}",
            hint=f"Known pipelines: {', '.join(sorted(self.by_name)) or 'none'}.",
        )

    def for_event(self, event_type: str) -> "tuple[Plan, ...]":
        return self.by_event.get(event_type, ())

    def for_hook(self, signal: str) -> "tuple[Plan, ...]":
        return self.by_hook.get(signal, ())
