"""Roles that follow the load (scheduler.roles: auto), with real processes and a fake model."""

import unittest

from cluster import Cluster, wait_until

REPLIES = [f"Story {i}" for i in range(8)]
PROMPTS = [f"{i} " + "word " * 400 for i in range(24)]
# A step takes 4 ms at the least; four sequences fill a worker.
SCHEDULER = {"roles": "auto", "role_dwell_s": 0.5, "role_queue_s": 0.1, "max_running": 4, "token_budget": 64,
             "prompt_chunk": 64, "prefix_cache": False}


def long(cluster, prompt, tokens=300):
    return cluster.stream(prompt, max_tokens=tokens, temperature=0, ignore_eos=True)


class AutoRoles(unittest.TestCase):
    def role(self, name):
        return next((w["role"], w["role_by"]) for w in self.cluster.show("workers") if w["name"] == name)

    def wait_role(self, name, role, seconds=8):
        wait_until(lambda: self.role(name) == role, seconds,
                   f"{name} is {role}; it is {self.role(name)}, {self.cluster.show('roles')}")

    def changes(self):
        return self.cluster.show("info")["counters"]["role_changes"]

    def test_a_worker_follows_the_load_and_goes_home(self):
        with Cluster(fake=True, worker={"step_delay_ms": 4}, scheduler=SCHEDULER) as self.cluster:
            cluster = self.cluster
            alone = long(cluster, REPLIES[0]).finish()
            self.assertEqual(0, self.changes())

            # Replies fill the decode worker: the other one helps.
            streams = [long(cluster, prompt) for prompt in REPLIES]
            self.wait_role("prefill0", ("mixed", "auto"))
            self.assertEqual(("decode", "configuration"), self.role("decode0"))
            texts = [stream.finish() for stream in streams]
            self.assertEqual(alone, texts[0])
            self.assertEqual({300}, {tokens for _, tokens, _ in texts})
            self.wait_role("prefill0", ("prefill", "configuration"))

            # Prompts queue: the decode worker helps, unless an operator says no.
            streams = [long(cluster, prompt, 2) for prompt in PROMPTS]
            self.wait_role("decode0", ("mixed", "auto"))
            self.assertEqual({2}, {stream.finish()[1] for stream in streams})
            self.wait_role("decode0", ("decode", "configuration"))
            found = cluster.show("roles")
            self.assertEqual(("auto", self.changes()), (found["roles"], found["changes"]))
            self.assertRegex(found["last_change"], r"^decode0, mixed to decode: \d+\.\d+ s of prompts wait")
            self.assertRegex((cluster.folder / "scheduler.log").read_text(),
                             r"decode0: was decode, is mixed from now on: \d+\.\d+ s of prompts wait, prompts take")

            self.assertEqual("ok\n", cluster.ctl("set worker decode0 role decode"))
            wait_until(lambda: self.role("decode0") == ("decode", "operator"), 5, "held")
            before = self.changes()
            streams = [long(cluster, prompt, 2) for prompt in PROMPTS]
            for stream in streams:
                stream.finish()
            self.assertEqual(before, self.changes())
            self.assertEqual("ok\n", cluster.ctl("set worker decode0 role auto"))
            wait_until(lambda: self.role("decode0") == ("decode", "configuration"), 5, "not held any more")
            cluster.assert_at_rest()

    def test_fixed_roles_are_not_given_to_anybody(self):
        with Cluster(fake=True) as cluster:
            self.assertIn("scheduler.roles is fixed", cluster.ctl("set worker decode0 role auto"))


if __name__ == "__main__":
    unittest.main()
