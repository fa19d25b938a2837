"""Questions that ask for too much: lists without end, searches for everything, moments that never were.

H10: over a long history each is refused or answered in part, and none takes long.
"""

import json
import random
import time
from collections import Counter
from urllib.parse import quote

from scripts.tortures.bystander import percentile
from scripts.tortures.grounds import KEEPER, bearer
from scripts.tortures.siege import Findings, Siege
from scripts.tortures.talk import connect, request

MOST_ITEMS, MOST_SECONDS = 1_000, 0.5
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
MOMENTS = (
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


async def storm(siege: Siege, dice: random.Random, share: float) -> Findings:
    found, heard, seconds = Findings(), Counter[int](), list[float]()
    talker = await connect(siege.api)
    longest = (0.0, "")
    for path in _paths():
        begun = time.monotonic()
        await talker.send(request("GET", path, headers=bearer(KEEPER)))
        answer = await talker.answer()
        seconds.append(time.monotonic() - begun)
        longest = max(longest, (seconds[-1], path))
        if answer is None or answer.closes:
            await talker.close()
            talker = await connect(siege.api)
        status = answer.status if answer else 0
        heard[status] += 1
        found.expect(status in (200, 400), f"{path[:200]}: {answer}")
        if answer and status == 200:
            items = [value for value in json.loads(answer.body).values() if isinstance(value, list)]
            found.expect(all(len(one) <= MOST_ITEMS for one in items), f"{path[:200]}: {[len(one) for one in items]}")
    await talker.close()
    found.expect(longest[0] < MOST_SECONDS * siege.leniency, f"{longest[1][:200]} took {longest[0]:.3f} s")
    found.numbers = {
        "questions": len(seconds),
        "answers": dict(heard),
        "p99_ms": percentile(seconds, 0.99),
        "longest": [longest[1][:80], round(longest[0] * 1000)],
    }
    return found


def _paths() -> list[str]:
    asked = [f"limit={quote(number)}" for number in NUMBERS]
    asked += [f"{field}={quote(text)}&limit=1000" for field in FIELDS for text in TEXTS]
    asked += [f"{end}={quote(moment)}" for end in ("from", "to") for moment in MOMENTS]
    asked += [
        "include_result=true&limit=1000",
        "status=succeeded&plugin=plugin-1&limit=1000",
        "plugin=nobody",
        "query=nothing+like+it",
    ]
    asked += [
        "from=2000-01-01T00:00:00Z&to=2100-01-01T00:00:00Z&limit=1000",
        "from=2100-01-01T00:00:00Z",
        "to=2000-01-01T00:00:00Z",
    ]
    asked += ["limit=1&limit=2", "status=%ff", "x=" + "y" * 7000, "&".join(["a=b"] * 200), "status=" + "x" * 7000, ""]
    others = [
        "/analytics/summary",
        "/analytics/queue",
        "/stopwatch/well",
        "/scheduler/jobs",
        "/topology",
        "/queue/pauses",
    ]
    return [f"{path}?{query}" for path in ("/jobs", "/job-logs") for query in asked] + others
