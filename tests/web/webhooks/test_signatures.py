"""Signature schemes: their formats, agreement with openssl, and rejection of everything else."""

import base64
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.secret import Secret
from ductile.web.webhooks.signatures import MAX_SIGNATURES, SCHEMES, SignatureVerdict, Verifier

SECRET = "one-secret-of-thirty-two-letters"
OTHER = "another-secret-of-some-letters.."
BODY = b'{ "number" : 1.0,\n "text":"\xc3\xa9"}'
NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

pytestmark = pytest.mark.process

Sent = Mapping[str, str | tuple[str, ...]]


def openssl(message: bytes, key: bytes = SECRET.encode()) -> str:
    """Return the HMAC-SHA256 in hex, computed independently."""
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key.hex()}", "-r"]
    done = subprocess.run(command, input=message, capture_output=True, check=True)
    return done.stdout.split()[0].decode()


def encoded(digest: str) -> str:
    return base64.b64encode(bytes.fromhex(digest)).decode()


def verify(
    scheme: str,
    headers: Sent,
    *,
    body: bytes = BODY,
    secrets: tuple[str, ...] = (SECRET,),
    header: str | None = None,
    now: datetime = NOW,
) -> SignatureVerdict:
    sent = {name: (value,) if isinstance(value, str) else value for name, value in headers.items()}
    return Verifier.of(scheme, map(Secret, secrets), header).verify(sent, body, now=now)


def stripe(timestamp: str = str(SECONDS), body: bytes = BODY, secret: str = SECRET) -> str:
    return f"t={timestamp},v1={openssl(f'{timestamp}.'.encode() + body, secret.encode())}"


def slack(timestamp: str = str(SECONDS), body: bytes = BODY) -> Sent:
    return {
        "x-slack-signature": f"v0={openssl(f'v0:{timestamp}:'.encode() + body)}",
        "x-slack-request-timestamp": timestamp,
    }


def standard(
    timestamp: str = str(SECONDS), message: str = "msg_1", body: bytes = BODY, family: str = "webhook"
) -> Sent:
    key = base64.b64decode(STANDARD_SECRET.removeprefix("whsec_"))
    signature = encoded(openssl(f"{message}.{timestamp}.".encode() + body, key))
    return {
        f"{family}-id": message,
        f"{family}-timestamp": timestamp,
        f"{family}-signature": f"v1,{signature}",
    }


