"""What can be said of the network before something is asked of it."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def resolves(address: str) -> bool:
    """Say if the host of an address has an IP, or a proxy would look it up. Without it every
    further try fails alike, and libraries that try again only wait."""
    parts = urlsplit(address)
    host, proxies = parts.hostname or "", getproxies()
    if not proxy_bypass(host) and not {parts.scheme, "all"}.isdisjoint(proxies):
        return True
    try:
        socket.getaddrinfo(host, parts.port)
    except (OSError, UnicodeError):
        return False
    return True
