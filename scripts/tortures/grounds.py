"""The grounds of a siege: configuration, keys, secrets, endpoints and plugins of the service that is attacked.

The siege builds a service from them; the attacks know the keys, and sign with them.
"""

import hashlib
import hmac

KEEPER, GUEST, REVOKED = (
    "keeper-0123456789abcdef-01234567",
    "guest-0123456789abcdef-012345678",
    "late-0123456789abcdef-0123",
)
SECRET, NEXT = "siege-secret-0123456789abcdef", "siege-secret-fedcba9876543210"
STANDARD_SECRET = "whsec_c2llZ2Utc2VjcmV0LTAxMjM0NTY3ODlhYmNkZWY="
BODY_LIMIT = 64 * 1024
RESULT_BYTES = 900_000
WAITERS = 10

CONFIG = f"""\
plugin_roots: [plugins]
state: {{path: data/state.db}}
include: [tokens.yaml, webhooks.yaml]
service: {{max_workers: 4, drain_timeout: 1s, log_level: info}}
api:
  enabled: true
  listen: 127.0.0.1:0
  max_body_size: {BODY_LIMIT}
  max_concurrent_sync: {WAITERS}
  auth:
    tokens:
      - {{name: keeper, token: {KEEPER}, scopes: ["*"]}}
      - {{name: guest, token: {GUEST}, scopes: ["plugin:rw", "jobs:ro"]}}
      LATE
plugins:
  well: {{retry: {{max_attempts: 1}}}}
  calm: {{retry: {{max_attempts: 1}}}}
  ill: {{retry: {{max_attempts: 1}}, circuit_breaker: {{threshold: 1000000}}}}
  stuck: {{retry: {{max_attempts: 1}}, timeouts: {{poll: 10m}}, parallelism: 4}}
  wide: {{}}
  gated: {{retry: {{max_attempts: 1}}, parallelism: 4}}
pipelines:
  - {{name: quick, on: siege.quick, execution_mode: synchronous, timeout: 30s, steps: [{{uses: well}}]}}
  - {{name: long, on: siege.long, execution_mode: synchronous, timeout: 30s, steps: [{{uses: gated}}]}}
  - {{name: short, on: siege.short, execution_mode: synchronous, timeout: 300ms, steps: [{{uses: gated}}]}}
"""
LATE = f"- {{name: late, token: {REVOKED}, scopes: ['*']}}"
TOKENS = f"""\
tokens:
  - {{name: first, key: {SECRET}}}
  - {{name: next, key: {NEXT}}}
  - {{name: standard, key: {STANDARD_SECRET}}}
"""
WEBHOOKS = f"""\
webhooks:
  listen: localhost:0
  endpoints:
    - path: /hook/well
      plugin: well
      secret_ref: SECRETS
      signature_header: X-Signature-256
      delivery_id_header: X-Delivery
      max_body_size: {BODY_LIMIT}
    - path: /hook/ill
      plugin: ill
      secret_ref: first
      signature_header: X-Signature-256
      delivery_id_header: X-Delivery
    - {{path: /hook/github, plugin: well, scheme: github, secret_ref: first}}
    - {{path: /hook/stripe, plugin: well, scheme: stripe, secret_ref: first}}
    - {{path: /hook/slack, plugin: well, scheme: slack, secret_ref: first}}
    - {{path: /hook/standard, plugin: well, scheme: standard-webhooks, secret_ref: standard}}
    - {{path: /hook/form, plugin: well, secret_ref: first, signature_header: X-Signature-256, body: form}}
"""
WELL = """#!/bin/sh\necho '{"status": "ok", "result": "done"}'\n"""
PLUGINS = {
    "well": WELL,
    "calm": WELL,
    "ill": """#!/bin/sh\necho '{"status": "error", "error": "as asked", "retry": false}'\n""",
    "stuck": "#!/bin/sh\nexec sleep 600\n",
    "wide": f"""#!/bin/sh
printf '{{"status": "ok", "result": "'
head -c {RESULT_BYTES} /dev/zero | tr '\\0' x
printf '"}}'
""",
    "gated": """#!/bin/sh
until [ -e go ] || [ $((turns += 1)) -gt 3000 ]; do sleep 0.02; done
echo '{"status": "ok", "result": "done"}'
""",
}


def bearer(token: str = GUEST) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def signature(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def signed(body: bytes, delivery: str = "", secret: str = SECRET) -> dict[str, str]:
    """The headers of a good delivery to `/hook/well` or `/hook/ill`."""
    named = {"x-delivery": delivery} if delivery else {}
    return {"x-signature-256": signature(body, secret), **named}
