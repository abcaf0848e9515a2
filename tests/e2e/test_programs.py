"""The write-ups' programs and services with real Baton processes: ./baton app, the gateway before two
servers of which one is killed, the test programs."""

import concurrent.futures
import contextlib
import io
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from cluster import DEMO_MODEL, PATIENCE, SOURCE, Cluster, free_port, wait_until

sys.path[:0] = [str(SOURCE / "tools"), str(SOURCE / "tests" / "tools")]
from app import process  # noqa: E402
from gateways import Gateway  # noqa: E402
from loadgen import compare, lab, precision, serving, tutorial  # noqa: E402

DOORS = {"dialects": "openai,lab,mindspore,tutorial"}


def completion(tokens, prompt="What is Baton?", model="demo", **config):
    return {"model": model, "prompt": prompt,
            "generation_config": {"max_new_tokens": tokens, "min_new_tokens": tokens, **config}}


class InFolder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(contextlib.chdir(self.folder))


class GatewayUnderFire(InFolder):
    def test_no_request_fails_when_one_of_two_servers_is_killed(self):
        with Cluster(workers=[("mixed0", "mixed")], frontend=DOORS) as one, \
                Cluster(workers=[("mixed0", "mixed")], frontend=DOORS) as two:
            urls = [f"http://127.0.0.1:{c.frontends['frontend0']}" for c in (one, two)]
            with Gateway(self.folder, {"continuous_batching_server_urls": urls}) as gateway:
                self.load_and_kill(gateway, urls, one)
                self.assertEqual([0, 0], [gateway.server(url)["load"] for url in urls])
                one.start("frontend0")
                one.wait_ready()  # it answers before it knows of workers, and refuses until then
                wait_until(lambda: gateway.server(urls[0])["available"], 20, "the server is back")
                before = gateway.server(urls[0])["served"]
                for _ in range(4):
                    self.assertEqual(200, gateway.post("/completion/v2", completion(4))[0])
                self.assertGreater(gateway.server(urls[0])["served"], before)

    def load_and_kill(self, gateway, urls, victim):
        def ask(i):
            return gateway.post("/completion/v2", completion(40 + i % 30, f"Question {i}"), timeout=120)

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            replies = [pool.submit(ask, i) for i in range(120)]
            wait_until(lambda: gateway.server(urls[0])["served"] >= 10
                       and gateway.server(urls[0])["running"] >= 2, 60, "both are at work")
            victim.kill("frontend0")
            done = [reply.result() for reply in replies]
        self.assertEqual({200}, {status for status, _ in done}, [d for d in done if d[0] != 200][:3])
        self.assertEqual([40 + i % 30 for i in range(120)],
                         [reply["usage"]["completion_tokens"] for _, reply in done])
        self.assertFalse(gateway.server(urls[0])["available"])


class TestPrograms(InFolder):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(frontend=DOORS))
        cls.port = str(cls.cluster.frontends["frontend0"])
        cls.url = "http://127.0.0.1:" + cls.port

    def setUp(self):
        super().setUp()
        self.output = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def test_the_contest_runs(self):
        for out in ("one", "many"):
            rate = {"one": "4", "many": "40"}[out]
            seconds = {"one": "5", "many": "1"}[out]
            code = serving.main(["--task", "2", "-X", rate, "-P", self.port, "-O", out, "-T", seconds,
                                 "--max_new_tokens", "40", "--tokenize_url", self.url])
            self.assertEqual(0, code)
            results = json.loads(next(pathlib.Path(out).glob("result_*_x.json")).read_text())
            self.assertTrue(all(r["resp_text"] and r["first_token_time"] > 0 for r in results))
        # The same prompts, arriving one by one and all at once.
        base = {p.name for p in pathlib.Path("one/file_npy").iterdir()}
        self.assertEqual(20, len(base))
        self.assertEqual(0, compare.main(["--base_path", "one/file_npy", "--new_path", "many/file_npy"]),
                         self.output.getvalue())

    def test_the_precision_check_at_1_and_at_50(self):
        for at_once, out in (("1", "base"), ("50", "new")):
            self.assertEqual(0, precision.main(["--url", self.url, "--at_once", at_once, "--out", out,
                                                "--count", "60", "--tokens", "16"]))
        self.assertEqual(0, compare.main(["--base_path", "base", "--new_path", "new"]),
                         self.output.getvalue())

    def test_the_tutorials_load_test_in_both_modes(self):
        for more in (["--throughput_oriented", "--num_beams", "4", "--num_emit", "2"],
                     ["--qps", "3", "--num_emit", "2", "--server_type", "sb", "--model_id", "demo"]):
            code = tutorial.main(["--port", self.port, "--prompt_len", "50",
                                  "--response_len_mean", "20", "--tokenizer_url", self.url, *more])
            report = json.loads(pathlib.Path("load_test_report.json").read_text())
            self.assertEqual((0, " 0.0000%"), (code, report["fail_rate"]), self.output.getvalue())

    def test_the_lab(self):
        self.assertEqual(0, lab.main(["--url", self.url, "--speed", "20"]))

    def test_open_loop_latencies_count_from_when_a_request_was_due(self):
        subprocess.run(
            [sys.executable, SOURCE / "tools" / "loadgen", "poisson", "--url", self.url, "--rate", "2000",
             "--requests", "20", "--streams", "1", "--tokens", "8", "--json", "figures.json"],
            check=True, capture_output=True, timeout=60 * PATIENCE)
        figures = json.loads(pathlib.Path("figures.json").read_text())
        self.assertEqual((20, 160), (figures["requests"], figures["tokens"]))
        # All were due within some 10 ms and went one after the other: the last one waited for all.
        self.assertGreater(figures["e2e_ms"]["max"], 0.7 * 1000 * figures["seconds"])

    def test_the_jumper_with_baton_as_the_api(self):
        with Gateway(self.folder, {"openai_jumper_configs": [{"api_key": "a-1"}, {"api_key": "b-2"}]},
                     "--openai_base_url", self.url + "/v1") as gateway:
            for _ in range(4):
                status, reply = gateway.post("/chat_completion/v1", {
                    "model": "demo", "messages": [{"role": "user", "content": "What is Baton?"}]})
                self.assertEqual((200, {"choices", "usage"}), (status, set(reply)))
            tokens = [account["tokens"] for account in gateway.get("/servers")["openai_jumpers"]]
            self.assertEqual(2, len([t for t in tokens if t > 0]), tokens)


