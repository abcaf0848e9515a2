"""The command line of ./baton app: start_app.py's options, then our own."""

import argparse
import os
import pathlib

SERVICES = ("client", "cb_server", "sb_server")


def _published(parser):
    add = parser.add_argument
    add("--start_client_app", action="store_true", help="start the gateway")
    add("--client_config_file_path", default="client_config.json")
    add("--client_config_hot_update_interval_minutes", type=float, default=1)
    add("--client_debug", action="store_true")
    add("--client_port", type=int, default=8000)
    for kind, what, port in (("cb", "continuous", 8001), ("sb", "static", 8002)):
        add(f"--start_{kind}_server_app", action="store_true", help=f"start the {what} batching server")
        add(f"--{kind}_server_model_id", help="the name that clients ask for (the model folder's)")
        add(f"--{kind}_server_config_file_path", default=f"{kind}_server_config.json")
        add(f"--{kind}_server_debug", action="store_true")
        add(f"--{kind}_server_port", type=int, default=port)
    add("--client_url", help="gateway that hears of servers that come and go (the one started here)")
    add("--gunicorn_config_file_path", help="accepted; there is no gunicorn here")


def _own(parser):
    own = parser.add_argument_group("not in the original")
    own.add_argument("--host", default="127.0.0.1", help="0.0.0.0 opens all three to the network")
    own.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                     help="where servers whose configuration names no device compute (cpu)")
    own.add_argument("--openai_base_url", help="of the gateway's OpenAI jumper")
    own.add_argument("--log_dir", type=pathlib.Path, default=pathlib.Path("logs"))
    own.add_argument("--run_dir", type=pathlib.Path,
                     default=pathlib.Path(f"/tmp/baton-app-{os.getuid()}"),
                     help="state, sockets and generated configurations; short, since sockets live there")
    own.add_argument("--wait_seconds", type=float, default=300, help="how long to wait for readiness (300)")
    own.add_argument("--foreground", action="store_true", help="stay, and stop all on Ctrl-C")


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="baton app", description="starts the tutorial's services in background",
        usage="./baton app [start] --start_client_app --start_cb_server_app ... | status | stop")
    parser.add_argument("command", nargs="?", choices=("start", "status", "stop"), default="start")
    _published(parser)
    _own(parser)
    options = parser.parse_args(arguments)
    options.wanted = [name for name in SERVICES if getattr(options, f"start_{name}_app")]
    if options.command == "start" and not options.wanted:
        parser.error("name at least one of " + ", ".join(f"--start_{n}_app" for n in SERVICES))
    ports = [getattr(options, f"{name}_port") for name in options.wanted]
    if any(not 1 <= port <= 65535 for port in ports) or len(set(ports)) != len(ports):
        parser.error("ports must be 1 to 65535, each for one service")
    options.run_dir = options.run_dir.absolute()
    options.log_dir = options.log_dir.absolute()
    return options
