"""Where other nodes ask this daemon."""

import ipaddress
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from fabricd.config import Config


def advertised_url(config: Config, port: int) -> str:
    """Return the URL under which this daemon tells the others of itself, ``""`` when they cannot reach it.

    Args:
        config: with ``advertise_url`` it decides; else it says at which address the daemon listens.
        port: that it listens at.
    """
    if config.advertise_url is not None:
        return config.advertise_url
    address, secure = ipaddress.ip_address(config.host), config.tls_certificate_file is not None
    if not address.is_unspecified and not address.is_loopback:
        return listening_url(address, port, secure=secure)
    own = next((found for url in config.etcd_endpoints if (found := _address_towards(url))), None)
    # A daemon on loopback can be asked by those beside it, and they are all there is if etcd is there too.
    if own is None or own.is_loopback != address.is_loopback:
        return ""
    return listening_url(own, port, secure=secure)


def listening_url(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, *, secure: bool) -> str:
    """Return the URL of a daemon that listens there, with TLS or without."""
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"{'https' if secure else 'http'}://{host}:{port}"


def _address_towards(url: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of this host from which a packet to that host would go. Nothing is sent."""
    parts = urlsplit(url)
    with suppress(OSError):
        family, _, _, _, target = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return ipaddress.ip_address(probe.getsockname()[0])
    return None
