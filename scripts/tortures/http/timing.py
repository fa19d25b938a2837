"""W7: whether the time of a verification depends on the secret. Measured in this process, without the network.

Welch's t must stay below 4.5 between signatures that are wrong in the first and in the last byte, and between the first
and the last token of the table.
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
from scripts.tortures.http.lib.target_config import FIRST_SECRET, signature
from scripts.tortures.http.lib.target_service import AttackResult, TargetService

ROUNDS = 1_000_000
MAX_T = 4.5
OUTLIER_SHARE = 0.95
"""Calls that took longer than this share of all were interrupted and do not count."""
TOKENS, BODIES = 20, 64


async def attack(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Measure both kinds of verification."""
    result = AttackResult()
    for name, calls in (("signature", _signatures(rng)), ("token", _tokens(rng))):
        t = await trio.to_thread.run_sync(_welch_t, calls, int(ROUNDS * share), rng)
        result.numbers[name] = round(t, 2)
        result.expect(abs(t) < MAX_T, f"{name}: t is {t:.2f}")
    result.numbers["verifications"] = 2 * int(ROUNDS * share)
    return result


Calls = tuple[Sequence[Callable[[], object]], Sequence[Callable[[], object]]]


def _signatures(rng: random.Random) -> Calls:
    """Return verifications of signatures that are wrong in the first byte, and in the last."""
    verifier, now = Verifier.of("hmac-sha256", [Secret(FIRST_SECRET)]), datetime.now(UTC)

    def verify_wrong(position: int) -> Callable[[], object]:
        body = rng.randbytes(200)
        wrong = bytearray.fromhex(signature(body))
        wrong[position] ^= rng.randrange(1, 256)
        headers = {"x-signature-256": (wrong.hex(),)}
        return lambda: verifier.verify(headers, body, now=now)

    pairs = [(verify_wrong(0), verify_wrong(31)) for _ in range(BODIES)]
    return [first for first, _ in pairs], [last for _, last in pairs]


def _tokens(rng: random.Random) -> Calls:
    """Return lookups of the first token of the table, and of the last."""
    tokens, now = [rng.randbytes(16).hex() for _ in range(TOKENS)], datetime.now(UTC)
    principals = (Principal(token, frozenset(), f"token:{token}") for token in tokens)
    digests = (hashlib.sha256(token.encode()).digest() for token in tokens)
    keys = tuple(map(Key, digests, principals))
    ring = Keyring(keys)

    def find(token: str) -> Callable[[], object]:
        copy = token[:1] + token[1:]
        return lambda: ring.find(copy, now=now)

    return [find(tokens[0]) for _ in range(BODIES)], [find(tokens[-1]) for _ in range(BODIES)]


def _welch_t(calls: Calls, rounds: int, rng: random.Random) -> float:
    """Measure both kinds of calls in random order and return Welch's t without the outliers."""
    seconds: tuple[list[int], list[int]] = [], []
    clock = time.perf_counter_ns
    gc.disable()
    try:
        for _ in range(rounds):
            kind = rng.getrandbits(1)
            call = calls[kind][rng.getrandbits(6)]
            begun = clock()
            call()
            seconds[kind].append(clock() - begun)
    finally:
        gc.enable()
    longest = sorted(seconds[0] + seconds[1])[int(rounds * OUTLIER_SHARE)]
    first, last = ([one for one in each if one < longest] for each in seconds)
    spread = statistics.variance(first) / len(first) + statistics.variance(last) / len(last)
    return (statistics.fmean(first) - statistics.fmean(last)) / math.sqrt(spread)
