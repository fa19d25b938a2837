"""The label of an API token in logs and keys: its name, or a label derived from the token.

The label does not depend on the position of the token, so edits do not assign it to another token. Knows no scopes.
"""

import re

from blake3 import blake3

from ductile.config.sections.settings import ApiToken

DERIVED_LABEL = re.compile("token-[0-9a-f]{6}")
"""Labels of unnamed tokens. Named tokens must not use this form."""
_CONTEXT = "ductile: what an API token without a name is called"


def token_label(token: ApiToken) -> str:
    """Return the name of the token, or its derived label."""
    return token.name or derived_label(token.token.fingerprint())


def derived_label(fingerprint: str) -> str:
    """Return the label of an unnamed token. It is too short to reveal the token."""
    return f"token-{blake3(fingerprint.encode(), derive_key_context=_CONTEXT).hexdigest()[:6]}"
