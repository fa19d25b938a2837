"""Relay settings: rules and lookups."""

import pytest

from ductile.config.load.load import load
from ductile.config.sections.relay import (
    EventNotAllowed,
    InstanceDisabled,
    find_instance,
    find_peer,
    ingress_url,
    url_path,
)
from ductile.config.sections.settings import Settings
from ductile.core.errors import ConfigInvalid, NotFound
from tests.e2e.service import Home as Service

INSTANCE = "{{name: lab, base_url: '{}', ingress_path: /in, secret_ref: t{}}}"


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    created = Service.make(tmp_path_factory.mktemp("relay") / "home")
    created.plugin("echo", "#!/bin/sh\n")
    created.write("tokens.yaml", "tokens: [{name: t, key: a-secret-0123456789abcdef}]\n")
    return created


def load_settings(service: Service, text: str) -> Settings:
    service.add(f"include: [tokens.yaml]\n{text}\n")
    service.seal()
    return load(service.path / "config.yaml").settings


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        *(
            (f"instances: [{INSTANCE.format(url, '')}]", "instances[0].base_url", "is not a valid URL")
            for url in ("http://host:99999", "http://host:port", "http://[::1", "http://höst")
        ),
        (f"instances: [{INSTANCE.format('http://h', ', key_id: schlüssel')}]", "instances[0].key_id", "must be ASCII"),
        ("remote_ingress: {peers: [{name: a, secret_ref: t, key_id: é}]}", "peers[0].key_id", "must be ASCII"),
        ("remote_ingress: {listen_path: '/in/{x}'}", "remote_ingress.listen_path", "without braces"),
        ("remote_ingress: {listen_path: /}", "remote_ingress.listen_path", "segments joined by '/'"),
        ("remote_ingress: {listen_path: /in/}", "remote_ingress.listen_path", "segments joined by '/'"),
        ("remote_ingress: {listen_path: /in/../x}", "remote_ingress.listen_path", "segments joined by '/'"),
        ("remote_ingress: {listen_path: /in%20x}", "remote_ingress.listen_path", "segments joined by '/'"),
        (
            "remote_ingress: {peers: [{name: a, secret_ref: t, baggage: {allow: [ductile]}}]}",
            "peers[0].baggage.allow",
            "is reserved",
        ),
    ],
)
def test_invalid_relay_settings_are_refused_at_load(service: Service, text: str, path: str, reason: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load_settings(service, text)
    assert path in str(refused.value)
    assert reason in str(refused.value)


@pytest.mark.parametrize("path", ["/ingest/peer", "/x", "/.well-known/in", "/a.b/c..d"])
def test_a_valid_listen_path_is_accepted(service: Service, path: str) -> None:
    settings = load_settings(service, f"remote_ingress: {{listen_path: {path}}}")
    assert settings.remote_ingress is not None
    assert settings.remote_ingress.listen_path == path


def test_an_instance_is_found_by_name_if_it_allows_the_event(service: Service) -> None:
    """Otherwise the error states the reason."""
    settings = load_settings(
        service,
        "instances:\n"
        "  - {name: lab, base_url: 'https://lab/base/', ingress_path: /in/home, secret_ref: t, allow: [a.b]}\n"
        "  - {name: attic, enabled: false, base_url: 'https://attic', ingress_path: /in, secret_ref: t}\n",
    )
    lab = find_instance(settings, "lab", "a.b")
    assert ingress_url(lab) == "https://lab/base/in/home"
    assert url_path(ingress_url(lab)) == "/base/in/home"
    with pytest.raises(EventNotAllowed, match=r"instance lab does not allow 'c\.d'"):
        find_instance(settings, "lab", "c.d")
    with pytest.raises(InstanceDisabled, match="instance attic is disabled"):
        find_instance(settings, "attic", "a.b")
    with pytest.raises(NotFound, match="did you mean 'attic'"):
        find_instance(settings, "atic", "a.b")


def test_a_disabled_peer_is_not_found(service: Service) -> None:
    peers = "{peers: [{name: a, secret_ref: t}, {name: b, enabled: false, secret_ref: t}]}"
    settings = load_settings(service, f"remote_ingress: {peers}")
    assert [find_peer(settings, name) is not None for name in ("a", "b", "c")] == [True, False, False]
