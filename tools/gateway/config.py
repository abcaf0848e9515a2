"""client_config.json as the tutorial publishes it. Values in, values out."""

import dataclasses
import urllib.parse

from gateway import relaxed_json

CONTINUOUS = "cb"
STATIC = "sb"
MAX_SERVERS = 256
MAX_KEYS = 256

_LISTS = {"continuous_batching_server_urls": CONTINUOUS, "static_batching_server_urls": STATIC}


@dataclasses.dataclass(frozen=True)
class KeyConfig:
    """One account at an OpenAI API. `base_url` is not in the original: None takes the gateway's."""

    api_key: str
    org_id: str | None = None
    base_url: str | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    servers: tuple[tuple[str, str], ...]  # (kind, URL)
    keys: tuple[KeyConfig, ...]
    heart_beat_interval_s: float


def server_url(text, key):
    """The URL without a final slash; ValueError names `key`."""
    if isinstance(text, str) and len(text) <= 2048:
        parts = urllib.parse.urlsplit(text)
        try:
            good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            good = False
        if good and not parts.query and not parts.fragment and not parts.username:
            return text.rstrip("/")
    raise ValueError(f"{key}: {text!r} is no http://HOST:PORT")


def _urls(value, key):
    if not isinstance(value, list) or len(value) > MAX_SERVERS:
        raise ValueError(f"{key}: expected a list of at most {MAX_SERVERS} URLs")
    urls = [server_url(text, key) for text in value]
    twice = next((url for url in urls if urls.count(url) > 1), None)
    if twice:
        raise ValueError(f"{key}: {twice} stands there twice")
    return urls


def _header_text(value, key):
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() \
            or not 1 <= len(value) <= 512:
        raise ValueError(f"{key}: expected 1 to 512 printable letters")
    return value


def _keys(value, where):
    if not isinstance(value, list) or len(value) > MAX_KEYS:
        raise ValueError(f"{where}: expected a list of at most {MAX_KEYS} accounts")
    keys = []
    for i, entry in enumerate(value):
        at = f"{where}[{i}]"
        if not isinstance(entry, dict):
            raise ValueError(f"{at}: expected an object with api_key and org_id")
        for name in entry:
            if name not in ("api_key", "org_id", "base_url"):
                raise ValueError(f"{at}.{name}: no such key; there are api_key, org_id, base_url")
        org, base = entry.get("org_id"), entry.get("base_url")
        keys.append(KeyConfig(_header_text(entry.get("api_key"), f"{at}.api_key"),
                              org and _header_text(org, f"{at}.org_id"),
                              base and server_url(base, f"{at}.base_url")))
    names = [key.api_key for key in keys]
    if len(set(names)) != len(names):
        raise ValueError(f"{where}: an api_key stands there twice")
    return tuple(keys)


def parse(value):
    """Config from the parsed file; ValueError names the key at fault."""
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    for name in value:
        if name not in (*_LISTS, "openai_jumper_configs", "heart_beat_interval_seconds"):
            raise ValueError(f"{name}: no such key")
    servers = tuple((kind, url) for key, kind in _LISTS.items()
                    for url in _urls(value.get(key) or [], key))
    beat = value.get("heart_beat_interval_seconds", 600)
    if isinstance(beat, bool) or not isinstance(beat, (int, float)) or not 0.1 <= beat <= 86400:
        raise ValueError(f"heart_beat_interval_seconds: is {beat!r}; it may be 0.1 to 86400")
    return Config(servers, _keys(value.get("openai_jumper_configs") or [], "openai_jumper_configs"),
                  float(beat))


def load(path):
    """OSError, or ValueError that names the file."""
    value = relaxed_json.load(path)
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
