"""The fetch plugin: what it brings, what it refuses to be led to, and what it does with servers that misbehave."""

import importlib
import json
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Service
from tests.plugins.bundled import PLUGINS, Said, ask, said
from tests.plugins.local_http import Reply, Site, sending, serving
from tests.plugins.serving import events_of, serving_all

HERE = {"allowed_networks": ["127.0.0.0/8", "::1"]}
PAGE = b"""<!doctype html><html><head><title> A &amp; B </title><style>p {}</style></head>
<body><h1>Head</h1><p>One <b>two</b> <a href="/x">three</a>.</p><script>alert(1)</script><ul><li>a<li>b</ul></body>"""


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


def fetched(url: str, config: dict[str, Any] | None = None, **payload: Any) -> Said:
    """What the plugin says when it may speak with this host."""
    return ask(
        "fetch", "handle", config={**HERE, "timeout_seconds": 10, **(config or {})}, payload={"url": url, **payload}
    )


# Through the service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    often = {"retry": {"max_attempts": 4}}
    aliases = {
        "reader": {"config": {**HERE, "output_format": "markdown", "user_agent": "tester/1"}},
        "twice": {"config": HERE, "retry": {"max_attempts": 2}},
        "allowed": {"config": HERE, **often},
        "guarded": often,
        "misspelt": {"config": {"allowed_host": ["example.com"]}, **often},
    }
    told = "pipelines: [{name: told, on: fetch.failed, steps: [{uses: echo, with: {message: '{payload.error}'}}]}]\n"
    with serving_all(tmp_path_factory.mktemp("fetch"), "fetch", aliases, told) as running:
        yield running


def test_an_event_with_a_url_becomes_an_event_with_the_page(service: Service, site: Site) -> None:
    """Status, type, title and text are in fetch.completed, and the result tells it in a sentence."""
    site.pages["/page"] = Reply(PAGE, headers={"Content-Type": "text/html; charset=utf-8"})
    job = service.run("reader", "handle", {"url": site.url("/page")})

    ((kind, page),) = events_of(job)
    assert kind == "fetch.completed"
    assert (page["url"], page["source_url"], page["source_type"]) == (site.url("/page"), site.url("/page"), "web")
    assert (page["status_code"], page["content_type"], page["title"]) == (200, "text/html", "A & B")
    assert page["text"] == "# Head\n\nOne **two** [three](/x).\n\n- a\n- b"
    assert job["result"]["result"] == f"200 from 127.0.0.1, {len(PAGE)} bytes"
    assert site.seen[0].headers["user-agent"] == "tester/1"


def test_a_failure_that_may_pass_is_tried_again_and_what_it_says_at_the_end_is_an_event(
    service: Service, site: Site
) -> None:
    """503 with Retry-After: another attempt; when none is left, fetch.failed reaches the pipeline that waits for it."""
    site.pages["/busy"] = Reply(status=503, headers={"Retry-After": "0"})
    job = service.run("twice", "handle", {"url": site.url("/busy")})

    assert job["status"] == "dead"
    assert "attempts used up (2 of 2): 127.0.0.1 responded with status 503" in job["last_error"]
    assert len(site.seen) == 2
    followed = "SELECT count(*) AS n FROM job_queue WHERE plugin = 'echo' AND parent_job_id = ?"
    assert service.home.rows(followed, job["job_id"]) == [{"n": 1}]


def test_a_page_that_is_not_there_is_not_asked_for_again(service: Service, site: Site) -> None:
    """404 is final."""
    job = service.run("allowed", "handle", {"url": site.url("/gone")})

    assert (job["status"], job["last_error"]) == ("failed", "127.0.0.1 responded with status 404")
    assert len(site.seen) == 1


def test_the_private_network_is_not_reached_unless_the_operator_says_so(service: Service, site: Site) -> None:
    """Refused before anything is sent, and not tried again."""
    job = service.run("guarded", "handle", {"url": site.url("/page")})

    assert job["status"] == "failed"
    assert job["last_error"] == "127.0.0.1 resolves to 127.0.0.1, which is not public; allowed_networks can allow it"
    assert site.seen == []


