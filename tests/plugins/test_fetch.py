"""fetch: content, protection against SSRF, and misbehaving servers."""

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
from tests.plugins.bundled import PLUGINS, PluginRun, run_plugin, run_raw
from tests.plugins.local_http import HttpServer, Reply, start_http_server, start_raw_server
from tests.plugins.plugin_service import events_of, service_with_aliases

LOCAL = {"allowed_networks": ["127.0.0.0/8", "::1"]}
PAGE = b"""<!doctype html><html><head><title> A &amp; B </title><style>p {}</style></head>
<body><h1>Head</h1><p>One <b>two</b> <a href="/x">three</a>.</p><script>alert(1)</script><ul><li>a<li>b</ul></body>"""


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with start_http_server() as running:
        yield running


def fetch(url: str, config: dict[str, Any] | None = None, **payload: Any) -> PluginRun:
    """Run the plugin with access to local addresses."""
    return run_plugin(
        "fetch", "handle", config={**LOCAL, "timeout_seconds": 10, **(config or {})}, payload={"url": url, **payload}
    )


# In a service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    often = {"retry": {"max_attempts": 4}}
    aliases = {
        "reader": {"config": {**LOCAL, "output_format": "markdown", "user_agent": "tester/1"}},
        "twice": {"config": LOCAL, "retry": {"max_attempts": 2}},
        "allowed": {"config": LOCAL, **often},
        "guarded": often,
        "misspelt": {"config": {"allowed_host": ["example.com"]}, **often},
    }
    pipelines = (
        "pipelines: [{name: failures, on: fetch.failed, steps: [{uses: echo, with: {message: '{payload.error}'}}]}]\n"
    )
    with service_with_aliases(tmp_path_factory.mktemp("fetch"), "fetch", aliases, pipelines) as running:
        yield running


def test_handle_emits_the_fetched_page(service: Service, server: HttpServer) -> None:
    server.pages["/page"] = Reply(PAGE, headers={"Content-Type": "text/html; charset=utf-8"})
    job = service.run("reader", "handle", {"url": server.url("/page")})

    ((kind, page),) = events_of(job)
    assert kind == "fetch.completed"
    assert (page["url"], page["source_url"], page["source_type"]) == (server.url("/page"), server.url("/page"), "web")
    assert (page["status_code"], page["content_type"], page["title"]) == (200, "text/html", "A & B")
    assert page["text"] == "# Head\n\nOne **two** [three](/x).\n\n- a\n- b"
    assert job["result"]["result"] == f"200 from 127.0.0.1, {len(PAGE)} bytes"
    assert server.requests[0].headers["user-agent"] == "tester/1"


def test_a_temporary_failure_is_retried_and_finally_emits_fetch_failed(service: Service, server: HttpServer) -> None:
    server.pages["/busy"] = Reply(status=503, headers={"Retry-After": "0"})
    job = service.run("twice", "handle", {"url": server.url("/busy")})

    assert job["status"] == "dead"
    assert "attempts used up (2 of 2): 127.0.0.1 responded with status 503" in job["last_error"]
    assert len(server.requests) == 2
    followed = "SELECT count(*) AS n FROM job_queue WHERE plugin = 'echo' AND parent_job_id = ?"
    assert service.home.rows(followed, job["job_id"]) == [{"n": 1}]


def test_status_404_is_not_retried(service: Service, server: HttpServer) -> None:
    job = service.run("allowed", "handle", {"url": server.url("/gone")})

    assert (job["status"], job["last_error"]) == ("failed", "127.0.0.1 responded with status 404")
    assert len(server.requests) == 1


def test_a_private_address_is_rejected_without_configuration(service: Service, server: HttpServer) -> None:
    """Nothing is sent, and the job is not retried."""
    job = service.run("guarded", "handle", {"url": server.url("/page")})

    assert job["status"] == "failed"
    assert job["last_error"] == "127.0.0.1 resolves to 127.0.0.1, which is not public; allowed_networks can allow it"
    assert server.requests == []


def test_a_misspelled_key_is_an_error_without_retry(service: Service) -> None:
    job = service.run("misspelt", "handle", {"url": "http://example.com/"})

    assert job["status"] == "failed"
    assert "allowed_host is not a key of this plugin; did you mean allowed_hosts?" in job["last_error"]
    assert job["last_error"].startswith("exit code 78")


