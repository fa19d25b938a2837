"""SIGSTOP of workers past their lease: the messages go to others, and the results of the stopped ones are discarded."""

import signal

from scripts.tortures.exchange.lib.instance import WORKER_LEASE_SECONDS
from scripts.tortures.exchange.lib.stage import Stage

STOPPED = 3


def stop_workers(stage: Stage) -> None:
    """Stop some workers until the claims that they have are over, then let them continue."""
    victims = stage.busy_workers(STOPPED)
    expired_before = sum(map(stage.expired_claims, victims))
    for victim in victims:
        victim.process.send_signal(signal.SIGSTOP)
    try:
        # Their requests that wait for messages can still get some.
        stage.running_service().wait_for_exit(WORKER_LEASE_SECONDS)
        for victim in victims:
            stage.wait_for_end_of_claims(victim)
        stage.counts["claims of stopped workers"] += sum(map(stage.expired_claims, victims)) - expired_before
    finally:
        for victim in victims:
            victim.process.send_signal(signal.SIGCONT)
    stage.counts["stopped workers"] += len(victims)