PUBLISHED = [
    (
        "github",
        "It's a Secret to Everybody",
        b"Hello, World!",
        {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
        0,
    ),
    (
        "slack",
        "8f742231b10e8888abcd99yyyzzz85a5",
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
        {
            "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
            "x-slack-request-timestamp": "1531420618",
        },
        1531420618,
    ),
    (
        "standard-webhooks",
        STANDARD_SECRET,
        b'{"test": 2432232314}',
        {
            "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "webhook-timestamp": "1614265330",
            "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        },
        1614265330,
    ),
]


@pytest.mark.parametrize(("scheme", "secret", "body", "headers", "at"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_the_published_examples_are_valid(scheme: str, secret: str, body: bytes, headers: Sent, at: int) -> None:
    """The examples in the documentation of each sender."""
    timestamp = datetime.fromtimestamp(at, UTC)
    assert verify(scheme, headers, body=body, secrets=(secret,), now=timestamp).is_valid
    assert not verify(scheme, headers, body=body + b" ", secrets=(secret,), now=timestamp).is_valid


PLAIN = openssl(BODY)
VALID: list[tuple[str, Sent]] = [
    ("hmac-sha256", {"x-signature-256": PLAIN}),
    ("hmac-sha256", {"x-signature-256": f"sha256={PLAIN}"}),
    ("hmac-sha256", {"x-signature-256": PLAIN.upper()}),
    ("github", {"x-hub-signature-256": f"sha256={PLAIN}"}),
    ("stripe", {"stripe-signature": stripe()}),
    ("stripe", {"stripe-signature": f"{stripe()},v0={'0' * 64}"}),
    ("stripe", {"stripe-signature": f"t={SECONDS},v1={'0' * 64},{stripe().partition(',')[2]}"}),
    ("slack", slack()),
]


def test_signatures_computed_by_openssl_are_valid() -> None:
    """Over the raw bytes, in every accepted format of a scheme."""
    verdicts = [verify(scheme, headers) for scheme, headers in VALID]
    assert verdicts == [SignatureVerdict(signed_digest=verdict.signed_digest) for verdict in verdicts]


def test_another_secret_or_body_is_not_valid() -> None:
    """Including the same JSON in another serialization."""
    reserialized = '{"number":1.0,"text":"é"}'.encode()
    reason = "the signature matches no secret of the endpoint"
    accepted = [
        (scheme, headers, body, secret)
        for scheme, headers in VALID
        for body, secret in ((BODY, OTHER), (BODY[:-1] + b"]", SECRET), (reserialized, SECRET))
        if verify(scheme, headers, body=body, secrets=(secret,)).reason != reason
    ]
    assert accepted == []


MALFORMED: list[tuple[str, Sent]] = [
    *(
        ("hmac-sha256", {"x-signature-256": value})
        for value in (
            "",
            "sha256=",
            PLAIN[:-1],
            PLAIN + "0",
            f"sha1={PLAIN}",
            f"SHA256={PLAIN}",
            f"sha256={PLAIN}\n",
            f"{PLAIN[:32]} {PLAIN[32:]}",
            f" {PLAIN}",
            f"{PLAIN}, {PLAIN}",
            f"{PLAIN[:-1]}é",
            "０" * 64,
            encoded(PLAIN),
            (PLAIN, PLAIN),
            (PLAIN, "0" * 64),
            (),
        )
    ),
    ("hmac-sha256", {"x-hub-signature-256": PLAIN}),
    ("hmac-sha256", {}),
    ("github", {"x-hub-signature-256": PLAIN}),
    ("github", {"x-hub-signature": f"sha1={PLAIN[:40]}"}),
    ("github", {"x-hub-signature-256": (f"sha256={PLAIN}", f"sha256={PLAIN}")}),
    *(
        ("stripe", {"stripe-signature": value})
        for value in (
            stripe().partition(",")[0],
            stripe().partition(",")[2],
            f"t={SECONDS},{stripe()}",
            stripe().replace("v1", "v0"),
            stripe().replace("v1", "V1"),
            f"{stripe()},v1=",
            stripe().replace(",", ", "),
            stripe() + f",v1={'0' * 64}" * MAX_SIGNATURES,
        )
    ),
    ("slack", {name: value for name, value in slack().items() if name != "x-slack-signature"}),
    ("slack", {name: value for name, value in slack().items() if name != "x-slack-request-timestamp"}),
    ("slack", {**slack(), "x-slack-request-timestamp": (str(SECONDS), str(SECONDS))}),
    ("slack", {**slack(), "x-slack-signature": str(slack()["x-slack-signature"]).replace("v0=", "v1=")}),
]


def test_a_malformed_header_is_not_valid_and_the_reason_names_it() -> None:
    """Missing, repeated or padded headers, other digests and other digits. No exception is raised."""
    verdicts = [(scheme, headers, verify(scheme, headers)) for scheme, headers in MALFORMED]
    assert [case for case in verdicts if case[2].is_valid or "header" not in (case[2].reason or "")] == []


STANDARD = standard()
STANDARD_SIGNATURE = str(STANDARD["webhook-signature"])


CHANGED_HEADERS: list[Sent] = [
    {"webhook-signature": STANDARD_SIGNATURE.removeprefix("v1,")},
    {"webhook-signature": STANDARD_SIGNATURE.replace("v1,", "v2,")},
    {"webhook-signature": STANDARD_SIGNATURE.rstrip("=")},
    {"webhook-signature": STANDARD_SIGNATURE + " "},
    {"webhook-signature": "v1," + "é" * 43 + "="},
    {"webhook-signature": " ".join([STANDARD_SIGNATURE] * (MAX_SIGNATURES + 1))},
    {"webhook-signature": (STANDARD_SIGNATURE, STANDARD_SIGNATURE)},
    {"webhook-id": ()},
    {"webhook-id": ""},
    {"webhook-id": "msg_2"},
    {"webhook-id": "msg_1", "webhook-timestamp": str(SECONDS + 1)},
    {"webhook-timestamp": ()},
    {"webhook-id": "x" * 257},
]


def test_a_standard_webhook_signs_its_id_and_timestamp() -> None:
    """None of its three headers can be changed, omitted or repeated."""
    assert verify("standard-webhooks", STANDARD, secrets=(STANDARD_SECRET,)).is_valid
    accepted = [
        changed
        for changed in CHANGED_HEADERS
        if verify("standard-webhooks", {**STANDARD, **changed}, secrets=(STANDARD_SECRET,)).is_valid
    ]
    assert accepted == []


def test_a_full_stop_cannot_move_from_the_body_into_the_id() -> None:
    """The signed bytes are `id.timestamp.body`, so an id with a full stop would be ambiguous."""
    moved = standard(message=f"msg_1.{SECONDS}", body=b"x")
    verdict = verify("standard-webhooks", moved, body=b"x", secrets=(STANDARD_SECRET,))
    assert verdict.reason == "the header webhook-id is malformed"


@pytest.mark.parametrize(
    "signature",
    [
        f"v1,{encoded('0' * 64)} {STANDARD_SIGNATURE}",
        f"{STANDARD_SIGNATURE} v1,{encoded('0' * 64)}",
        f"v1a,cHVibGlj {STANDARD_SIGNATURE}",
    ],
)
def test_one_valid_signature_of_several_is_sufficient(signature: str) -> None:
    """During a rotation a sender signs with both secrets. Signatures of other versions are ignored."""
    verdict = verify("standard-webhooks", {**STANDARD, "webhook-signature": signature}, secrets=(STANDARD_SECRET,))
    assert (verdict.is_valid, verdict.delivery_id) == (True, "msg_1")


@pytest.mark.parametrize("secret", [STANDARD_SECRET, STANDARD_SECRET.removeprefix("whsec_")])
def test_a_standard_secret_is_base64_with_or_without_its_prefix(secret: str) -> None:
    """Both forms are the same key."""
    assert verify("standard-webhooks", STANDARD, secrets=(secret,)).is_valid


def test_the_standard_headers_share_the_prefix_of_the_signature_header() -> None:
    """Svix sends the same headers with its own prefix."""
    verdict = verify("standard-webhooks", standard(family="svix"), secrets=(STANDARD_SECRET,), header="Svix-Signature")
    assert verdict.is_valid


def test_without_a_secret_nothing_is_valid() -> None:
    """Not even a signature with an empty key."""
    empty = openssl_with_empty_key()
    headers = {
        "x-signature-256": empty,
        "x-hub-signature-256": f"sha256={empty}",
        "stripe-signature": f"t={SECONDS},v1={empty}",
        "x-slack-signature": f"v0={empty}",
        "x-slack-request-timestamp": str(SECONDS),
        "webhook-id": "msg_1",
        "webhook-timestamp": str(SECONDS),
        "webhook-signature": f"v1,{encoded(empty)}",
    }
    reasons = {
        verify(scheme, headers, secrets=secrets).reason for scheme in SCHEMES for secrets in ((), ("",), ("", ""))
    }
    assert reasons == {"the endpoint has no usable secret"}


def openssl_with_empty_key() -> str:
    command = ["openssl", "dgst", "-sha256", "-hmac", "", "-r"]
    return subprocess.run(command, input=BODY, capture_output=True, check=True).stdout.split()[0].decode()


@pytest.mark.parametrize("secret", ["not base64!", "whsec_", "whsec_é"])
def test_a_standard_secret_that_is_not_base64_verifies_nothing(secret: str) -> None:
    """It is not used as text instead, which would be another key than the sender's."""
    assert not verify("standard-webhooks", STANDARD, secrets=(secret,)).is_valid


def test_during_a_rotation_either_secret_is_valid() -> None:
    """In any order, for every scheme."""
    refused = [
        (scheme, headers, secrets)
        for scheme, headers in VALID
        for secrets in ((SECRET, OTHER), (OTHER, SECRET), ("", SECRET))
        if not verify(scheme, headers, secrets=secrets).is_valid
    ]
    assert refused == []


TIMESTAMPED = ("stripe", "slack", "standard-webhooks")


def test_a_signed_timestamp_within_five_minutes_is_valid() -> None:
    """In both directions, inclusive. The verdict has the digest that identifies the delivery."""
    refused = []
    for scheme in TIMESTAMPED:
        for offset in (-300, -299, 0, 299, 300):
            verdict = _sent_at(scheme, str(SECONDS + offset))
            if not verdict.is_valid or len(verdict.signed_digest or "") != 64:
                refused.append((scheme, offset, verdict))
    assert refused == []


INVALID_TIMESTAMPS = (
    str(SECONDS - 301),
    str(SECONDS + 301),
    "nan",
    "inf",
    "1e9",
    "-1",
    f"+{SECONDS}",
    f"{SECONDS}.0",
    f" {SECONDS}",
    "１７７０５４３０００",
    "1_770_543_000",
    "9" * 13,
    "9" * 400,
    "",
    "0",
)


def test_an_invalid_or_distant_timestamp_is_not_valid() -> None:
    """Even with a correct signature."""
    accepted = [
        (scheme, timestamp)
        for scheme in TIMESTAMPED
        for timestamp in INVALID_TIMESTAMPS
        if _sent_at(scheme, timestamp).is_valid
    ]
    assert accepted == []


def _sent_at(scheme: str, timestamp: str) -> SignatureVerdict:
    """Verify a delivery that is correctly signed with this timestamp."""
    if scheme == "stripe":
        return verify(scheme, {"stripe-signature": stripe(timestamp)})
    if scheme == "slack":
        return verify(scheme, slack(timestamp))
    return verify(scheme, standard(timestamp), secrets=(STANDARD_SECRET,))


def test_the_signature_header_is_configurable() -> None:
    """Its name is case-insensitive, and the default header is then ignored."""
    assert verify("github", {"x-gitea-sig": f"sha256={PLAIN}"}, header="X-Gitea-Sig").is_valid
    assert not verify("github", {"x-hub-signature-256": f"sha256={PLAIN}"}, header="X-Gitea-Sig").is_valid


def test_a_delivery_with_two_signatures_has_one_digest_whichever_is_sent() -> None:
    """During a rotation Stripe signs with both secrets. A replay with one signature is still detected."""
    first = stripe()
    second = stripe(secret=OTHER).partition(",")[2]
    headers = [f"{first},{second}", first, f"t={SECONDS},{second}"]
    verdicts = [verify("stripe", {"stripe-signature": header}, secrets=(SECRET, OTHER)) for header in headers]
    assert all(verdict.is_valid for verdict in verdicts)
    assert len({verdict.signed_digest for verdict in verdicts}) == 1
    assert stripe(body=b"{}") != first
    assert (
        verify("stripe", {"stripe-signature": stripe(body=b"{}")}, body=b"{}").signed_digest
        != verdicts[0].signed_digest
    )


def test_a_signature_without_a_timestamp_has_no_digest() -> None:
    """The same body always has the same signature, so it cannot identify a delivery."""
    assert verify("hmac-sha256", {"x-signature-256": PLAIN}).signed_digest is None
    assert verify("github", {"x-hub-signature-256": f"sha256={PLAIN}"}).signed_digest is None


def test_the_repr_of_a_verifier_has_no_keys() -> None:
    assert SECRET not in repr(Verifier.of("github", [Secret(SECRET)]))


NAMES = [
    "x-signature-256",
    "x-hub-signature-256",
    "stripe-signature",
    "x-slack-signature",
    "x-slack-request-timestamp",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
]
TEXTS = st.one_of(
    st.text(st.characters(max_codepoint=255)),
    st.from_regex(r"\A(?:sha256=|v0=|v1,|t=[0-9]{1,20},v1=)?[0-9a-fA-F]{0,70}[=, ]?\Z"),
    st.just(str(SECONDS)),
)


@given(
    scheme=st.sampled_from(sorted(SCHEMES)),
    headers=st.dictionaries(st.sampled_from(NAMES), st.lists(TEXTS, max_size=3).map(tuple)),
    body=st.binary(max_size=64),
)
def test_nothing_is_valid_without_the_secret(scheme: str, headers: dict[str, tuple[str, ...]], body: bytes) -> None:
    """No header causes an exception."""
    verifier = Verifier.of(scheme, [Secret(STANDARD_SECRET), Secret(SECRET)])
    verdict = verifier.verify(headers, body, now=NOW + timedelta(microseconds=1))
    assert (verdict.is_valid, verdict.delivery_id, verdict.signed_digest) == (False, None, None)
    assert verdict.reason
