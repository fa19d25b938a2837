"""Strangers with wrong keys: tokens that are none, and signatures that fit nothing.

H5: no wrong token opens anything, and the refusal does not tell how wrong it was. W1: no wrong signature leaves more
behind than a number. Requests go out in bundles, so that the service has as much to do as it can.
"""

import base64
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

import trio

from scripts.tortures.grounds import GUEST, KEEPER, NEXT, REVOKED, bearer, signature
from scripts.tortures.siege import Findings, Siege
from scripts.tortures.talk import Answer, BadAnswer, Hung, connect, request

WRONG_TOKENS, WRONG_SIGNATURES = 50_000, 100_000
BUNDLE = 50
CALLERS = 8
MOST_KEPT = 50
"""Of refused deliveries, for each endpoint."""
PLACES = (
    "GET /jobs",
    "GET /plugins",
    "GET /config/view",
    "POST /plugin/well/poll",
    "POST /system/reload",
    "GET /job/x",
    "GET /metrics",
)
NO_HEADER, NO_FORMAT, NO_TOKEN = (
    "missing or invalid Authorization header",
    "invalid Authorization header format",
    "invalid token",
)


# ── H5 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def try_tokens(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Wrong tokens of every kind; then those that only look wrong, and one that was taken away."""
    found, heard, total = Findings(), Counter[int](), int(WRONG_TOKENS * share)
    refused: dict[str, set[bytes]] = {}

    def judge(kind: str, answer: Answer) -> None:
        heard[answer.status] += 1
        refused.setdefault(kind, set()).add(answer.body)
        found.expect(answer.status == 401, f"{kind}: {answer.status} {answer.body[:200]!r}")

    await _send_bundles(siege.api, total, lambda: _with_token(dice), judge, found)
    for kind, bodies in refused.items():
        found.expect(len(bodies) == 1, f"{kind} is answered in {len(bodies)} ways: {sorted(bodies)[:3]}")
        found.expect(all(kind.encode() in body for body in bodies), f"{kind}: {sorted(bodies)[:1]}")
    await _try_a_huge_token(siege, found)
    _try_what_is_right(siege, found)
    found.numbers = {"tokens": sum(heard.values()), "answers": dict(heard)}
    return found


def _with_token(dice: random.Random) -> tuple[str, bytes]:
    """What the refusal may say, and the request."""
    place, path = dice.choice(PLACES).split(" ")
    said, lines = dice.choice(_authorizations(dice))
    if dice.random() < 0.1:
        path += f"?token={KEEPER}&access_token={KEEPER}"
    return said, f"{place} {path} HTTP/1.1\r\nhost: here\r\n{lines}\r\n".encode("latin-1")


def _authorizations(dice: random.Random) -> list[tuple[str, str]]:
    random_token = dice.randbytes(16).hex()
    changed = list(GUEST)
    changed[dice.randrange(len(GUEST))] = "\x7e"
    tokens = (
        random_token, GUEST[:-1], GUEST[: dice.randrange(1, len(GUEST))], GUEST + "x", f" {GUEST}", f"{GUEST} {GUEST}",
        f"{GUEST},", f'"{GUEST}"', GUEST.upper(), "".join(changed), GUEST[::-1], "\xfc\xff", f"{GUEST}\xa0",
        f"{GUEST}\xc2\x85", "*", "x" * 4000, KEEPER[1:],
    )  # fmt: skip
    formats = (f"Basic {GUEST}", f"Token {GUEST}", f"Bearer: {GUEST}", f"Bearer\xa0x {GUEST}", f"B\xe9arer {GUEST}")
    headers = (
        "",
        "authorization: \r\n",
        f"authorization: {GUEST}\r\n",
        "authorization: Bearer\r\n",
        "authorization: Bearer   \r\n",
    )
    twice = f"authorization: Bearer {random_token}\r\nauthorization: Bearer {GUEST}\r\n"
    return [
        *((NO_TOKEN, f"authorization: Bearer {token}\r\n") for token in tokens),
        *((NO_FORMAT, f"authorization: {text}\r\n") for text in formats),
        *((NO_HEADER, lines) for lines in headers),
        (NO_HEADER, twice),
        (NO_HEADER, twice.replace("Bearer " + random_token, "Bearer " + GUEST)),
        (NO_HEADER, f"proxy-authorization: Bearer {GUEST}\r\ncookie: token={GUEST}\r\nx-api-key: {GUEST}\r\n"),
    ]


async def _try_a_huge_token(siege: Siege, found: Findings) -> None:
    talker = await connect(siege.api)
    await talker.send(request("GET", "/jobs", headers=bearer(GUEST + "x" * (1 << 20))))
    answers = await talker.answers()
    found.expect([answer.status for answer in answers] == [431], f"a token of 1 MB: {answers}")
    await talker.close()


def _try_what_is_right(siege: Siege, found: Findings) -> None:
    """The name of the scheme has no case, and blanks around a header's value do not belong to it."""
    for value in (f"Bearer {GUEST}", f"bearer {GUEST}", f"BEARER {GUEST} \t"):
        status, _ = siege.service.ask("GET", "/jobs", token=None, headers={"authorization": value})
        found.expect(status == 200, f"{value!r}: {status}")
    before, _ = siege.service.ask("GET", "/jobs", token=REVOKED)
    siege.configure(knows_late=False)
    siege.reload()
    after, _ = siege.service.ask("GET", "/jobs", token=REVOKED)
    found.expect((before, after) == (200, 401), f"a token that is taken away: {before}, then {after}")
    siege.configure()
    siege.reload()


