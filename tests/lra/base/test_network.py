"""A host is looked up once, unless a proxy does it."""

from __future__ import annotations

import socket

import pytest

from lra.base.network import resolves

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
HUB = "https://huggingface.co"


@pytest.fixture(autouse=True)
def asked(monkeypatch) -> list[str]:
    """No proxy, and no network: the hosts that were looked up."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    hosts: list[str] = []

    def look_up(host, port):
        hosts.append(host)
        if host != "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return hosts


def test_a_host_is_looked_up_once(asked):
    assert not resolves(HUB)
    assert resolves("http://localhost:8080/mirror")
    assert asked == ["huggingface.co", "localhost"]


def test_what_no_resolver_takes_does_not_resolve(monkeypatch):
    monkeypatch.undo()
    assert not resolves(f"https://{'a' * 70}.invalid")  # a label has at most 63 letters


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"https_proxy": "http://proxy:3128"}, True),  # which looks the host up itself
        ({"all_proxy": "http://proxy:3128"}, True),
        ({"http_proxy": "http://proxy:3128"}, False),  # for another scheme
        ({"https_proxy": "http://proxy:3128", "no_proxy": "huggingface.co"}, False),
    ],
)
def test_a_proxy_looks_hosts_up(settings, expected, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert resolves(HUB) == expected