class App(InFolder):
    """./baton app start, status, stop."""

    def app(self, *arguments, code=0):
        done = subprocess.run(
            [sys.executable, SOURCE / "tools" / "app", *arguments, "--run_dir", self.folder / "run"],
            capture_output=True, text=True, timeout=120 * PATIENCE)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def configurations(self, ports):
        loading = {"model_type": "llama", "model_name_or_path": str(DEMO_MODEL)}
        pathlib.Path("cb_server_config.json").write_text(json.dumps(
            {"model_loading_config": loading, "cache_config": {"num_blocks": 600}}) + "# a comment\n")
        pathlib.Path("sb_server_config.json").write_text(json.dumps(
            {"batcher_config": {"package_max_workload": "4", "packaging_interval_seconds": 0.3},
             "worker_config": {"model_name_or_path": str(DEMO_MODEL)}}))
        pathlib.Path("client_config.json").write_text(json.dumps(
            {"continuous_batching_server_urls": [f"http://127.0.0.1:{ports[1]}"],
             "static_batching_server_urls": [f"http://127.0.0.1:{ports[2]}"]}))

    def test_start_health_stop(self):
        ports = [free_port() for _ in range(3)]
        self.configurations(ports)
        self.addCleanup(self.app, "stop")
        self.app("--start_client_app", "--client_port", str(ports[0]), "--start_cb_server_app",
                 "--cb_server_model_id", "demo-cb", "--cb_server_port", str(ports[1]),
                 "--start_sb_server_app", "--sb_server_model_id", "demo-sb", "--sb_server_port",
                 str(ports[2]), "--wait_seconds", str(60 * PATIENCE))
        self.assertEqual(3, self.app("status").count("ready, up"))
        for path, model in (("/completion/v2", "demo-cb"), ("/completion/v1", "demo-sb")):
            status, reply = Cluster.post(self.only_port(ports[0]), path, completion(8, model=model))
            self.assertEqual((200, 8), (status, reply["usage"]["completion_tokens"]), reply)
        for name in ("client", "cb_server", "sb_server"):
            log = self.folder / "logs" / f"llm_inference_{name}_access.log"
            wait_until(lambda: "/completion/v" in log.read_text(), 5, f"{name} logs its requests")
            self.assertRegex(log.read_text(), r" ms=\d|duration=\d")
            self.assertTrue((self.folder / "logs" / f"llm_inference_{name}_error.log").exists())
        self.app("--start_cb_server_app", "--cb_server_port", str(ports[1]), code=1)  # it runs already
        state = json.loads((self.folder / "run" / "state.json").read_text())
        self.app("stop")
        for service in state.values():
            for who in service["processes"]:
                self.assertFalse(process.alive(who), service)
        self.assertIn("nothing was started", self.app("status", code=3))

    @staticmethod
    def only_port(port):
        class One:
            frontends = {"": port}
            address = "127.0.0.1"
        return One()

    def test_foreground_ends_with_ctrl_c(self):
        port = free_port()
        self.configurations([port] * 3)
        app = subprocess.Popen(
            [sys.executable, SOURCE / "tools" / "app", "--start_cb_server_app", "--cb_server_port", str(port),
             "--foreground", "--run_dir", self.folder / "run"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(app.wait)
        self.addCleanup(app.kill)
        self.addCleanup(app.stdout.close)
        self.addCleanup(self.app, "stop")
        for line in app.stdout:
            if "Ctrl-C" in line:
                break
        self.assertIn("ready, up", self.app("status"))
        app.send_signal(signal.SIGINT)
        self.assertEqual(0, app.wait(30 * PATIENCE))
        self.app("status", code=3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
