"""./baton app [start] | status | stop. See docs/programs.md."""

import pathlib
import signal
import socket
import sys
import threading
import time

if not __package__:  # run as a folder: make the packages importable by their names
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from app import process, services  # noqa: E402
from app.options import parse  # noqa: E402
from app.services import TITLES, CannotStart  # noqa: E402
from app.state import State  # noqa: E402

_STOP_S = {"client": 15.0, "cb": 25.0, "sb": 25.0}  # the supervisor's own bounds are shorter


def runs(service):
    return process.alive(service["processes"][0])


def check_port(options, name):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, getattr(options, f"{name}_port")))
        except OSError as error:
            raise CannotStart(f"--{name}_port {getattr(options, f'{name}_port')}: {error.strerror}") from None


def tail(path, lines=8):
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join("    " + line for line in text.splitlines()[-lines:])


def wait_ready(state, names, seconds):
    """CannotStart names the service that is not ready in time, or has ended."""
    began = time.monotonic()
    for name in names:
        service, said = state[name], ""
        while True:
            status, text = services.get(service["url"], "/health")
            if status == 200:
                break
            if not runs(service):
                raise CannotStart(f"{name} has ended:\n{tail(service['logs'][1])}")
            if time.monotonic() - began > seconds:
                raise CannotStart(f"{name} is not ready after {seconds:g} s: {text[:200]}")
            if text and text != said:
                print(f"  {name}: {text[:110]}", flush=True)
                said = text
            time.sleep(0.2)
        print(f"  {name} is ready after {time.monotonic() - began:.1f} s: {service['url']}", flush=True)


def announce(url, state):
    """Tells the gateway of the servers, which do so themselves, but perhaps two seconds later. Not to be
    heard is no failure."""
    for service in state.values():
        if url and service["kind"] != "client":
            services.post(url, "/event/server_startup", {
                "url": service["url"], "server_type": service["kind"], "model_id": service["model_id"]})


def start(options, store):
    state = {name: service for name, service in store.read().items() if runs(service)}
    for name in options.wanted:
        if name in state:
            raise CannotStart(f"{name} runs already at {state[name]['url']}; ./baton app stop")
    if options.client_url is None and ("client" in state or "client" in options.wanted):
        options.client_url = services.local_url(options, "client") if "client" in options.wanted \
            else state["client"]["url"]
    # Servers first, so that the gateway finds them.
    chosen = [services.make(options, name) for name in sorted(options.wanted, key=lambda n: n == "client")]
    for service in chosen:
        service.prepare()
        check_port(options, service.name)
        for note in service.notes:
            print(f"  note: {note}")
    try:
        for service in chosen:
            state[service.name] = service.start()
            store.write(state)
            print(f"  {service.name}: process {state[service.name]['processes'][0]['pid']}, "
                  f"logs {state[service.name]['logs'][0]}", flush=True)
        wait_ready(state, [service.name for service in chosen], options.wait_seconds)
    except BaseException:
        end(state, [service.name for service in chosen if service.name in state])
        store.write(state)
        raise
    announce(options.client_url, state)


def end(state, names):
    """Stops them, the gateway first, so that nobody asks a server that goes. True if all went by themselves."""
    good = True
    for name in sorted(names, key=lambda n: n != "client"):
        service = state.pop(name)
        main, *others = service["processes"]
        was_up = runs(service)
        clean = process.end(main, _STOP_S[service["kind"]])
        for other in others:  # they end with what they read
            limit = time.monotonic() + 5
            while process.alive(other) and time.monotonic() < limit:
                time.sleep(0.02)
        good = good and clean
        print(f"  {name}: {'stopped' if clean and was_up else 'had ended' if clean else 'killed'}", flush=True)
    return good


def status(store):
    """0: all that was started is ready; 1: something is not; 3: nothing was started."""
    state = store.read()
    code = 0 if state else 3
    for name, service in state.items():
        pid = service["processes"][0]["pid"]
        if not runs(service):
            line, code = "has ended", 1
        else:
            answer, text = services.get(service["url"], "/health")
            line = "ready" if answer == 200 else f"not ready: {text[:100]}"
            code = code if answer == 200 else 1
            line += f", up {process.uptime_s(service['processes'][0]['started']):.0f} s"
        model = f" model {service['model_id']}" if "model_id" in service else ""
        print(f"{TITLES[name]:24} pid {pid:<7} {service['url']:24}{model} {line}")
    if not state:
        print("nothing was started")
    return code


def stop_all(options, store):
    state = store.read()
    good = end(state, list(state))
    store.write(state)
    return 0 if good else 1


def stay():
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    print("Ctrl-C stops them.", flush=True)
    stop.wait()


def main(arguments=None):
    options = parse(arguments)
    store = State(options.run_dir)
    try:
        if options.command == "status":
            return status(store)
        if options.command == "start":
            with store.locked():
                start(options, store)
            if not options.foreground:
                return 0
            stay()
        with store.locked():
            return stop_all(options, store)
    except (CannotStart, OSError) as error:
        print(f"baton app: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
