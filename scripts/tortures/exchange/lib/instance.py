"""The instance under test: the topics, the consumer, and the command that workers run on each message.

The body of a request is `NUMBER OUTCOME SECONDS`: the command waits, and then has that outcome.
"""

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from scripts.tortures.lib.instance import Instance
from scripts.tortures.lib.workload import WorkloadPlugin

PLUGINS = (WorkloadPlugin("keep"), WorkloadPlugin("flaky", failure_percent=40, timeout="400ms"))
WORK, STEPS, POISON, RUN, TRY, HAND = (f"{name}.request" for name in ("work", "steps", "poison", "run", "try", "hand"))
"""Topics: of workers; in order; never handled; of two consumers; of workers that use the API themselves."""
REQUESTS = frozenset({WORK, STEPS, POISON, RUN, TRY, HAND})
WORKER_LEASE_SECONDS = 2.0
RESTART_LEASE_SECONDS = 10.0
"""What a claim has left, at least, after a start of the service."""
EXCHANGE_SECTION = f"""\
exchange:
  topics:
    {WORK}: {{max_deliveries: 0}}
    {STEPS}: {{max_deliveries: 0, ordered: true}}
    {HAND}: {{max_deliveries: 0}}
    {POISON}: {{max_deliveries: 2}}
  consumers:
    - {{topic: {RUN}, plugin: keep}}
    - {{topic: {TRY}, plugin: flaky}}
"""
COMMAND = """\
#!/bin/sh
# Handle a message and write its claim to the effects log.
read -r number outcome seconds
echo "start $DUCTILE_CLAIM_ID $DUCTILE_MESSAGE_ID" >> "$TORTURE_EFFECTS"
sleep "$seconds"
case $outcome in
    again) [ "$DUCTILE_DELIVERY" -gt 1 ] || exit 75 ;;
    poison) exit 75 ;;
    fail)
        echo "failed $number" >&2
        exit 1
        ;;
esac
echo "end $DUCTILE_CLAIM_ID $DUCTILE_MESSAGE_ID" >> "$TORTURE_EFFECTS"
echo "done $number"
"""


class ExchangeInstance(Instance):
    """An instance with topics, consumers and a command for workers."""

    @property
    def command(self) -> Path:
        return self.path / "handle"

    @property
    def commands_log(self) -> Path:
        """The claims that commands have handled."""
        return self.path / "commands"

    @property
    def worker_log(self) -> Path:
        return self.path / "workers.log"

    def build(self) -> None:
        super().build()
        self.command.write_text(COMMAND)
        self.command.chmod(0o700)

    def config_text(self, *, scheduled: bool = True) -> str:
        return super().config_text(scheduled=scheduled) + EXCHANGE_SECTION


@frozen
class CommandEffect:
    """One line of the log of the commands: `start`, or `end` of a success."""

    what: str
    claim_id: str
    message_id: str


def read_commands(instance: ExchangeInstance) -> list[CommandEffect]:
    path = instance.commands_log
    return [CommandEffect(*line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def command_environ(instance: ExchangeInstance) -> Mapping[str, str]:
    return {"TORTURE_EFFECTS": str(instance.commands_log)}
