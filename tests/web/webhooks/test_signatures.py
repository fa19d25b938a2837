"""Rules for signatures: what each scheme takes, that openssl agrees, and that everything else is a quiet no."""

import base64
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.secret import Secret
from ductile.web.webhooks.signatures import MOST_SIGNATURES, SCHEMES, SignatureVerdict, Verifier

SECRET = "one-secret-of-thirty-two-letters"
OTHER = "another-secret-of-some-letters.."
BODY = b'{ "number" : 1.0,\n "text":"\xc3\xa9"}'
NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

Sent = Mapping[str, str | tuple[str, ...]]


def openssl(message: bytes, key: bytes = SECRET.encode()) -> str:
    """HMAC-SHA256 in hex, computed by somebody else."""
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key.hex()}", "-r"]
    done = subprocess.run(command, input=message, capture_output=True, check=True)
    return done.stdout.split()[0].decode()


def encoded(digest: str) -> str:
    return base64.b64encode(bytes.fromhex(digest)).decode()


def verdict(
    scheme: str,
    headers: Sent,
    *,
    body: bytes = BODY,
    secrets: tuple[str, ...] = (SECRET,),
    header: str | None = None,
    now: datetime = NOW,
) -> SignatureVerdict:
    sent = {name: (value,) if isinstance(value, str) else value for name, value in headers.items()}
    return Verifier.of(scheme, map(Secret, secrets), header).verdict(sent, body, now=now)


def stripe(moment: str = str(SECONDS), body: bytes = BODY, secret: str = SECRET) -> str:
    return f"t={moment},v1={openssl(f'{moment}.'.encode() + body, secret.encode())}"


def slack(moment: str = str(SECONDS), body: bytes = BODY) -> Sent:
    return {
        "x-slack-signature": f"v0={openssl(f'v0:{moment}:'.encode() + body)}",
        "x-slack-request-timestamp": moment,
    }


def standard(moment: str = str(SECONDS), message: str = "msg_1", body: bytes = BODY, family: str = "webhook") -> Sent:
    key = base64.b64decode(STANDARD_SECRET.removeprefix("whsec_"))
    signature = encoded(openssl(f"{message}.{moment}.".encode() + body, key))
    return {
        f"{family}-id": message,
        f"{family}-timestamp": moment,
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
def test_the_senders_own_examples_are_valid(scheme: str, secret: str, body: bytes, headers: Sent, at: int) -> None:
    """The example in each sender's documentation, word for word."""
    moment = datetime.fromtimestamp(at, UTC)
    assert verdict(scheme, headers, body=body, secrets=(secret,), now=moment).is_valid
    assert not verdict(scheme, headers, body=body + b" ", secrets=(secret,), now=moment).is_valid


PLAIN = openssl(BODY)
GOOD: list[tuple[str, Sent]] = [
    ("hmac-sha256", {"x-signature-256": PLAIN}),
    ("hmac-sha256", {"x-signature-256": f"sha256={PLAIN}"}),
    ("hmac-sha256", {"x-signature-256": PLAIN.upper()}),
    ("github", {"x-hub-signature-256": f"sha256={PLAIN}"}),
    ("stripe", {"stripe-signature": stripe()}),
    ("stripe", {"stripe-signature": f"{stripe()},v0={'0' * 64}"}),
    ("stripe", {"stripe-signature": f"t={SECONDS},v1={'0' * 64},{stripe().partition(',')[2]}"}),
    ("slack", slack()),
]


@pytest.mark.parametrize(("scheme", "headers"), GOOD)
def test_what_openssl_signs_is_valid(scheme: str, headers: Sent) -> None:
    """Over the raw bytes, for each way a scheme may be written."""
    assert verdict(scheme, headers) == SignatureVerdict(once=verdict(scheme, headers).once)


@pytest.mark.parametrize(("scheme", "headers"), GOOD)
@pytest.mark.parametrize("change", ["secret", "body", "reserialised"])
def test_another_secret_or_body_is_not_valid(scheme: str, headers: Sent, change: str) -> None:
    """One bit of either, and the same JSON written in another way."""
    bodies = {"body": BODY[:-1] + b"]", "reserialised": '{"number":1.0,"text":"é"}'.encode()}
    secrets = (OTHER,) if change == "secret" else (SECRET,)
    said = verdict(scheme, headers, body=bodies.get(change, BODY), secrets=secrets)
    assert (said.is_valid, said.reason) == (False, "the signature fits no secret of the endpoint")


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
            stripe() + f",v1={'0' * 64}" * MOST_SIGNATURES,
        )
    ),
    ("slack", {name: value for name, value in slack().items() if name != "x-slack-signature"}),
    ("slack", {name: value for name, value in slack().items() if name != "x-slack-request-timestamp"}),
    ("slack", {**slack(), "x-slack-request-timestamp": (str(SECONDS), str(SECONDS))}),
    ("slack", {**slack(), "x-slack-signature": str(slack()["x-slack-signature"]).replace("v0=", "v1=")}),
]


