"""Two front ends, the scheduler and two fake workers under load, leavers, nonsense and a death.

Made for the sanitizer trees, where any report ends its process with a status of its own; it runs in
the ordinary tree as well.
"""

import random
import signal
import unittest

from cluster import Cluster, wait_until

STREAMS = 48
FRONTENDS = ("frontend0", "frontend1")
BAD = [{"prompt": "a", "max_tokens": -1}, {"prompt": 5}, {"prompt": "a", "temperature": "hot"},
       {"prompt": "a", "tools": 1}, {"prompt": "x " * 200_000}, []]


class LoadTest(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(7)

    def open_streams(self, cluster, count):
        streams = []
        for i in range(count):
            length = self.random.randint(40, 160)
            prompt = " ".join(["word"] * self.random.randint(1, 400))
            parameters = {"max_tokens": length, "min_tokens": length, "seed": i}
            streams.append(cluster.stream(prompt, FRONTENDS[i % 2], **parameters))
        return streams

    def test_load_with_leavers_nonsense_and_a_death(self):
        with Cluster(fake=True, frontends=FRONTENDS, worker={"step_delay_ms": 5}) as cluster:
            streams = self.open_streams(cluster, STREAMS)
            for body in BAD:
                for name in FRONTENDS:
                    status, answer = cluster.post("/v1/completions", body, name)
                    self.assertEqual(4, status // 100, answer)
            leavers, stayers = streams[:STREAMS // 4], streams[STREAMS // 4:]
            for stream in streams:
                stream.wait_pieces(1, 60)
            for stream in leavers:
                stream.leave()
            cluster.restart("decode0")
            for name in FRONTENDS:
                self.assertEqual(200, cluster.get("/metrics", name)[0])
            for stream in stayers:
                _, tokens, reason = stream.finish()
                self.assertEqual((stream.body["max_tokens"], "length"), (tokens, reason))
            # The streams may have ended without it: a process that is still being loaded has no handler yet.
            wait_until(lambda: cluster.worker_state("decode0") == "ready", 60, "decode0 is back")
            cluster.assert_at_rest(30)
            self.stop_cleanly(cluster)

    def stop_cleanly(self, cluster):
        """SIGTERM, front ends first; every process ends with 0 and no sanitizer has complained."""
        for names in (FRONTENDS, ("prefill0", "decode0"), ("scheduler",)):
            for name in names:
                cluster.signal(name, signal.SIGTERM)
            for name in names:
                process = cluster.processes[name]
                wait_until(lambda: process.poll() is not None, 15, f"{name} ends")
                self.assertEqual(0, process.returncode, name)
        for log in cluster.folder.glob("*.log"):
            self.assertNotIn("Sanitizer", log.read_text(errors="replace"), log.name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
