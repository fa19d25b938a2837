"""OAuth 2 access tokens for plugins, kept in the plugin's state. Copy it beside the other three.

`access_token` gives a token that is good for another minute: the one in `job.state["oauth"]`, or a new one, by refresh
token if there is one and by client credentials otherwise. State is kept only when a job succeeds: where the server
replaces refresh tokens, get the token in a command that does nothing else, or a later failure loses the new one.
"""

from __future__ import annotations

import json
import time

from ductile_guard import Guard
from ductile_http import request
from ductile_plugin import Failed, Final, Job, Misconfigured, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

OAUTH_KEYS = ("token_url", "client_id", "client_secret", "refresh_token", "scope", "client_auth")
MARGIN = 60.0
TIMEOUT = 20.0


def access_token(job: Job, config: Mapping[str, Any] | None = None) -> str:
    """A token to send as `Authorization: Bearer …`. With a `config` of its own, that is used instead of the job's."""
    config = job.config if config is None else config
    kept = job.state.get("oauth")
    kept = kept if isinstance(kept, dict) and kept.get("origin") == _origin(config) else {}
    if isinstance(kept.get("access_token"), str) and kept.get("token_expiry", 0) > time.time() + MARGIN:
        return str(kept["access_token"])
    # The one in the configuration is where it began; a server may have replaced it since.
    refresh_token = kept.get("refresh_token") or setting(config, "refresh_token", str, "")
    grant = {"grant_type": "refresh_token", "refresh_token": refresh_token} if refresh_token else _CREDENTIALS
    answer = _ask(config, grant)
    token, lifetime = answer.get("access_token"), answer.get("expires_in", 3600)
    if not isinstance(token, str) or not token or str(answer.get("token_type", "bearer")).lower() != "bearer":
        raise Failed("the token server did not answer with a bearer token")
    seconds = float(lifetime) if str(lifetime).isdigit() else 0.0
    job.state["oauth"] = {
        "origin": _origin(config),
        "access_token": token,
        "token_expiry": time.time() + seconds,
        "refresh_token": answer.get("refresh_token") or refresh_token,
    }
    return token


def forget(job: Job) -> None:
    """The access token is not used again: an API has refused it before its time."""
    if isinstance(job.state.get("oauth"), dict):
        job.state["oauth"].pop("access_token", None)


_CREDENTIALS = {"grant_type": "client_credentials"}


def _origin(config: Mapping[str, Any]) -> str:
    """Tokens of another client, or from before the operator authorised again, are not used."""
    from hashlib import sha256

    return sha256(f"{setting(config, 'client_id')}\0{setting(config, 'refresh_token', str, '')}".encode()).hexdigest()


def _ask(config: Mapping[str, Any], grant: Mapping[str, str]) -> Mapping[str, Any]:
    from urllib.parse import quote_plus, urlencode

    url, secret = setting(config, "token_url"), setting(config, "client_secret")
    form, headers = dict(grant), {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if scope := setting(config, "scope", str, ""):
        form["scope"] = scope
    if setting(config, "client_auth", str, "basic") == "basic":
        from base64 import b64encode

        pair = f"{quote_plus(config['client_id'])}:{quote_plus(secret)}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    else:
        form |= {"client_id": config["client_id"], "client_secret": secret}
    body = urlencode(form).encode()
    answer = request("POST", url, guard=Guard(trusted_urls=[url]), timeout=TIMEOUT, headers=headers, body=body)
    try:
        said = json.loads(answer.text())
    except (ValueError, RecursionError):
        said = None
    said = said if isinstance(said, dict) else {}
    if answer.status in (400, 401) and isinstance(said.get("error"), str):
        raise _refusal(said["error"])
    answer.require_success()
    return said


def _refusal(code: str) -> Final:
    if code == "invalid_grant":
        return Final("the token server does not take the refresh token any more (invalid_grant); authorise again")
    if code in ("invalid_client", "unauthorized_client"):
        return Misconfigured(f"the token server does not take client_id and client_secret ({code})")
    return Final(f"the token server refuses: {code[:100]}")