@pytest.mark.parametrize(("scheme", "headers"), MALFORMED, ids=repr)
def test_a_header_that_is_not_exactly_in_its_format_is_a_no_with_a_reason(scheme: str, headers: Sent) -> None:
    """Missing, doubled, padded, of another digest, in other digits: never an exception, never a yes."""
    said = verdict(scheme, headers)
    assert not said.is_valid
    assert "header" in (said.reason or "")


STANDARD = standard()
STANDARD_SIGNATURE = str(STANDARD["webhook-signature"])


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-signature": STANDARD_SIGNATURE.removeprefix("v1,")},
        {"webhook-signature": STANDARD_SIGNATURE.replace("v1,", "v2,")},
        {"webhook-signature": STANDARD_SIGNATURE.rstrip("=")},
        {"webhook-signature": STANDARD_SIGNATURE + " "},
        {"webhook-signature": "v1," + "é" * 43 + "="},
        {"webhook-signature": " ".join([STANDARD_SIGNATURE] * (MOST_SIGNATURES + 1))},
        {"webhook-signature": (STANDARD_SIGNATURE, STANDARD_SIGNATURE)},
        {"webhook-id": ()},
        {"webhook-id": ""},
        {"webhook-id": "msg_2"},
        {"webhook-id": "msg_1", "webhook-timestamp": str(SECONDS + 1)},
        {"webhook-timestamp": ()},
        {"webhook-id": "x" * 257},
    ],
    ids=repr,
)
def test_a_standard_webhook_signs_its_id_and_its_moment(changed: Sent) -> None:
    """None of its three headers can be changed, left out or sent twice."""
    assert verdict("standard-webhooks", STANDARD, secrets=(STANDARD_SECRET,)).is_valid
    assert not verdict("standard-webhooks", {**STANDARD, **changed}, secrets=(STANDARD_SECRET,)).is_valid


def test_a_full_stop_cannot_move_from_the_body_into_the_id() -> None:
    """What is signed is `id.moment.body`: an id with a full stop could be read in two ways, so there is none."""
    moved = standard(message=f"msg_1.{SECONDS}", body=b"x")
    said = verdict("standard-webhooks", moved, body=b"x", secrets=(STANDARD_SECRET,))
    assert said.reason == "the header webhook-id is not in its format"


@pytest.mark.parametrize(
    "signature",
    [
        f"v1,{encoded('0' * 64)} {STANDARD_SIGNATURE}",
        f"{STANDARD_SIGNATURE} v1,{encoded('0' * 64)}",
        f"v1a,cHVibGlj {STANDARD_SIGNATURE}",
    ],
)
def test_one_good_signature_of_several_suffices(signature: str) -> None:
    """A sender that replaces its secret signs with both; signatures of other versions are for others."""
    said = verdict("standard-webhooks", {**STANDARD, "webhook-signature": signature}, secrets=(STANDARD_SECRET,))
    assert (said.is_valid, said.delivery_id) == (True, "msg_1")


@pytest.mark.parametrize("secret", [STANDARD_SECRET, STANDARD_SECRET.removeprefix("whsec_")])
def test_a_standard_secret_is_base64_with_or_without_its_prefix(secret: str) -> None:
    """Both ways of writing it down are the same key."""
    assert verdict("standard-webhooks", STANDARD, secrets=(secret,)).is_valid


def test_the_other_standard_headers_begin_like_the_one_of_the_signature() -> None:
    """Svix sends the same headers under its own name."""
    said = verdict("standard-webhooks", standard(family="svix"), secrets=(STANDARD_SECRET,), header="Svix-Signature")
    assert said.is_valid


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("secrets", [(), ("",), ("", "")])
def test_without_a_secret_nothing_is_valid(scheme: str, secrets: tuple[str, ...]) -> None:
    """Not even what was signed with no secret."""
    empty = openssl_of_nothing()
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
    assert verdict(scheme, headers, secrets=secrets).reason == "the endpoint has no usable secret"