def test_a_typing_mistake_in_the_configuration_is_told_and_not_tried_again(service: Service) -> None:
    """A guard that is misspelt must not be a guard that is not there."""
    job = service.run("misspelt", "handle", {"url": "http://example.com/"})

    assert job["status"] == "failed"
    assert "allowed_host is not a key of this plugin; did you mean allowed_hosts?" in job["last_error"]
    assert job["last_error"].startswith("exit code 78")


# The guard


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://10.0.0.1/",
        "http://172.31.255.255/",
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://0.0.0.0/",
        "http://169.254.169.254/latest/meta-data/",
        "http://255.255.255.255/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[2001:0:1::1]/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://0x7f.0.0.1/",
        "http://0x7f000001/",
        "http://127.1/",
        "http://0/",
        "http://134744072/",
        "http://127。0。0。1/",
        "http://①②⑦.0.0.1/",
        "http://user@127.0.0.1/",
        "http://example.com\\@127.0.0.1/",
        "http://example.com\t/",
        "http://a b/",
        "http://127.0.0.1%00.example.com/",
        "http://[::1%25lo]/",
        "http://x:99999/",
        "http:///etc/passwd",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "//127.0.0.1/",
        "127.0.0.1",
        "http://[::1",
        "http://example.com/\ud800",
        "http://.../",
        "http://*/",
        "http://a..b/",
        f"http://{'a' * 64}.com/",
        f"http://{'a.' * 150}com/",
    ],
)
def test_what_is_not_public_or_can_be_read_in_two_ways_is_refused(url: str) -> None:
    """However an address is written, it is refused before a packet is sent, and for good."""
    answer = ask("fetch", "handle", payload={"url": url}).answer

    assert (answer["status"], answer["retry"]) == ("error", False), answer
    assert answer["events"][0]["type"] == "fetch.failed"


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/latest/", "http://[::1]:1/", "http://0x7f000001/", "file:///etc/passwd"]
)
def test_a_redirect_is_judged_like_a_first_address(site: Site, target: str) -> None:
    """A server that may be spoken to cannot lead to one that may not."""
    site.pages["/"] = Reply(status=302, headers={"Location": target})

    answer = fetched(site.url(), {"allowed_networks": ["127.0.0.1"]}).answer

    assert (answer["status"], answer["retry"]) == ("error", False), answer
    assert (
        "not public" in answer["error"]
        or "not a valid address" in answer["error"]
        or "begin with http" in answer["error"]
    )
    assert len(site.seen) == 1


def test_the_address_that_was_judged_is_the_one_that_is_spoken_to(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that has another address when it is asked again is asked once."""
    monkeypatch.syspath_prepend(str(PLUGINS / "lib" / "python"))
    ductile_http: Any = importlib.import_module("ductile_http")
    asked: list[str] = []

    def rebinding(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    site.pages["/"] = Reply(status=302, headers={"Location": f"http://rebinding.test:{site.port}/next"})
    guard = ductile_http.Guard(allowed_networks=["127.0.0.1"])

    with pytest.raises(ductile_http.Refused, match=r"to 127\.0\.0\.2"):
        ductile_http.request("GET", f"http://rebinding.test:{site.port}/", guard=guard, timeout=10, max_redirects=3)

    assert asked == ["rebinding.test", "rebinding.test"]
    assert [(seen.path, seen.headers["host"]) for seen in site.seen] == [("/", f"rebinding.test:{site.port}")]


def test_one_address_that_is_not_public_spoils_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a public and a private address is refused, in whatever order they come."""
    monkeypatch.syspath_prepend(str(PLUGINS / "lib" / "python"))
    ductile_http: Any = importlib.import_module("ductile_http")
    both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in ("8.8.8.8", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)

    with pytest.raises(ductile_http.Refused, match=r"10\.0\.0\.1"):
        ductile_http.Guard().addresses("both.test", 80)


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        ({"allowed_hosts": ["example.com"]}, "127.0.0.1 is not in allowed_hosts"),
        ({"allowed_hosts": ["*.example.com"]}, "127.0.0.1 is not in allowed_hosts"),
        ({"denied_hosts": ["127.0.0.1"]}, "127.0.0.1 is in denied_hosts"),
    ],
)
def test_lists_of_hosts_narrow_what_may_be_asked(site: Site, config: dict[str, Any], refusal: str) -> None:
    """allowed_hosts is all there is when it is set; denied_hosts are never asked."""
    answer = fetched(site.url(), config).answer

    assert answer["status"] == "error"
    assert refusal in answer["error"]
    assert site.seen == []


