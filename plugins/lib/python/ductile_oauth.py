"""OAuth 2 access tokens, stored in the state of the plugin. Requires the other three modules.

Tokens are stored in `job.state["oauth"]`. A new one is requested with the refresh token, or with client credentials if
there is none. State is stored only if the job succeeds: if the server replaces refresh tokens, get the token in a
command that does nothing else, or a later failure loses the new one.
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
EXPIRY_MARGIN_SECONDS = 60.0
TIMEOUT_SECONDS = 20.0


def access_token(job: Job, config: Mapping[str, Any] | None = None) -> str:
    """Return a token for `Authorization: Bearer …` that is valid for at least another minute.

    `config` replaces the configuration of the job.
    """
    config = job.config if config is None else config
    stored = job.state.get("oauth")
    stored = stored if isinstance(stored, dict) and stored.get("origin") == _origin(config) else {}
    if (
        isinstance(stored.get("access_token"), str)
        and stored.get("token_expiry", 0) > time.time() + EXPIRY_MARGIN_SECONDS
    ):
        return str(stored["access_token"])
    # The server may have replaced the refresh token of the configuration.
    refresh_token = stored.get("refresh_token") or setting(config, "refresh_token", str, "")
    grant = {"grant_type": "refresh_token", "refresh_token": refresh_token} if refresh_token else _CLIENT_CREDENTIALS
    response = _request_token(config, grant)
    token, lifetime = response.get("access_token"), response.get("expires_in", 3600)
    if not isinstance(token, str) or not token or str(response.get("token_type", "bearer")).lower() != "bearer":
        raise Failed("the token server did not return a bearer token")
    seconds = float(lifetime) if str(lifetime).isdigit() else 0.0
    job.state["oauth"] = {
        "origin": _origin(config),
        "access_token": token,
        "token_expiry": time.time() + seconds,
        "refresh_token": response.get("refresh_token") or refresh_token,
    }
    return token


def forget(job: Job) -> None:
    """Discard the stored access token. Use it if an API rejects the token before it expires."""
    if isinstance(job.state.get("oauth"), dict):
        job.state["oauth"].pop("access_token", None)


_CLIENT_CREDENTIALS = {"grant_type": "client_credentials"}


def _origin(config: Mapping[str, Any]) -> str:
    """Return a hash of the client and its refresh token. Tokens of another origin are not used."""
    from hashlib import sha256

    return sha256(f"{setting(config, 'client_id')}\0{setting(config, 'refresh_token', str, '')}".encode()).hexdigest()


def _request_token(config: Mapping[str, Any], grant: Mapping[str, str]) -> Mapping[str, Any]:
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
    response = request(
        "POST", url, guard=Guard(trusted_urls=[url]), timeout=TIMEOUT_SECONDS, headers=headers, body=body
    )
    try:
        content = json.loads(response.text())
    except (ValueError, RecursionError):
        content = None
    content = content if isinstance(content, dict) else {}
    if response.status in (400, 401) and isinstance(content.get("error"), str):
        raise _grant_error(content["error"])
    response.require_success()
    return content


def _grant_error(code: str) -> Final:
    if code == "invalid_grant":
        return Final("the token server rejected the refresh token (invalid_grant); authorize the application again")
    if code in ("invalid_client", "unauthorized_client"):
        return Misconfigured(f"the token server rejected client_id or client_secret ({code})")
    return Final(f"the token server rejected the request: {code[:100]}")
