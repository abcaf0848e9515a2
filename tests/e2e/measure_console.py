"""What the console costs: processor time of scheduler and front end while N streams run, with nobody who watches,
with one, and with sixteen, in turns.

    python3 tests/e2e/measure_console.py --streams 256 --rounds 5 --seconds 10
"""

import argparse
import pathlib
import selectors
import socket
import statistics
import threading
import time

from cluster import Cluster
from test_http import completion


def seconds_of(process):
    """Processor time that it has had, all threads together."""
    return sum(int(task.read_text().split()[0]) for task in
               pathlib.Path(f"/proc/{process.pid}/task").glob("*/schedstat")) / 1e9


class Reader:
    """Reads sockets and throws away what comes."""

    def __init__(self):
        self.selector, self.bytes, self.stopped = selectors.DefaultSelector(), 0, False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def add(self, port, request):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(request)
        client.setblocking(False)
        self.selector.register(client, selectors.EVENT_READ)

    def run(self):
        while not self.stopped:
            for key, _ in self.selector.select(0.2):
                self.bytes += len(key.fileobj.recv(1 << 18))
            time.sleep(0.02)

    def close(self):
        self.stopped = True
        self.thread.join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--step-ms", type=int, default=50)
    parser.add_argument("--pool-mib", type=int, default=4096)
    options = parser.parse_args()
    watch = b"GET /console/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Cluster(fake=True, scheduler={"max_running": max(256, options.streams)},
                 worker={"step_delay_ms": options.step_ms, "pool_mib": options.pool_mib}) as cluster:
        port = next(iter(cluster.frontends.values()))
        load = Reader()
        tokens = int(1.3 * 3 * options.rounds * (options.seconds + 1) * 1000 / options.step_ms) + 400
        for _ in range(options.streams):
            load.add(port, completion(tokens))
        time.sleep(8)
        pools = cluster.show("live")["pools"]
        print(f"{cluster.show('live')['running']} streams; blocks: {[pool['total'] for pool in pools]}; "
              f"one picture: {len(cluster.ctl('show live json'))} bytes")
        used = {}
        for _ in range(options.rounds):
            for watchers in (0, 1, 16):
                reader = Reader()
                for _ in range(watchers):
                    reader.add(port, watch)
                time.sleep(1)
                before = {name: seconds_of(cluster.processes[name]) for name in ("scheduler", "frontend0")}
                began, counted, bytes_before = time.monotonic(), cluster.show("info")["counters"]["tokens"], reader.bytes
                time.sleep(options.seconds)
                took = time.monotonic() - began
                rate = (cluster.show("info")["counters"]["tokens"] - counted) / took
                shares = {name: 100 * (seconds_of(cluster.processes[name]) - was) / took for name, was in before.items()}
                used.setdefault(watchers, []).append((shares["scheduler"], shares["frontend0"], rate,
                                                      (reader.bytes - bytes_before) / took / max(1, watchers)))
                reader.close()
        for watchers, rows in used.items():
            scheduler, frontend, rate, read = (statistics.median(column) for column in zip(*rows))
            print(f"{watchers:2} watchers: scheduler {scheduler:.2f} % of a core, front end {frontend:.2f} %, "
                  f"{rate:.0f} tokens/s, {read / 1000:.1f} kB/s to each")
        for watchers in (1, 16):
            more = [one[0] + one[1] - none[0] - none[1] for one, none in zip(used[watchers], used[0])]
            print(f"{watchers:2} watchers cost {statistics.median(more):+.2f} % of a core (median of {len(more)}; "
                  f"from {min(more):+.2f} to {max(more):+.2f})")
        load.close()


if __name__ == "__main__":
    main()
