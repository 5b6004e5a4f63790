"""Who may use the proxy: keys of its own, which are never the providers'.

Pure. Knows keys and addresses; no HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping

from specroute.errors import ConfigError


class Keys:
    """The keys that are let in. None at all: everybody is, which only a loopback address allows."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        # Hashes have one length, so that comparing them tells nothing of a key's.
        self._hashes = tuple(_hash(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def __repr__(self) -> str:
        return f"Keys({len(self._hashes)})"

    @classmethod
    def from_env(cls, name: str, environment: Mapping[str, str]) -> Keys:
        """Those in the variable ``name``, separated by commas or blanks; none if it isn't set."""
        return cls(environment.get(name, "").replace(",", " ").split())

    def admit(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers (names in lower case) may pass."""
        if not self._hashes:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            given = headers.get("api-key", "")
        seen = _hash(given.strip())
        return any(hmac.compare_digest(seen, known) for known in self._hashes)


def check_address(host: str, keys: Keys, variable: str) -> None:
    """:class:`ConfigError` for an address that others can reach, without a key."""
    if keys or _loopback(host):
        return
    raise ConfigError(
        f"host {host!r} can be reached by others, who could then spend your providers' money: set "
        f"{variable} to one or more keys, or listen on 127.0.0.1"
    )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
