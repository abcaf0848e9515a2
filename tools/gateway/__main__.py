"""baton-gateway, the tutorial's client app:

    ./baton gateway --client_config_file_path client_config.json --port 8000

SIGHUP reads the configuration at once; SIGTERM and SIGINT let the requests at work end.
"""

import argparse
import importlib.util
import logging
import logging.handlers
import math
import os
import pathlib
import signal
import sys
import threading

if not __package__:  # run as a folder: make the package importable by its name
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])
_FETCHED = pathlib.Path(os.environ.get("BATON_DEPS") or pathlib.Path(__file__).resolve().parents[2] / ".deps") / "gateway"
if _FETCHED.is_dir():
    sys.path.insert(1, str(_FETCHED))
if not importlib.util.find_spec("waitress"):
    sys.exit(f"baton gateway: waitress is not in {_FETCHED}; ./baton setup fetches it")

from gateway.config import server_url  # noqa: E402
from gateway.directory import Directory  # noqa: E402
from gateway.forward import Forwarder, refusal  # noqa: E402
from gateway.guard import Guard  # noqa: E402
from gateway.http_server import HttpServer  # noqa: E402
from gateway.jumper import Jumper  # noqa: E402
from gateway.routes import App  # noqa: E402
from gateway.watch import Watch  # noqa: E402

_MAX_LOG_BYTES = 64 << 20

log = logging.getLogger("gateway")


def underscored(argument):
    """--run-dir=a-b as --run_dir=a-b."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return "--" + name.replace("-", "_") + equals + value


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="baton gateway", description="one address before several completion servers")
    parser.add_argument("--client_config_file_path", default="client_config.json")
    parser.add_argument("--client_config_hot_update_interval_minutes", type=float, default=1,
                        help="how often the file is looked at (1; a fraction is fine)")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    own = parser.add_argument_group("not in the original")
    own.add_argument("--host", default="127.0.0.1", help="0.0.0.0 opens it to the network (127.0.0.1)")
    own.add_argument("--openai_base_url", default="https://api.openai.com/v1")
    own.add_argument("--timeout_seconds", type=float, default=100,
                     help="how long one server may take for a request (100)")
    own.add_argument("--probe_seconds", type=float, default=2,
                     help="how often a server that is down is asked (2)")
    own.add_argument("--threads", type=int, default=256, help="requests answered at a time (256)")
    own.add_argument("--request_seconds", type=float, default=30,
                     help="how long a request may take to arrive (30)")
    own.add_argument("--allowed_hosts", default="",
                     help="other names that a Host header may have, with commas between; * is any (localhost and its "
                          "addresses; any where --host is open to the network)")
    own.add_argument("--allow_registration", action="store_true",
                     help="servers of this host that the configuration does not name may register")
    own.add_argument("--drain_seconds", type=float, default=10,
                     help="how long a stop waits for requests at work (10)")
    own.add_argument("--access_log", help="file for a line a request (stderr)")
    own.add_argument("--error_log", help="file for everything else (stderr)")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args([underscored(text) for text in given])
    minutes = options.client_config_hot_update_interval_minutes
    if not (math.isfinite(minutes) and 0.001 <= minutes <= 1e5):
        parser.error("--client_config_hot_update_interval_minutes must be 0.001 to 100000")
    if not 0.01 <= options.timeout_seconds <= 86400:
        parser.error("--timeout_seconds must be 0.01 to 86400")
    if not 0.05 <= options.probe_seconds <= 86400:
        parser.error("--probe_seconds must be 0.05 to 86400")
    if not 1 <= options.threads <= 4096:
        parser.error("--threads must be 1 to 4096")
    if not 0.1 <= options.request_seconds <= 3600:
        parser.error("--request_seconds must be 0.1 to 3600")
    options.allowed_hosts = [name.strip() for name in options.allowed_hosts.split(",") if name.strip()]
    try:
        options.openai_base_url = server_url(options.openai_base_url, "--openai_base_url")
    except ValueError as error:
        parser.error(str(error))
    return options


def open_logs(options):
    form = logging.Formatter("%(asctime)s %(levelname)s [%(name)s] %(message)s")
    for name, path in (("access", options.access_log), ("gateway", options.error_log),
                       ("waitress", options.error_log)):
        handler = logging.StreamHandler() if not path else logging.handlers.RotatingFileHandler(
            path, maxBytes=_MAX_LOG_BYTES, backupCount=2, encoding="utf-8")
        handler.setFormatter(form)
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if options.debug else logging.INFO)
        logger.propagate = False


def main(arguments=None):
    options = parse(arguments)
    try:
        open_logs(options)
    except OSError as error:
        print(f"baton gateway: {error}", file=sys.stderr)
        return 2
    directory = Directory()
    jumper = Jumper(options.openai_base_url, timeout_s=options.timeout_seconds)
    forwarder = Forwarder(directory, timeout_s=options.timeout_seconds)
    watch = Watch(directory, jumper, options.client_config_file_path,
                  60 * options.client_config_hot_update_interval_minutes, options.probe_seconds)
    try:
        watch.begin()
        server = HttpServer((options.host, options.port),
                            App(directory, forwarder, jumper, watch, options.allow_registration), refusal,
                            Guard(options.allowed_hosts, options.host), options.threads, options.request_seconds)
    except (OSError, ValueError) as error:
        print(f"baton gateway: {error}", file=sys.stderr)
        return 2
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: watch.reload_soon())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"baton gateway listens on http://{options.host}:{server.server_address[1]}", flush=True)
    stop.wait()
    log.info("stopping")
    watch.end()
    whole = server.stop(options.drain_seconds)
    if not whole:
        log.error("requests were still at work after %g s", options.drain_seconds)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
