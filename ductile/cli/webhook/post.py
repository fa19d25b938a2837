"""Post a signed delivery and return the answer. Only `webhook send` needs an HTTP client for addresses of others."""

import json
import urllib.error
import urllib.request
from typing import Any

from ductile.core.errors import ServiceUnreachable


def posted(address: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    request = urllib.request.Request(address, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return {"status": answer.status, "answer": _answer(answer.read())}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "answer": _answer(error.read())}
    except (OSError, ValueError) as error:
        raise ServiceUnreachable(f"{address}: {error}", hint="is the service running?") from error


def _answer(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")[:1000]
