"""The attempt of a publish step while the ledger does not accept its message."""

from pathlib import Path

import pytest

from ductile.core.errors import LedgerBusy, LedgerFull
from ductile.core.model import Interrupted, Succeeded
from ductile.engine.running_jobs import Attempt
from ductile.exchange.publish_step import run_publish_step
from ductile.exchange.service import MessageExchange
from tests.engine.builders import a_job
from tests.engine.dispatcher_service import open_dispatcher

pytestmark = pytest.mark.process
TELL = (
    "plugins: {echo: {}}\npipelines: [{name: tell, on: a, steps: [{id: tell, publish: {topic: news, body: hello}}]}]\n"
)


async def test_a_full_or_busy_ledger_does_not_use_up_an_attempt(tmp_path: Path) -> None:
    async with open_dispatcher(tmp_path, config=TELL) as dispatcher:
        ctx = dispatcher.ctx
        settings = dispatcher.snapshot.config.settings.exchange
        exchange = MessageExchange(
            ledger=ctx.ledger, hub=ctx.hub, clock=ctx.clock, settings=lambda: settings, is_stopping=lambda: False
        )
        job = a_job(plugin="core.publish", command="handle", pipeline="tell", step_id="tell", payload='{"payload": {}}')
        outcomes = []
        for error in (LedgerFull("the disk is full"), LedgerBusy("another writer"), None):
            dispatcher.faults.error = error
            completion = await run_publish_step(exchange, ctx, Attempt(job, dispatcher.snapshot))
            assert completion is not None
            outcomes.append(type(completion.outcome))
        assert outcomes == [Interrupted, Interrupted, Succeeded]
        assert dispatcher.rows("SELECT topic, body FROM messages") == [("news", "hello")]
