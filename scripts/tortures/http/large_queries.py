"""H10: expensive and invalid queries over a large ledger: huge limits, broad searches, impossible dates.

Each gets an error or a bounded list, and none takes long.
"""

import json
import random
import time
from collections import Counter
from urllib.parse import quote

from scripts.tortures.http.lib.client import connect, request
from scripts.tortures.http.lib.target_config import ADMIN_TOKEN, bearer
from scripts.tortures.http.lib.target_service import AttackResult, TargetService
from scripts.tortures.lib.report import percentile_ms

MAX_ITEMS, MAX_SECONDS = 1_000, 0.5
NUMBERS = (
    "-1",
    "0",
    "1",
    "1000",
    "1001",
    "1000000000",
    "9" * 400,
    "1e3",
    "0x10",
    "nan",
    " 5",
    "5 ",
    "٥",
    "null",
    "1;DROP TABLE job_queue",
)
TEXTS = (
    "%", "_", "%%%%%%%%%%%%", "*", "'", "''", '"', "' OR 1=1 --", "'; DROP TABLE job_queue; --", "\\", "x" * 500,
    "x" * 501, "a " * 30, "NEAR(a b)", "a AND", "NOT", "(", '"a', "a*", "plugin:x", "{col}: a", "^a", "a" * 64,
    "(a+)+$", "‮", "\u0000", "😀", "done", "done done done", "succeeded OR succeeded", "../../etc/passwd", "$(id)",
    "{payload.x}",
)  # fmt: skip
TIMES = (
    "junk",
    "0",
    "-1",
    "2026-13-45T99:99:99Z",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    "1e99",
    "now",
    "2026-01-01",
    "T",
    "∞",
)
FIELDS = ("plugin", "command", "submitted_by", "schedule_id", "pipeline", "root", "job_id", "status", "query", "cursor")


async def attack(target: TargetService, rng: random.Random, share: float) -> AttackResult:
    """Send all queries one after the other."""
    result, statuses, seconds = AttackResult(), Counter[int](), list[float]()
    connection = await connect(target.api)
    slowest = (0.0, "")
    for path in _paths():
        begun = time.monotonic()
        await connection.send(request("GET", path, headers=bearer(ADMIN_TOKEN)))
        response = await connection.receive()
        seconds.append(time.monotonic() - begun)
        slowest = max(slowest, (seconds[-1], path))
        if response is None or response.closes:
            await connection.close()
            connection = await connect(target.api)
        status = response.status if response else 0
        statuses[status] += 1
        result.expect(status in (200, 400), f"{path[:200]}: {response}")
        if response and status == 200:
            items = [value for value in json.loads(response.body).values() if isinstance(value, list)]
            result.expect(all(len(one) <= MAX_ITEMS for one in items), f"{path[:200]}: {[len(one) for one in items]}")
    await connection.close()
    result.expect(slowest[0] < MAX_SECONDS * target.leniency, f"{slowest[1][:200]} took {slowest[0]:.3f} s")
    result.numbers = {
        "questions": len(seconds),
        "answers": dict(statuses),
        "p99_ms": percentile_ms(seconds, 0.99),
        "longest": [slowest[1][:80], round(slowest[0] * 1000)],
    }
    return result


def _paths() -> list[str]:
    queries = [f"limit={quote(number)}" for number in NUMBERS]
    queries += [f"{field}={quote(text)}&limit=1000" for field in FIELDS for text in TEXTS]
    queries += [f"{end}={quote(text)}" for end in ("from", "to") for text in TIMES]
    queries += [
        "include_result=true&limit=1000",
        "status=succeeded&plugin=plugin-1&limit=1000",
        "plugin=unknown",
        "query=nothing+like+it",
    ]
    queries += [
        "from=2000-01-01T00:00:00Z&to=2100-01-01T00:00:00Z&limit=1000",
        "from=2100-01-01T00:00:00Z",
        "to=2000-01-01T00:00:00Z",
    ]
    queries += ["limit=1&limit=2", "status=%ff", "x=" + "y" * 7000, "&".join(["a=b"] * 200), "status=" + "x" * 7000, ""]
    other_paths = [
        "/analytics/summary",
        "/analytics/queue",
        "/stopwatch/ok",
        "/scheduler/jobs",
        "/topology",
        "/queue/pauses",
    ]
    return [f"{path}?{query}" for path in ("/jobs", "/job-logs") for query in queries] + other_paths
