"""The configuration, tokens, secrets and plugins of the service that is attacked.

Attacks use them for valid requests and signatures.
"""

import hashlib
import hmac

ADMIN_TOKEN = "admin-0123456789abcdef-012345678"
LIMITED_TOKEN = "limit-0123456789abcdef-012345678"
REMOVABLE_TOKEN = "removable-0123456789abcdef"
FIRST_SECRET, SECOND_SECRET = "first-secret-0123456789abcdef", "second-secret-fedcba9876543210"
STANDARD_SECRET = "whsec_c2llZ2Utc2VjcmV0LTAxMjM0NTY3ODlhYmNkZWY="
MAX_BODY_BYTES = 64 * 1024
RESULT_BYTES = 900_000
MAX_CONCURRENT_SYNC = 10

CONFIG = f"""\
plugin_roots: [plugins]
state: {{path: data/state.db}}
include: [tokens.yaml, webhooks.yaml]
service: {{max_workers: 4, drain_timeout: 1s, log_level: info}}
api:
  enabled: true
  listen: 127.0.0.1:0
  max_body_size: {MAX_BODY_BYTES}
  max_concurrent_sync: {MAX_CONCURRENT_SYNC}
  auth:
    tokens:
      - {{name: admin, token: {ADMIN_TOKEN}, scopes: ["*"]}}
      - {{name: limited, token: {LIMITED_TOKEN}, scopes: ["plugin:rw", "jobs:ro"]}}
      REMOVABLE
plugins:
  ok: {{retry: {{max_attempts: 1}}}}
  counted: {{retry: {{max_attempts: 1}}}}
  failing: {{retry: {{max_attempts: 1}}, circuit_breaker: {{threshold: 1000000}}}}
  hanging: {{retry: {{max_attempts: 1}}, timeouts: {{poll: 10m}}, parallelism: 4}}
  large: {{}}
  gated: {{retry: {{max_attempts: 1}}, parallelism: 4}}
pipelines:
  - {{name: quick, on: target.quick, execution_mode: synchronous, timeout: 30s, steps: [{{uses: ok}}]}}
  - {{name: long, on: target.long, execution_mode: synchronous, timeout: 30s, steps: [{{uses: gated}}]}}
  - {{name: short, on: target.short, execution_mode: synchronous, timeout: 300ms, steps: [{{uses: gated}}]}}
"""
REMOVABLE_ENTRY = f"- {{name: removable, token: {REMOVABLE_TOKEN}, scopes: ['*']}}"
TOKENS = f"""\
tokens:
  - {{name: first, key: {FIRST_SECRET}}}
  - {{name: second, key: {SECOND_SECRET}}}
  - {{name: standard, key: {STANDARD_SECRET}}}
"""
WEBHOOKS = f"""\
webhooks:
  listen: localhost:0
  endpoints:
    - path: /hook/ok
      plugin: ok
      secret_ref: SECRETS
      signature_header: X-Signature-256
      delivery_id_header: X-Delivery
      max_body_size: {MAX_BODY_BYTES}
    - path: /hook/failing
      plugin: failing
      secret_ref: first
      signature_header: X-Signature-256
      delivery_id_header: X-Delivery
    - {{path: /hook/github, plugin: ok, scheme: github, secret_ref: first}}
    - {{path: /hook/stripe, plugin: ok, scheme: stripe, secret_ref: first}}
    - {{path: /hook/slack, plugin: ok, scheme: slack, secret_ref: first}}
    - {{path: /hook/standard, plugin: ok, scheme: standard-webhooks, secret_ref: standard}}
    - {{path: /hook/form, plugin: ok, secret_ref: first, signature_header: X-Signature-256, body: form}}
"""
OK = """#!/bin/sh\necho '{"status": "ok", "result": "done"}'\n"""
PLUGINS = {
    "ok": OK,
    "counted": OK,
    "failing": """#!/bin/sh\necho '{"status": "error", "error": "requested by the test", "retry": false}'\n""",
    "hanging": "#!/bin/sh\nexec sleep 600\n",
    "large": f"""#!/bin/sh
printf '{{"status": "ok", "result": "'
head -c {RESULT_BYTES} /dev/zero | tr '\\0' x
printf '"}}'
""",
    "gated": """#!/bin/sh
until [ -e go ] || [ $((tries += 1)) -gt 3000 ]; do sleep 0.02; done
echo '{"status": "ok", "result": "done"}'
""",
}


def bearer(token: str = LIMITED_TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def signature(body: bytes, secret: str = FIRST_SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def signed(body: bytes, delivery: str = "", secret: str = FIRST_SECRET) -> dict[str, str]:
    """Return the headers of a valid delivery to `/hook/ok` or `/hook/failing`."""
    delivery_id = {"x-delivery": delivery} if delivery else {}
    return {"x-signature-256": signature(body, secret), **delivery_id}
