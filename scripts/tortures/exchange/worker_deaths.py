"""kill -9 of workers: their claims expire, and other workers get the messages. The service survives."""

from scripts.tortures.exchange.lib.stage import Stage

MAX_KILLED = 3


def kill_workers(stage: Stage) -> None:
    """Kill some workers, one of which has a claim. The claims that they had must end without them."""
    for victim in stage.busy_workers(stage.rng.randint(1, MAX_KILLED)):
        expired_before = stage.expired_claims(victim)
        stage.workers.kill(victim)
        stage.counts["worker deaths"] += 1
        stage.wait_for_end_of_claims(victim)
        stage.counts["claims of dead workers"] += stage.expired_claims(victim) - expired_before
