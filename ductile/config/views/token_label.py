"""The word for a token that calls the API, wherever one is named: its own name, or one that comes of the token itself.

A position would be another token's after the next edit, and what is kept under the word with it. Knows no scopes.
"""

import re

from blake3 import blake3

from ductile.config.sections.settings import ApiToken

DERIVED = re.compile("token-[0-9a-f]{6}")
"""What an unnamed token is called, and nobody else may be."""
_CONTEXT = "ductile: what an API token without a name is called"


def caller(token: ApiToken) -> str:
    return token.name or unnamed(token.token.fingerprint())


def unnamed(fingerprint: str) -> str:
    """The word for a token of which only the fingerprint is known. Says too little to guess the token by."""
    return f"token-{blake3(fingerprint.encode(), derive_key_context=_CONTEXT).hexdigest()[:6]}"
