"""Does it take longer to refuse what is nearly right? Verifications inside of this process, by the nanosecond.

W7: between signatures that are wrong in their first and in their last byte, and between tokens at the beginning and at
the end of the table, Welch's t stays below 4.5. The service is not asked: a network hides what is looked for here.
"""

import gc
import hashlib
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import trio

from ductile.core.secret import Secret
from ductile.web.auth.auth import Key, Keyring, Principal
from ductile.web.webhooks.signatures import Verifier
from scripts.tortures.grounds import SECRET, signature
from scripts.tortures.siege import Findings, Siege

ROUNDS = 1_000_000
MOST_T = 4.5
OUTLIERS = 0.95
"""Whatever took longer than this share of all was interrupted."""
TOKENS, BODIES = 20, 64


async def storm(siege: Siege, dice: random.Random, share: float) -> Findings:
    found = Findings()
    for name, calls in (("signature", _signatures(dice)), ("token", _tokens(dice))):
        t = await trio.to_thread.run_sync(_welch_t, calls, int(ROUNDS * share), dice)
        found.numbers[name] = round(t, 2)
        found.expect(abs(t) < MOST_T, f"{name}: t is {t:.2f}")
    found.numbers["verifications"] = 2 * int(ROUNDS * share)
    return found


Calls = tuple[Sequence[Callable[[], object]], Sequence[Callable[[], object]]]


def _signatures(dice: random.Random) -> Calls:
    """Wrong in the first byte, and in the last."""
    verifier, now = Verifier.of("hmac-sha256", [Secret(SECRET)]), datetime.now(UTC)

    def refuse(position: int) -> Callable[[], object]:
        body = dice.randbytes(200)
        wrong = bytearray.fromhex(signature(body))
        wrong[position] ^= dice.randrange(1, 256)
        headers = {"x-signature-256": (wrong.hex(),)}
        return lambda: verifier.verify(headers, body, now=now)

    pairs = [(refuse(0), refuse(31)) for _ in range(BODIES)]
    return [first for first, _ in pairs], [last for _, last in pairs]


def _tokens(dice: random.Random) -> Calls:
    """The first of the table, and the last."""
    tokens, now = [dice.randbytes(16).hex() for _ in range(TOKENS)], datetime.now(UTC)
    keys = tuple(Key(hashlib.sha256(token.encode()).digest(), Principal(token, frozenset())) for token in tokens)
    ring = Keyring(keys)

    def find(token: str) -> Callable[[], object]:
        own = token[:1] + token[1:]
        return lambda: ring.find(own, now=now)

    return [find(tokens[0]) for _ in range(BODIES)], [find(tokens[-1]) for _ in range(BODIES)]


def _welch_t(calls: Calls, rounds: int, dice: random.Random) -> float:
    """Of the two kinds of calls, in random order, without what was interrupted."""
    seconds: tuple[list[int], list[int]] = [], []
    clock = time.perf_counter_ns
    gc.disable()
    try:
        for _ in range(rounds):
            kind = dice.getrandbits(1)
            call = calls[kind][dice.getrandbits(6)]
            begun = clock()
            call()
            seconds[kind].append(clock() - begun)
    finally:
        gc.enable()
    longest = sorted(seconds[0] + seconds[1])[int(rounds * OUTLIERS)]
    first, last = ([one for one in each if one < longest] for each in seconds)
    spread = statistics.variance(first) / len(first) + statistics.variance(last) / len(last)
    return (statistics.fmean(first) - statistics.fmean(last)) / math.sqrt(spread)