# Protection against SSRF


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
def test_a_private_or_ambiguous_url_is_rejected(url: str) -> None:
    response = run_plugin("fetch", "handle", payload={"url": url}).response

    assert (response["status"], response["retry"]) == ("error", False), response
    assert response["events"][0]["type"] == "fetch.failed"


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/latest/", "http://[::1]:1/", "http://0x7f000001/", "file:///etc/passwd"]
)
def test_a_redirect_to_a_private_address_is_rejected(server: HttpServer, target: str) -> None:
    server.pages["/"] = Reply(status=302, headers={"Location": target})

    response = fetch(server.url(), {"allowed_networks": ["127.0.0.1"]}).response

    assert (response["status"], response["retry"]) == ("error", False), response
    assert (
        "not public" in response["error"]
        or "not a valid address" in response["error"]
        or "begin with http" in response["error"]
    )
    assert len(server.requests) == 1


def test_the_connection_uses_the_checked_address(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding has no effect, because a name is resolved once per request."""
    monkeypatch.syspath_prepend(str(PLUGINS / "lib" / "python"))
    ductile_http: Any = importlib.import_module("ductile_http")
    resolved: list[str] = []

    def rebinding(host: str, port: int, **_: Any) -> list[Any]:
        resolved.append(host)
        address = "127.0.0.1" if len(resolved) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    server.pages["/"] = Reply(status=302, headers={"Location": f"http://rebinding.test:{server.port}/next"})
    guard = ductile_http.Guard(allowed_networks=["127.0.0.1"])

    with pytest.raises(ductile_http.Refused, match=r"to 127\.0\.0\.2"):
        ductile_http.request("GET", f"http://rebinding.test:{server.port}/", guard=guard, timeout=10, max_redirects=3)

    assert resolved == ["rebinding.test", "rebinding.test"]
    assert [(request.path, request.headers["host"]) for request in server.requests] == [
        ("/", f"rebinding.test:{server.port}")
    ]


def test_a_name_with_one_private_address_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_allowed_and_denied_hosts_restrict_requests(server: HttpServer, config: dict[str, Any], refusal: str) -> None:
    response = fetch(server.url(), config).response

    assert response["status"] == "error"
    assert refusal in response["error"]
    assert server.requests == []


def test_tls_is_verified_for_the_host_name_of_the_url(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    names: list[str | None] = []
    context.sni_callback = lambda _, name, __: names.append(name)

    with start_http_server(context) as server:
        server.pages["/"] = Reply(b"safe", headers={"Content-Type": "text/plain"})
        request = {"config": LOCAL, "payload": {"url": server.url()}}
        trusted = run_plugin("fetch", "handle", **request, environ={"SSL_CERT_FILE": str(certificate)}).response  # type: ignore[arg-type]
        foreign = run_plugin("fetch", "handle", **request).response  # type: ignore[arg-type]
        other = {"config": LOCAL, "payload": {"url": server.url().replace("localhost", "127.0.0.1")}}
        misnamed = run_plugin("fetch", "handle", **other, environ={"SSL_CERT_FILE": str(certificate)}).response  # type: ignore[arg-type]

    assert trusted["events"][0]["payload"]["text"] == "safe"
    assert "localhost" in names
    assert "certificate verify failed" in foreign["error"].lower()
    assert "certificate verify failed" in misnamed["error"].lower()


# Redirects


def test_redirects_are_followed_up_to_the_limit_and_listed(server: HttpServer) -> None:
    server.pages["/a"] = Reply(status=301, headers={"Location": "b?x=1"})
    server.pages["/b?x=1"] = Reply(b"there", headers={"Content-Type": "text/plain"})
    server.pages["/loop"] = Reply(status=302, headers={"Location": "/loop"})

    page = fetch(server.url("/a")).response["events"][0]["payload"]
    loop = fetch(server.url("/loop"), {"max_redirects": 3}).response

    assert (page["url"], page["redirects"], page["text"]) == (server.url("/b?x=1"), [server.url("/a")], "there")
    assert (loop["error"], loop["retry"]) == ("127.0.0.1 redirected more than 3 times", False)
    assert sum(request.path == "/loop" for request in server.requests) == 4


def test_a_redirect_is_the_response_without_follow_redirects(server: HttpServer) -> None:
    server.pages["/a"] = Reply(status=302, headers={"Location": "http://10.0.0.1/"})

    page = fetch(server.url("/a"), {"follow_redirects": False}).response["events"][0]["payload"]

    assert (page["status_code"], page["location"]) == (302, "http://10.0.0.1/")


def test_a_redirect_to_another_origin_gets_no_credentials(server: HttpServer) -> None:
    with start_http_server() as other:
        other.pages["/"] = Reply(b"ok", headers={"Content-Type": "text/plain"})
        server.pages["/"] = Reply(status=307, headers={"Location": other.url()})
        config = {"allowed_hosts": ["127.0.0.1"], "headers": {"Authorization": "Bearer secret"}}
        response = fetch(server.url(), config, headers={"X-Own": "1"}, method="POST", body={"a": 1}).response

    assert response["status"] == "ok", response
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    assert (server.requests[0].body, server.requests[0].headers["content-type"]) == (b'{"a": 1}', "application/json")
    assert not {"authorization", "x-own"} & set(other.requests[0].headers)


def test_configured_headers_require_allowed_hosts() -> None:
    response = run_plugin("fetch", "health", config={"headers": {"Authorization": "x"}})

    assert response.code == 78
    assert "headers require allowed_hosts" in response.response["error"]


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
def test_the_content_type_decides_the_form_of_the_body(
    server: HttpServer, kind: str, body: bytes, expected: Any
) -> None:
    """Unknown charsets are decoded as UTF-8."""
    server.pages["/"] = Reply(body, headers={"Content-Type": kind} if kind else {})

    page = fetch(server.url()).response["events"][0]["payload"]

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
def test_an_unusable_response_is_final(server: HttpServer, reply: Reply, error: str) -> None:
    server.pages["/"] = reply
    types = ["application/json", "text/*"] if "video" in error else []

    response = fetch(server.url(), {"max_response_bytes": 1000, "content_types": types}).response

    assert error in response["error"]
    assert response["retry"] is False


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


def _slow_page(_: threading.Event) -> Iterator[bytes]:
    yield HEAD.replace(b"plain", b"html") + b"Content-Length: 600000\r\n\r\n" + b"<a" * 300000


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        (_silence, "a complete response from 127.0.0.1: timed out after 0.5 s"),
        (_drip, "a complete response from 127.0.0.1: timed out after 0.5 s"),
        (_slow_page, "conversion of the page: timed out after 3 s"),
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
def test_a_misbehaving_server_fails_within_the_time_limit(
    pieces: Callable[[threading.Event], Iterator[bytes]], error: str
) -> None:
    quick: dict[str, Any] = {"max_response_bytes": 1_000_000, "output_format": "text"}
    if "timed out after" in error:
        quick["timeout_seconds"] = float(error.split()[-2])
    with start_raw_server(pieces) as url:
        response = fetch(url, quick).response

    assert error in response["error"]


def test_a_very_large_timeout_is_reduced_to_an_hour(server: HttpServer) -> None:
    server.pages["/"] = Reply(b"x")

    assert fetch(server.url(), {"timeout_seconds": 1e300}).response["status"] == "ok"


@pytest.mark.parametrize("length", ["-1", "²", "9" * 5000, "1, 2", "0x10"])
def test_an_invalid_content_length_is_ignored(length: str) -> None:
    """The body ends with the connection."""
    head = HEAD + f"Content-Length: {length}\r\n\r\n".encode()
    with start_raw_server(lambda _: [head + b"body"]) as url:
        response = fetch(url).response

    assert response["status"] == "ok", response
    assert response["events"][0]["payload"]["text"] == "body"


# Invalid requests


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
def test_an_invalid_payload_is_final(payload: dict[str, Any], error: str) -> None:
    response = run_plugin("fetch", "handle", payload=payload).response

    assert error in response["error"]
    assert response["retry"] is False


@pytest.mark.parametrize(
    "headers", [{"X-A": "b\r\nX-Evil: 1"}, {"X-A": "b\r\n folded"}, {"X-A\r\nX-Evil": "1"}, {"X: A": "b"}, {"X-A": "–"}]
)
def test_a_header_with_a_line_break_is_rejected(server: HttpServer, headers: dict[str, str]) -> None:
    response = fetch(server.url(), headers=headers).response

    assert response["retry"] is False, response
    assert server.requests == []


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
def test_an_invalid_configuration_exits_with_78(config: dict[str, Any], error: str) -> None:
    outcome = run_plugin("fetch", "health", config=config)

    assert outcome.code == 78
    assert error in outcome.response["error"]


def test_sigterm_stops_a_request() -> None:
    connected = threading.Event()

    def waiting(over: threading.Event) -> Iterator[bytes]:
        connected.set()
        return _silence(over)

    with start_raw_server(waiting) as url:
        event = {"type": "t", "payload": {"url": url}}
        request = {"protocol": 2, "job_id": "j", "command": "handle", "config": LOCAL, "state": {}, "event": event}
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
def test_the_plugin_runs_in_isolated_mode(options: tuple[str, ...]) -> None:
    """With `-I`, and without site-packages."""
    request = {"protocol": 2, "job_id": "j", "command": "health", "config": {}, "state": {}}

    assert run_raw("fetch", json.dumps(request).encode(), options=options).response["status"] == "ok"
