"""`ductile exchange`: messages on topics, which other programs claim and reply to."""

import click

from ductile.cli.base.click_base import LazyGroup

COMMAND_MODULES = {
    "check": "exchange.read.check",
    "claim": "exchange.worker.claims.claim",
    "complete": "exchange.worker.claims.complete",
    "extend": "exchange.worker.claims.extend",
    "fail": "exchange.worker.claims.fail",
    "import": "exchange.import_plugboard.import_file",
    "inspect": "exchange.inspect.inspect",
    "notify": "exchange.notify.notify",
    "pause": "exchange.operate.pause",
    "publish": "exchange.publish.publish",
    "purge": "exchange.operate.purge",
    "read": "exchange.read.read",
    "release": "exchange.worker.claims.release",
    "reply": "exchange.publish.reply",
    "request": "exchange.request.request",
    "requeue": "exchange.operate.requeue",
    "resume": "exchange.operate.resume",
    "run": "exchange.worker.run.run",
    "serve": "exchange.serve.serve",
    "topics": "exchange.inspect.topics",
    "why": "exchange.inspect.why",
}


@click.group("exchange", cls=LazyGroup, modules=COMMAND_MODULES)
def group() -> None:
    """Publish, read, claim and reply to messages."""