def test_tls_is_verified_for_the_name_that_was_asked_for(tmp_path: Path) -> None:
    """The name goes into the greeting although the connection is to an address; a foreign certificate is refused."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    names: list[str | None] = []
    context.sni_callback = lambda _, name, __: names.append(name)

    with serving(context) as site:
        site.pages["/"] = Reply(b"safe", headers={"Content-Type": "text/plain"})
        request = {"config": HERE, "payload": {"url": site.url()}}
        trusted = ask("fetch", "handle", **request, environ={"SSL_CERT_FILE": str(certificate)}).answer  # type: ignore[arg-type]
        foreign = ask("fetch", "handle", **request).answer  # type: ignore[arg-type]
        other = {"config": HERE, "payload": {"url": site.url().replace("localhost", "127.0.0.1")}}
        misnamed = ask("fetch", "handle", **other, environ={"SSL_CERT_FILE": str(certificate)}).answer  # type: ignore[arg-type]

    assert trusted["events"][0]["payload"]["text"] == "safe"
    assert "localhost" in names
    assert "certificate verify failed" in foreign["error"].lower()
    assert "certificate verify failed" in misnamed["error"].lower()


# Redirects


def test_redirects_are_followed_up_to_the_limit_and_are_on_record(site: Site) -> None:
    """A relative Location, and then one too many."""
    site.pages["/a"] = Reply(status=301, headers={"Location": "b?x=1"})
    site.pages["/b?x=1"] = Reply(b"there", headers={"Content-Type": "text/plain"})
    site.pages["/loop"] = Reply(status=302, headers={"Location": "/loop"})

    page = fetched(site.url("/a")).answer["events"][0]["payload"]
    loop = fetched(site.url("/loop"), {"max_redirects": 3}).answer

    assert (page["url"], page["redirects"], page["text"]) == (site.url("/b?x=1"), [site.url("/a")], "there")
    assert (loop["error"], loop["retry"]) == ("127.0.0.1 redirected more than 3 times", False)
    assert sum(seen.path == "/loop" for seen in site.seen) == 4


def test_a_redirect_that_is_not_followed_is_an_answer(site: Site) -> None:
    """With follow_redirects: false the event says where it would have led."""
    site.pages["/a"] = Reply(status=302, headers={"Location": "http://10.0.0.1/"})

    page = fetched(site.url("/a"), {"follow_redirects": False}).answer["events"][0]["payload"]

    assert (page["status_code"], page["location"]) == (302, "http://10.0.0.1/")


def test_headers_do_not_go_to_another_origin(site: Site) -> None:
    """A redirect to another host takes User-Agent along, and no credentials."""
    with serving() as other:
        other.pages["/"] = Reply(b"ok", headers={"Content-Type": "text/plain"})
        site.pages["/"] = Reply(status=307, headers={"Location": other.url()})
        config = {"allowed_hosts": ["127.0.0.1"], "headers": {"Authorization": "Bearer secret"}}
        answer = fetched(site.url(), config, headers={"X-Own": "1"}, method="POST", body={"a": 1}).answer

    assert answer["status"] == "ok", answer
    assert site.seen[0].headers["authorization"] == "Bearer secret"
    assert (site.seen[0].body, site.seen[0].headers["content-type"]) == (b'{"a": 1}', "application/json")
    assert not {"authorization", "x-own"} & set(other.seen[0].headers)


def test_credentials_need_a_list_of_hosts() -> None:
    """Headers in the configuration would otherwise go wherever an event says."""
    answer = ask("fetch", "health", config={"headers": {"Authorization": "x"}})

    assert answer.code == 78
    assert "headers require allowed_hosts" in answer.answer["error"]


# Bodies


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("application/json", b'{"a": [1]}', {"json": {"a": [1]}, "text": '{"a": [1]}'}),
        ("application/problem+json", b"[]", {"json": [], "text": "[]"}),
        ("text/plain; charset=iso-8859-1", b"caf\xe9", {"text": "café"}),
        ("text/plain; charset=no-such", b"caf\xc3\xa9", {"text": "café"}),
        ("text/plain; charset=punycode", b"abc-", {"text": "abc-"}),
        ("text/plain; charset=base64", b"YQ==", {"text": "YQ=="}),
        ("text/plain", b"\xff\x00", {"text": "\ufffd\x00"}),
        ("image/png", b"\x89PNG", {"body_base64": "iVBORw=="}),
        ("", b"bare", {"text": "bare"}),
    ],
)
def test_a_body_comes_in_the_form_that_fits_its_type(site: Site, kind: str, body: bytes, expected: Any) -> None:
    """Text as text, JSON parsed too, anything else in base64; a charset that is none is UTF-8."""
    site.pages["/"] = Reply(body, headers={"Content-Type": kind} if kind else {})

    page = fetched(site.url()).answer["events"][0]["payload"]

    assert {key: page[key] for key in ("text", "json", "body_base64") if key in page} == expected


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(b"x" * 2000), "sent more than 1000 bytes"),
        (Reply(b"{nonsense", headers={"Content-Type": "application/json"}), "has a JSON content type, but is not JSON"),
        (
            Reply(b'{"a": NaN}', headers={"Content-Type": "application/json"}),
            "has a JSON content type, but is not JSON",
        ),
        (
            Reply(b'{"a": 1e999}', headers={"Content-Type": "application/json"}),
            "has a JSON content type, but is not JSON",
        ),
        (Reply(b"[" * 400 + b"]" * 400, headers={"Content-Type": "application/json"}), "more than 50 levels"),
        (Reply(b"x", headers={"Content-Encoding": "gzip"}), "compressed"),
        (Reply(b"x", headers={"Content-Type": "video/mp4"}), "video/mp4 is not in content_types"),
    ],
)
def test_an_answer_that_cannot_be_used_is_final(site: Site, reply: Reply, error: str) -> None:
    """The next one would be no better."""
    site.pages["/"] = reply
    types = ["application/json", "text/*"] if "video" in error else []

    answer = fetched(site.url(), {"max_response_bytes": 1000, "content_types": types}).answer

    assert error in answer["error"]
    assert answer["retry"] is False


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def _drip(over: threading.Event) -> Iterator[bytes]:
    yield HEAD
    while not over.wait(0.05):
        yield b"X: y\r\n"[:1]


def _silence(over: threading.Event) -> Iterator[bytes]:
    over.wait()
    yield b""


def _endless(over: threading.Event) -> Iterator[bytes]:
    yield HEAD + b"\r\n"
    while not over.is_set():
        yield b"x" * 65536


def _page_that_takes_hours(_: threading.Event) -> Iterator[bytes]:
    yield HEAD.replace(b"plain", b"html") + b"Content-Length: 600000\r\n\r\n" + b"<a" * 300000


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        (_silence, "a complete response from 127.0.0.1: timed out after 0.5 s"),
        (_drip, "a complete response from 127.0.0.1: timed out after 0.5 s"),
        (_page_that_takes_hours, "conversion of the page: timed out after 3 s"),
        (_endless, "sent more than 1000000 bytes"),
        (lambda _: [HEAD + b"Content-Length: 100\r\n\r\nshort"], "before the response was complete"),
        (lambda _: [HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n"], "sent an invalid HTTP response"),
        (lambda _: [b"SSH-2.0-nonsense\r\n"], "sent an invalid HTTP response"),
        (lambda _: [], "Remote end closed connection without response"),
        (lambda _: [b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500 + b"\r\n"], "sent an invalid HTTP response"),
        (lambda _: [b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70000 + b"\r\n\r\n"], "sent an invalid HTTP response"),
        (lambda _: [b"HTTP/1.1 503 No\r\nRetry-After: \xb2\r\n\r\n"], "responded with status 503"),
    ],
)
def test_a_server_that_misbehaves_costs_a_bounded_time(
    pieces: Callable[[threading.Event], Iterator[bytes]], error: str
) -> None:
    """Slow, endless, cut off, or not HTTP at all: an answer that says so."""
    quick: dict[str, Any] = {"max_response_bytes": 1_000_000, "output_format": "text"}
    if "timed out after" in error:
        quick["timeout_seconds"] = float(error.split()[-2])
    with sending(pieces) as url:
        answer = fetched(url, quick).answer

    assert error in answer["error"]


def test_a_timeout_that_no_clock_takes_is_an_hour(site: Site) -> None:
    """A large number is no mistake."""
    site.pages["/"] = Reply(b"x")

    assert fetched(site.url(), {"timeout_seconds": 1e300}).answer["status"] == "ok"


@pytest.mark.parametrize("length", ["-1", "²", "9" * 5000, "1, 2", "0x10"])
def test_a_hostile_number_in_a_header_is_no_number(length: str) -> None:
    """The body is what comes until the end of the connection."""
    head = HEAD + f"Content-Length: {length}\r\n\r\n".encode()
    with sending(lambda _: [head + b"body"]) as url:
        answer = fetched(url).answer

    assert answer["status"] == "ok", answer
    assert answer["events"][0]["payload"]["text"] == "body"


# Requests that cannot be meant


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({}, "payload.url is missing"),
        ({"url": 7}, "payload.url is missing"),
        ({"url": "http://x.test/", "method": "DELETE"}, "payload.method must be one of"),
        ({"url": "http://x.test/", "method": ["GET"]}, "payload.method must be one of"),
        ({"url": "http://x.test/", "body": "x"}, "payload.body requires POST"),
        ({"url": "http://x.test/", "headers": ["x"]}, "headers must map names to strings"),
        ({"url": "http://x.test/", "headers": {"a": 1}}, "headers must map names to strings"),
        ({"url": "http://x.test/", "headers": {"Host": "y"}}, "the header Host must not be set"),
        (
            {"url": "http://x.test/", "headers": {"content-length": "0"}},
            "the header Content-Length must not be set",
        ),
        ({"url": "http://x.test/", "output_format": "pdf"}, "payload.output_format must be one of"),
    ],
)
def test_an_event_that_cannot_be_meant_is_final(payload: dict[str, Any], error: str) -> None:
    """Nothing is sent."""
    answer = ask("fetch", "handle", payload=payload).answer

    assert error in answer["error"]
    assert answer["retry"] is False


@pytest.mark.parametrize(
    "headers", [{"X-A": "b\r\nX-Evil: 1"}, {"X-A": "b\r\n folded"}, {"X-A\r\nX-Evil": "1"}, {"X: A": "b"}, {"X-A": "–"}]
)
def test_a_header_cannot_smuggle_another_one(site: Site, headers: dict[str, str]) -> None:
    """A line break in it is refused before anything is sent."""
    answer = fetched(site.url(), headers=headers).answer

    assert answer["retry"] is False, answer
    assert site.seen == []


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"timeout_seconds": "soon"}, "timeout_seconds must be a number"),
        ({"timeout_seconds": True}, "timeout_seconds must be a number"),
        ({"timeout_seconds": 0}, "timeout_seconds must be at least 0.1"),
        ({"max_response_bytes": 1 << 30}, "max_response_bytes must be"),
        ({"output_format": "pdf"}, "output_format must be one of"),
        ({"allowed_networks": ["10.0.0.1/8"]}, "allowed_networks"),
        ({"allowed_networks": "10.0.0.0/8"}, "allowed_networks must be a list"),
        ({"allowed_hosts": [1]}, "allowed_hosts must be a list of strings"),
    ],
)
def test_a_configuration_that_cannot_be_meant_ends_with_78(config: dict[str, Any], error: str) -> None:
    """`health` says it too."""
    outcome = ask("fetch", "health", config=config)

    assert outcome.code == 78
    assert error in outcome.answer["error"]


def test_sigterm_ends_it_in_the_middle() -> None:
    """Nothing is said and nothing is left behind."""
    connected = threading.Event()

    def waiting(over: threading.Event) -> Iterator[bytes]:
        connected.set()
        return _silence(over)

    with sending(waiting) as url:
        event = {"type": "t", "payload": {"url": url}}
        request = {"protocol": 2, "job_id": "j", "command": "handle", "config": HERE, "state": {}, "event": event}
        process = subprocess.Popen([PLUGINS / "fetch" / "run.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        process.stdin = None
        assert connected.wait(30)
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=30)

    assert (process.returncode, stdout) == (-signal.SIGTERM, b"")


@pytest.mark.parametrize("options", [("-S",), ("-I",), ("-I", "-S")])
def test_it_runs_with_nothing_but_the_standard_library(options: tuple[str, ...]) -> None:
    """Isolated, and without site-packages."""
    request = {"protocol": 2, "job_id": "j", "command": "health", "config": {}, "state": {}}

    assert said("fetch", json.dumps(request).encode(), options=options).answer["status"] == "ok"
