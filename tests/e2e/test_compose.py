"""docker/*.yaml as Docker's own compose reads them, and what their services say of one another. No container is started."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import client_packages

client_packages.install("compose")

from cluster import BIN, SOURCE

COMPOSE = client_packages.BUILD / "compose-client" / "bin" / "docker-compose"
DOCKER = SOURCE / "docker"


def services(file, **environment):
    done = subprocess.run([COMPOSE, "-f", DOCKER / file, "config", "--format", "json"], capture_output=True, text=True,
                          timeout=60, env={"PATH": os.environ["PATH"], "HOME": tempfile.gettempdir(), **environment})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


def process(service):
    """The process of the configuration that a service starts."""
    command = service["command"]
    return command[command.index("--only") + 1]


class Compose(unittest.TestCase):
    def check(self, file):
        found = services(file)
        base = found.pop("base")
        self.assertEqual(("shareable", "none"), (base["ipc"], base["network_mode"]))
        self.assertIn("shm_size", base)
        self.assertNotIn("pid", base)
        for name, service in found.items():
            with self.subTest(file=file, service=name):
                self.assertEqual(("service:base", "service:base"), (service["pid"], service["ipc"]))
                self.assertIn("base", service["depends_on"])
                self.assertLessEqual(set(service["depends_on"]), {"base", *found})
                self.assertIn("/run/baton", [volume["target"] for volume in service["volumes"]])
                # It is asked after the process that it starts.
                self.assertEqual(process(service), service["healthcheck"]["test"][-1])
                self.assertEqual(process(service).removesuffix("0" if name == "frontend" else ""), name)
                self.assertTrue(service["read_only"])
                self.assertEqual(["ALL"], service["cap_drop"])
        return found

    def test_processors(self):
        self.assertEqual({"frontend", "scheduler", "memory", "prefill0", "decode0"}, set(self.check("compose.yaml")))

    def test_ranks(self):
        for name, service in services("compose.yaml", BATON_RANKS="2").items():
            if name not in ("prefill0", "decode0"):
                continue
            self.assertEqual(["--worker.ranks", "2"], service["command"][-2:])
            self.assertEqual("2", service["environment"]["BATON_RANKS"])

    def test_gpus(self):
        found = self.check("compose.cuda.yaml")
        # CUDA's own IPC: the same GPUs in the same order, and one network namespace for abstract sockets.
        on_gpus = {name for name, service in found.items() if "deploy" in service}
        self.assertEqual({"memory-gpu0", "memory-gpu1", "prefill0", "decode0"}, on_gpus)
        seen = set()
        for name in on_gpus:
            service = found[name]
            self.assertEqual("service:base", service["network_mode"])
            device, = service["deploy"]["resources"]["reservations"]["devices"]
            self.assertEqual(("nvidia", -1, ["gpu"]), (device["driver"], device["count"], device["capabilities"]))
            seen.add(service["environment"]["CUDA_VISIBLE_DEVICES"])
        self.assertEqual({"0,1"}, seen)
        self.assertEqual("host", found["frontend"]["network_mode"])
        changed = services("compose.cuda.yaml", BATON_GPUS="2,5")
        self.assertEqual({"2,5"}, {changed[name]["environment"]["CUDA_VISIBLE_DEVICES"] for name in on_gpus})

    def test_the_services_are_those_of_the_configuration(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "cuda.yaml"
            path.write_text((DOCKER / "cuda.yaml").read_text().replace("model: /model", f"model: {SOURCE}/demo/model"))
            # Asked for a process that is not there, the supervisor names those that are, and starts none.
            done = subprocess.run([BIN / "baton-supervisor", "--config", path, "--run_dir", folder, "--only", "decode7"],
                                  capture_output=True, text=True, timeout=30)
        self.assertNotEqual(0, done.returncode)
        names = done.stderr.split("the configuration has ")[1].strip().replace(" and ", ", ")
        wanted = {process(service) for name, service in services("compose.cuda.yaml").items() if name != "base"}
        self.assertEqual(wanted, set(re.split(r",\s*", names)))

    def test_the_images_have_what_the_services_call(self):
        for file in ("Dockerfile", "Dockerfile.cuda"):
            text = (DOCKER / file).read_text()
            for source in re.findall(r"(?m)^COPY (?!--from)(\S+) /", text):
                self.assertTrue((SOURCE / source).exists(), f"{file}: {source}")
            self.assertIn("/opt/baton/bin/healthcheck", text)
        self.assertEqual("/etc/baton/cuda.yaml", services("compose.cuda.yaml")["decode0"]["volumes"][1]["target"])
        self.assertIn('"--config", "/etc/baton/cuda.yaml"', (DOCKER / "Dockerfile.cuda").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
