"""Addresses of servers on a command line."""

from urllib.parse import urlsplit

from headway.errors import ConfigError


def check_url(url: str) -> None:
    """Raise ConfigError for what is no address of a server."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is out of range
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable()
    except ValueError:
        good = False
    if not good or " " in url:
        raise ConfigError(f"{url!r} is no URL of a server: http[s]://HOST[:PORT]")