# ── W1 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def try_signatures(siege: Siege, dice: random.Random, share: float) -> Findings:
    """Wrong signatures of every kind at every endpoint; the ledger and the log hardly notice."""
    found, heard, total, begun = Findings(), Counter[int](), int(WRONG_SIGNATURES * share), time.monotonic()
    tables = ("job_queue", "receipts")
    forged = "id IN (SELECT job_id FROM receipts WHERE key LIKE 'forged-%')", "key LIKE 'forged-%'"
    lines = len(siege.service.lines)

    def judge(kind: str, answer: Answer) -> None:
        heard[answer.status] += 1
        found.expect(
            (answer.status, b'"forbidden"' in answer.body) == (403, True),
            f"{kind}: {answer.status} {answer.body[:200]!r}",
        )

    numbers = count()
    await _send_bundles(siege.hooks, total, lambda: _with_signature(dice, next(numbers)), judge, found)
    seconds = time.monotonic() - begun
    rows = [siege.count(table, where) for table, where in zip(tables, forged, strict=True)]
    about = [line for line in siege.service.lines[lines:] if "rejected at" in line["message"]]
    found.expect(rows == [0, 0], f"they left rows: {rows}")
    found.expect(len(about) <= len(ENDPOINTS) * max(seconds, 1), f"{len(about)} lines in the log in {seconds:.0f} s")
    kept = siege.count("refused_deliveries")
    found.expect(kept <= MOST_KEPT * len(ENDPOINTS), f"{kept} refusals are kept")
    found.numbers = {"signatures": sum(heard.values()), "answers": dict(heard), "log_lines": len(about)}
    found.numbers["per_second"] = round(total / seconds)
    return found


ENDPOINTS = ("/hook/well", "/hook/ill", "/hook/github", "/hook/stripe", "/hook/slack", "/hook/standard", "/hook/form")


def _with_signature(dice: random.Random, number: int) -> tuple[str, bytes]:
    body = b'{"number": %d, "amount": 1.0}' % number
    path = dice.choice(ENDPOINTS)
    named = (f"x-delivery: forged-{number}", f"x-github-delivery: forged-{number}", f"content-length: {len(body)}")
    lines = "".join(f"{line}\r\n" for line in (*named, *_signatures(path, body, dice)))
    return path, f"POST {path} HTTP/1.1\r\nhost: here\r\n{lines}\r\n".encode("latin-1") + body


def _signatures(path: str, body: bytes, dice: random.Random) -> Sequence[str]:
    """The lines of a wrong signature, in the way of the endpoint or in that of another."""
    good, other, now = signature(body), dice.randbytes(32).hex(), int(time.time())
    close = good[:-1] + ("0" if good[-1] != "0" else "1")
    again = signature(body.replace(b"1.0", b"1"))
    values: list[Callable[[str], str]] = [
        lambda prefix: prefix, lambda prefix: prefix + other, lambda prefix: prefix + close,
        lambda prefix: prefix + good[:-1], lambda prefix: prefix + good + "0",
        lambda prefix: prefix + good[:32] + " " + good[32:], lambda prefix: prefix + again,
        lambda prefix: "sha1=" + good[:40], lambda prefix: prefix + "\xfc" * 64,
        lambda prefix: prefix + signature(body, NEXT), lambda prefix: prefix + signature(body + b" "),
        lambda prefix: prefix + "0x" + good[2:], lambda prefix: prefix + signature(body, ""),
        lambda prefix: prefix + good + "," + good, lambda prefix: prefix + "\uff10".encode().decode("latin-1") * 21,
        lambda prefix: prefix + "x" * 5000,
    ]  # fmt: skip
    value = dice.choice(values)
    if path == "/hook/stripe":
        return (f"stripe-signature: t={now},{value('v1=')}",)
    if path == "/hook/slack":
        return (f"x-slack-signature: {value('v0=')}", f"x-slack-request-timestamp: {now}")
    if path == "/hook/standard":
        encoded = base64.b64encode(dice.randbytes(32)).decode()
        made = dice.choice(
            (f"v1,{encoded}", f"v2,{encoded}", encoded, f"v1,{encoded[:-1]}", "v1,", f"v1 {encoded}", value("v1,"))
        )
        return (f"webhook-signature: {made}", "webhook-id: forged", f"webhook-timestamp: {now}")
    name = "x-hub-signature-256" if path == "/hook/github" else "x-signature-256"
    if dice.random() < 0.1:
        return dice.choice(((), (f"{name}: sha256={good}",) * 2, (f"x-other: sha256={good}",)))
    if path != "/hook/github":
        return (f"{name}: {value(dice.choice(('', 'sha256=')))}",)
    return (f"{name}: {value('sha256=')}",)


# ── both ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _send_bundles(
    port: int, total: int, make: Callable[[], tuple[str, bytes]], judge: Callable[[str, Answer], None], found: Findings
) -> None:
    """`total` requests, in bundles over a few connections that are kept; each answer is judged by what was asked."""
    left = [total]

    async def call(number: int) -> None:
        talker = await connect(port, source=f"127.0.4.{number + 1}")
        while left[0] > 0:
            size = min(BUNDLE, left[0])
            left[0] -= size
            bundle = [make() for _ in range(size)]
            await talker.send(b"".join(raw for _, raw in bundle))
            for kind, raw in bundle:
                answer = await talker.answer()
                if answer is None:
                    raise BadAnswer(f"closed before an answer to {raw[:300]!r}")
                judge(kind, answer)
        await talker.close()

    try:
        async with trio.open_nursery() as nursery:
            for number in range(CALLERS):
                nursery.start_soon(call, number)
    except* (BadAnswer, Hung) as errors:
        found.wrong += [repr(error) for error in errors.exceptions]