def openssl_of_nothing() -> str:
    command = ["openssl", "dgst", "-sha256", "-hmac", "", "-r"]
    return subprocess.run(command, input=BODY, capture_output=True, check=True).stdout.split()[0].decode()


@pytest.mark.parametrize("secret", ["not base64!", "whsec_", "whsec_é"])
def test_a_standard_secret_that_is_not_base64_verifies_nothing(secret: str) -> None:
    """It is not taken as text instead: then another key than the sender's would be in use."""
    assert not verdict("standard-webhooks", STANDARD, secrets=(secret,)).is_valid


@pytest.mark.parametrize("secrets", [(SECRET, OTHER), (OTHER, SECRET), ("", SECRET)])
@pytest.mark.parametrize(("scheme", "headers"), GOOD)
def test_while_a_secret_is_replaced_either_one_is_good(scheme: str, headers: Sent, secrets: tuple[str, ...]) -> None:
    """In any order, for every scheme."""
    assert verdict(scheme, headers, secrets=secrets).is_valid


@pytest.mark.parametrize("seconds", [-300, -299, 0, 299, 300])
@pytest.mark.parametrize("scheme", ["stripe", "slack", "standard-webhooks"])
def test_a_signed_moment_within_five_minutes_is_valid(scheme: str, seconds: int) -> None:
    """Before or after ours, the last second included; the signature is then good for one delivery."""
    said = _sent_at(scheme, str(SECONDS + seconds))
    assert said.is_valid
    assert len(said.once or "") == 64


@pytest.mark.parametrize(
    "moment",
    [
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
    ],
)
@pytest.mark.parametrize("scheme", ["stripe", "slack", "standard-webhooks"])
def test_a_signed_moment_that_is_far_off_or_no_moment_is_not_valid(scheme: str, moment: str) -> None:
    """However well it is signed."""
    assert not _sent_at(scheme, moment).is_valid


def _sent_at(scheme: str, moment: str) -> SignatureVerdict:
    """The verdict about a delivery that was truly signed with this moment."""
    if scheme == "stripe":
        return verdict(scheme, {"stripe-signature": stripe(moment)})
    if scheme == "slack":
        return verdict(scheme, slack(moment))
    return verdict(scheme, standard(moment), secrets=(STANDARD_SECRET,))


def test_the_header_can_have_another_name() -> None:
    """`signature_header`, in whatever case it is written; the usual one does not count then."""
    assert verdict("github", {"x-gitea-sig": f"sha256={PLAIN}"}, header="X-Gitea-Sig").is_valid
    assert not verdict("github", {"x-hub-signature-256": f"sha256={PLAIN}"}, header="X-Gitea-Sig").is_valid


def test_a_delivery_with_two_signatures_is_good_for_once_whichever_is_shown() -> None:
    """While a secret is replaced, Stripe signs with both: who records that cannot play it again with one of them."""
    first = stripe()
    second = stripe(secret=OTHER).partition(",")[2]
    shown = [f"{first},{second}", first, f"t={SECONDS},{second}"]
    said = [verdict("stripe", {"stripe-signature": each}, secrets=(SECRET, OTHER)) for each in shown]
    assert all(each.is_valid for each in said)
    assert len({each.once for each in said}) == 1
    assert stripe(body=b"{}") != first
    assert verdict("stripe", {"stripe-signature": stripe(body=b"{}")}, body=b"{}").once != said[0].once


def test_a_signature_without_a_moment_says_nothing_about_uniqueness() -> None:
    """The same body has the same signature for ever; only a signed moment makes it good for once."""
    assert verdict("hmac-sha256", {"x-signature-256": PLAIN}).once is None
    assert verdict("github", {"x-hub-signature-256": f"sha256={PLAIN}"}).once is None


def test_the_keys_are_not_shown() -> None:
    """A verifier in a log line or a traceback gives nothing away."""
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
def test_whatever_is_sent_without_the_secret_is_a_no(
    scheme: str, headers: dict[str, tuple[str, ...]], body: bytes
) -> None:
    """No header makes the check fail in any other way."""
    verifier = Verifier.of(scheme, [Secret(STANDARD_SECRET), Secret(SECRET)])
    said = verifier.verdict(headers, body, now=NOW + timedelta(microseconds=1))
    assert (said.is_valid, said.delivery_id, said.once) == (False, None, None)
    assert said.reason
