"""The play that is performed under torture: who takes part, which events go where, and the pipelines.

Written for an arena to build a configuration from. What has to come of it is told a second time, in `runs`, by hand.
"""

from collections.abc import Iterable
from pathlib import Path

from attrs import frozen


@frozen
class Role:
    """One plugin of the play: what it emits, how it misbehaves, and how often it is asked for over the API."""

    name: str
    emits: str | None = None
    count: int = 1
    items: int = 0
    """Its events carry a list of up to so many items, and whether they are `even`."""
    trouble: int = 0
    nap_ms: int = 0
    leaves_daemon: bool = False
    keeps_facts: bool = False
    notifies: bool = False
    every: str | None = None
    """It runs on a schedule, too."""
    if_running: str = "queue"
    """What its schedule does while an earlier job is not finished."""
    lingers_ms: int = 0
    """How long it takes to end when it is asked to; it tells when it does."""
    is_alone: bool = False
    """No other process of it may be at work; it tells if one is."""
    weight: int = 0
    timeout: str = "30s"

    def environment(self, effects: Path) -> dict[str, str]:
        asked = {
            "ACTOR_EFFECTS": str(effects),
            "ACTOR_EMITS": self.emits,
            "ACTOR_COUNT": str(self.count),
            "ACTOR_ITEMS": str(self.items),
            "ACTOR_TROUBLE": str(self.trouble),
            "ACTOR_NAP_MS": str(self.nap_ms),
            "ACTOR_DAEMON": "1" if self.leaves_daemon else None,
            "ACTOR_LINGERS_MS": str(self.lingers_ms) if self.lingers_ms else None,
            "ACTOR_ALONE": f"{effects}.{self.name}" if self.is_alone else None,
        }
        return {name: value for name, value in asked.items() if value is not None}


@frozen
class Script:
    """One pipeline of the play, as its author would write it, and how often a run is asked for without waiting."""

    name: str
    text: str
    uses: frozenset[str]
    """The plugins without which it cannot be performed."""
    calls: frozenset[str] = frozenset()
    weight: int = 0

    @property
    def is_synchronous(self) -> bool:
        return "execution_mode: synchronous" in self.text


ROLES = (
    Role("gather", emits="item.found", count=3, keeps_facts=True, weight=2),
    Role("refine", emits="item.refined", nap_ms=20, keeps_facts=True),
    Role("keep", weight=4),
    Role("flaky", trouble=35, nap_ms=10, timeout="400ms", notifies=True, weight=8),
    Role("slow", nap_ms=700, weight=1),
    Role("litter", leaves_daemon=True, nap_ms=30, weight=2),
    Role("tick", every="400ms"),
    Role("order", emits="order.placed", weight=1),
    Role("pick", emits="order.picked", items=3, notifies=True),
    Role("press", nap_ms=20, keeps_facts=True),
    Role("twin", emits="half.done", count=2),
    Role("brittle", trouble=25, timeout="400ms"),
)
ROUTES = (
    ("gather", "item.found", "refine"),
    ("gather", "item.found", "flaky"),
    ("refine", "item.refined", "keep"),
)
SCRIPTS = (
    Script(
        "deliver",
        """
  - name: deliver
    on: order.placed
    from_plugin: order
    execution_mode: synchronous
    timeout: 2s
    steps:
      - {id: pick, uses: pick}
      - id: wrap
        foreach: payload.items
        join: true
        steps:
          - {id: cut, uses: press, baggage: {part: item}, with: {part: "{item}"}}
          - {id: around, call: bundle}
      - id: inspect
        if: {path: payload.even, op: eq, value: true}
        uses: keep
      - id: sides
        join: true
        split:
          - {id: invoice, uses: press}
          - id: label
            steps:
              - {id: print, uses: twin}
              - {id: glue, uses: brittle, continue: true, on_error: [{id: patch, uses: keep}]}
      - {id: ship, uses: keep}
""",
        uses=frozenset({"order", "pick", "press", "keep", "twin", "brittle"}),
        calls=frozenset({"bundle"}),
        weight=1,
    ),
    Script(
        "bundle",
        """
  - name: bundle
    on: bundle.asked
    steps:
      - id: both
        join: true
        split:
          - {id: paper, uses: press}
          - {id: ribbon, uses: brittle}
""",
        uses=frozenset({"press", "brittle"}),
    ),
    Script(
        "quote",
        """
  - name: quote
    on: quote.asked
    execution_mode: synchronous
    timeout: 2s
    steps:
      - {id: pick, uses: pick}
      - {id: prices, foreach: payload.items, join: true, uses: press, with: {part: "{item}"}}
""",
        uses=frozenset({"pick", "press"}),
    ),
    Script(
        "note",
        """
  - name: note
    on-hook: job.completed
    steps: [{id: jot, uses: keep}]
""",
        uses=frozenset({"keep"}),
    ),
    Script(
        "alarm",
        """
  - name: alarm
    on-hook: job.failed
    from_plugin: flaky
    steps: [{id: ring, uses: keep}]
""",
        uses=frozenset({"keep", "flaky"}),
    ),
    Script(
        "toll",
        """
  - name: toll
    on-hook: job.dead
    steps: [{id: bell, uses: keep}]
""",
        uses=frozenset({"keep"}),
    ),
)


def routes_of(roles: Iterable[Role]) -> tuple[tuple[str, str, str], ...]:
    """Those of the play whose plugins are on the stage."""
    names = {role.name for role in roles}
    return tuple(route for route in ROUTES if route[0] in names and route[2] in names)


def scripts_of(roles: Iterable[Role]) -> tuple[Script, ...]:
    """Those of the play whose plugins, and those of the pipelines they call, are on the stage."""
    names = {role.name for role in roles}
    found = {script.name: script for script in SCRIPTS if script.uses <= names}
    return tuple(script for script in found.values() if script.calls <= found.keys())
