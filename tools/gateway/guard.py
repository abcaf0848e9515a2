"""Which requests no web page may cause. The gateway serves programs: it has no page of its own, and a page of another
site must neither register a server nor read or spend what others pay for."""

import ipaddress


def host_name(host):
    """The name of a Host header, in lower case and without its port; None if it is none."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        port = port[1:] if port.startswith(":") else port and "x"
        if not bracket:
            return None
    else:
        name, _, port = host.partition(":")
    return name if name and (not port or port.isdigit()) else None


def is_loopback(name):
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """`names`: under which the gateway may be asked besides the loopback's; "*": under any. Without names, a gateway that
    listens on the network is asked under any name; one that listens on the loopback only under the loopback's, since a
    page's own name may be made to lead there (DNS rebinding)."""

    def __init__(self, names, listens_on):
        self._names = {name.lower() for name in names}
        self._any = "*" in self._names or (not names and not is_loopback(listens_on))

    def __call__(self, environ):
        """Why the request is refused, or None."""
        site = environ.get("HTTP_SEC_FETCH_SITE")
        if site is not None and site not in ("same-origin", "none"):
            return f"Sec-Fetch-Site: {site[:40]}: requests of other sites' pages are refused"
        origin = environ.get("HTTP_ORIGIN")
        host = environ.get("HTTP_HOST")
        if origin is not None and (host is None or origin.lower() != f"http://{host.lower()}"):
            return f"Origin: {origin[:200]}: pages of other origins are refused"
        if host is None:
            return None if environ.get("SERVER_PROTOCOL") == "HTTP/1.0" else "Host: is missing"
        name = host_name(host)
        if name is None or not (self._any or is_loopback(name) or name in self._names):
            return f"Host: {host[:200]} is no name of this gateway; --allowed_hosts names others"
        return None
