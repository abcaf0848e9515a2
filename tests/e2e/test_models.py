"""Several models in one Baton: requests go to the model that they name, each writes what it writes alone, and what dies
of one model, or the front end of all, disturbs nobody's stream."""

import http.client
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import unittest

import cluster
import random_model
from cluster import MIXED, PAIR, Cluster, Stream, wait_until
from several import SeveralModels
from supervised import Supervised
from test_live_line import Shown

LONG = {"max_tokens": 150, "min_tokens": 150, "temperature": 0, "ignore_eos": True}
SLOW = {"step_delay_ms": 8}
PROMPTS = ["The moon", "Once upon a time"]
CHAT = [{"role": "user", "content": "Who are you?"}]
NAMES = "small, other"


class SupervisedModels(Supervised, SeveralModels):
    def restart_words(self, *words, seconds=120):
        return self.baton_ctl("restart", *words)


def other_folder(folder):
    """The demo's tokenizer before random weights of another geometry."""
    return random_model.write(pathlib.Path(folder) / "random", num_hidden_layers=2, hidden_size=128, intermediate_size=256)


def models_of(folder, **more):
    return {"small": {"workers": PAIR, "max_context": 512, **more}, "other": {"workers": MIXED, "model": str(folder), **more}}


def chat(baton, model=None):
    body = {"messages": CHAT, "max_tokens": 24, "temperature": 0, **({"model": model} if model else {})}
    status, reply = baton.post("/v1/chat/completions", body)
    assert status == 200, reply
    return reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]


def streamed_chat(baton, model):
    port = next(iter(baton.frontends.values()))
    return Stream(port, "/v1/chat/completions",
                  {"model": model, "messages": CHAT, "max_tokens": 24, "temperature": 0, "stream": True,
                   "stream_options": {"include_usage": True}}).finish()[:2]


def tokens(baton, prompt, model=None):
    """A completion's text, its tokens and their log probabilities, to the last bit."""
    status, reply = baton.post("/v1/completions", {
        "prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 1, "ignore_eos": True,
        **({"model": model} if model else {})})
    assert status == 200, reply
    choice = reply["choices"][0]
    return choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]


def samples(text, name):
    """{labels: value} of a metric."""
    return {labels: float(value) for labels, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.M)}


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = other_folder(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.alone = {}
        for name, model, workers in (("small", cluster.DEMO_MODEL, PAIR), ("other", cls.folder, MIXED)):
            with Cluster(workers=workers, model=model, worker=SLOW) as baton:
                cls.alone[name] = {
                    "chat": chat(baton), "completions": [tokens(baton, prompt) for prompt in PROMPTS],
                    "streams": {prompt: baton.stream(prompt, **LONG).finish() for prompt in PROMPTS}}
        assert cls.alone["small"]["streams"] != cls.alone["other"]["streams"]
        cls.baton = cls.enterClassContext(SeveralModels(
            models_of(cls.folder), worker=SLOW,
            frontend={"dialects": ["openai", "lab", "anthropic", "ollama"]}))

    def test_each_writes_what_it_writes_alone(self):
        for name, alone in self.alone.items():
            self.assertEqual(alone["chat"], chat(self.baton, name))
            self.assertEqual(alone["chat"], streamed_chat(self.baton, name))
            self.assertEqual(alone["completions"], [tokens(self.baton, prompt, name) for prompt in PROMPTS])

    def test_streams_of_both_at_once(self):
        self.check_streams(self.open_streams())

    def open_streams(self):
        return [(name, prompt, self.baton.stream(prompt, model=name, **LONG)) for name in self.alone for prompt in PROMPTS]

    def check_streams(self, streams):
        for name, prompt, stream in streams:
            self.assertEqual(self.alone[name]["streams"][prompt], stream.finish(), f"{name}: {prompt}")

    def resubmitted(self):
        return samples(self.baton.get("/metrics")[1], "baton_requests_resubmitted_total")

    def kill_amid(self, *names):
        streams = self.open_streams()
        for _, _, stream in streams:
            stream.wait_pieces(5)
        for name in names:
            self.baton.kill(name)
        for name in names:
            self.baton.start(name)
        self.check_streams(streams)
        self.baton.wait_ready()
        wait_until(lambda: self.baton.get("/health")[0] == 200, 20, "healthy again")
        self.baton.assert_at_rest()

    def test_kill_a_scheduler(self):
        before = self.resubmitted()
        self.kill_amid("small.scheduler")
        self.kill_amid("other.scheduler")
        self.assertEqual({labels: count + 2 for labels, count in before.items()}, self.resubmitted(),
                         "each scheduler's death is felt by its own two streams alone")

    def test_kill_a_worker(self):
        self.kill_amid("small.decode0")
        self.kill_amid("other.mixed0")

    def test_kill_the_front_end(self):
        self.kill_amid("frontend0")
        _, text = self.baton.get("/metrics")
        self.assertEqual({"": 4}, samples(text, "baton_replies_taken_over_total"))
        self.assertEqual({0}, set(self.resubmitted().values()), "it knows the schedulers of both")

    def test_kill_the_front_end_and_change_the_order(self):
        streams = self.open_streams()
        for _, _, stream in streams:
            stream.wait_pieces(5)
        self.successor(list.reverse)
        try:
            self.check_streams(streams)
            self.assertEqual({0}, set(self.resubmitted().values()), "it knows whose scheduler is whose")
        finally:
            self.successor(list.reverse)
            self.baton.wait_ready()

    def test_kill_the_front_end_and_change_a_name(self):
        """What began under the old name goes on under it; who comes later asks by the new one."""
        streams = self.open_streams()
        for _, _, stream in streams:
            stream.wait_pieces(5)
        self.successor(lambda models: models[0].update(model_name="org/small"))
        try:
            self.check_streams(streams)
            self.assertEqual({0}, set(self.resubmitted().values()))
            for name, _, stream in streams:
                self.assertEqual({name}, stream.names)
            self.assertEqual(self.alone["small"]["chat"], chat(self.baton, "org/small"))
            self.assertEqual(404, self.baton.post("/v1/completions", {"model": "small", "prompt": "x"})[0])
        finally:
            self.successor(lambda models: models[0].pop("model_name"))
            self.baton.wait_ready()

    def successor(self, change):
        """Of the front end, by another configuration."""
        self.baton.kill("frontend0")
        config = json.loads(self.baton.config.read_text())
        change(config["models"])
        self.baton.config.write_text(json.dumps(config))
        self.baton.start("frontend0")

    def test_kill_the_front_end_and_a_scheduler(self):
        self.kill_amid("frontend0", "other.scheduler")

    def test_a_model_without_scheduler_disturbs_nobody(self):
        self.baton.kill("other.scheduler")
        try:
            wait_until(lambda: self.baton.get("/health")[0] == 503, 10, "the front end says so")
            health = json.loads(self.baton.get("/health")[1])
            self.assertIn("other: ", health["reason"])
            self.assertNotIn("small", health["reason"])
            self.assertEqual({"small": "ok", "other": "no_scheduler"},
                             {each["model"]: each["status"] for each in health["models"]})
            for query, status in (("model=small", 200), ("model=other", 503), ("any=1", 200), ("any=0", 503), ("model=x", 404)):
                self.assertEqual(status, self.baton.get(f"/health?{query}")[0], query)
            self.assertEqual("other", json.loads(self.baton.get("/health?model=other")[1])["model"])
            self.assertIn("other: ", json.loads(self.baton.get("/health?any=1")[1])["reason"])
            self.assertEqual(self.alone["small"]["chat"], chat(self.baton, "small"))
            waits = self.baton.stream(PROMPTS[0], model="other", **LONG)
        finally:
            self.baton.start("other.scheduler")
        self.assertEqual(self.alone["other"]["streams"][PROMPTS[0]], waits.finish())
        wait_until(lambda: self.baton.get("/health")[0] == 200, 20, "healthy again")
        self.assertEqual("all 2 models can serve", json.loads(self.baton.get("/health")[1])["reason"])

    def test_names_that_are_none(self):
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": CHAT}),
                           ("/v1/responses", {"input": "x"}), ("/v1/messages", {"messages": CHAT, "max_tokens": 4}),
                           ("/tokenize", {"prompt": "x"}), ("/api/chat", {"messages": CHAT}), ("/api/show", {})):
            status, reply = self.baton.post(path, {**body, "model": "big"})
            self.assertEqual(404, status, path)
            said = reply["error"] if path.startswith("/api") else reply["error"]["message"]
            self.assertEqual("the model 'big' does not exist here; this server has 'small', 'other'", said)
            status, reply = self.baton.post(path, body)
            self.assertEqual(400, status, path)
            said = reply["error"] if path.startswith("/api") else reply["error"]["message"]
            self.assertIn(NAMES, said)
        status, reply = self.baton.post("/v1/completions", {"model": "big", "prompt": "x"})
        self.assertEqual(("model", "model_not_found"), (reply["error"]["param"], reply["error"]["code"]))
        status, reply = self.baton.post("/v1/messages", {"model": "big", "messages": CHAT, "max_tokens": 4})
        self.assertEqual("not_found_error", reply["error"]["type"])

    def test_what_is_no_name_is_told_as_of_one_model(self):
        for body in ({"model": 7, "prompt": "x"}, {"model": ["small"], "prompt": "x"}):
            status, reply = self.baton.post("/v1/completions", body)
            self.assertEqual((400, "model"), (status, reply["error"]["param"]), reply)

    def test_a_large_body(self):
        """It is read on another thread, and too long for the small model alone."""
        prompt = "moon " * 9000
        status, reply = self.baton.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "model": "small"})
        self.assertEqual(400, status)
        self.assertIn("holds 512", reply["error"]["message"])
        status, reply = self.baton.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "model": "big"})
        self.assertEqual(404, status)

    def test_lists(self):
        listed = json.loads(self.baton.get("/v1/models")[1])["data"]
        self.assertEqual(["small", "other"], [each["id"] for each in listed])
        self.assertEqual(512, listed[0]["max_model_len"])
        self.assertNotEqual(512, listed[1]["max_model_len"])
        self.assertEqual(listed[1], json.loads(self.baton.get("/v1/models/other")[1]))
        status, text = self.baton.get("/v1/models/big")
        self.assertEqual(404, status)
        self.assertIn("'small', 'other'", text)
        for path in ("/api/tags", "/api/ps"):
            self.assertEqual(["small", "other"], [each["name"] for each in json.loads(self.baton.get(path)[1])["models"]])
        status, shown = self.baton.post("/api/show", {"name": "small:latest"})
        self.assertEqual((200, "small", 512), (status, shown["model_info"]["general.basename"],
                                               shown["model_info"]["baton.context_length"]))
        self.assertIn("serves small, other", self.baton.get("/")[1])

    def test_a_dialect_without_models_has_the_first(self):
        body = {"prompt": PROMPTS[0], "temperature": 0, "max_length": 60, "min_length": 0}
        status, reply = self.baton.post("/generate", body)
        self.assertEqual(200, status, reply)
        with Cluster(workers=MIXED) as alone:
            self.assertEqual(alone.post("/generate", body)[1], reply)

    def test_metrics(self):
        def tokens_of():
            _, text = self.baton.get("/metrics")
            heads = re.findall(r"^# TYPE (\S+)", text, re.M)
            self.assertEqual(len(heads), len(set(heads)), "each metric has one place")
            return text, samples(text, "vllm:generation_tokens_total")
        text, before = tokens_of()
        self.assertEqual({'model_name="small"', 'model_name="other"'}, set(before))
        tokens(self.baton, PROMPTS[0], "other")
        text, after = tokens_of()
        self.assertEqual({'model_name="small"': 0, 'model_name="other"': 24},
                         {labels: after[labels] - before[labels] for labels in after})
        self.assertEqual([""], list(samples(text, "baton_connections")))
        self.assertEqual({"small.prefill0", "small.decode0", "other.mixed0"},
                         set(re.findall(r'^baton_kv_blocks{.*worker="(.*?)"', text, re.M)))
        series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line and line[0] != "#"]
        self.assertEqual(len(series), len(set(series)), "no series twice")

    def test_the_load_of_the_model_that_is_asked(self):
        port = next(iter(self.baton.frontends.values()))
        stream = self.baton.stream(PROMPTS[0], model="other", **LONG)
        stream.wait_pieces(1)
        wait_until(lambda: samples(self.baton.get("/metrics")[1], "baton_requests_running") ==
                   {'model_name="small"': 0, 'model_name="other"': 1}, 5, "it runs alone")
        loads = {}
        for name in self.alone:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/v1/completions", json.dumps({"model": name, "prompt": "x", "max_tokens": 1}),
                               {"endpoint-load-metrics-format": "JSON"})
            response = connection.getresponse()
            loads[name] = response.getheader("endpoint-load-metrics")
            response.read()
            connection.close()
        stream.leave()
        running = {name: re.search(r'"num_requests_running":([\d.]+)', load).group(1) for name, load in loads.items()}
        self.assertEqual({"small": "0", "other": "1"}, running)

    def test_ctl(self):
        code, text, _ = self.baton.baton_ctl("show", "workers")
        self.assertEqual(0, code)
        self.assertRegex(text, r"(?s)^\[small\]\n.*small\.prefill0.*\n\[other\]\n.*other\.mixed0")
        code, text, _ = self.baton.baton_ctl("show", "workers", "json")
        self.assertEqual({"small": ["small.decode0", "small.prefill0"], "other": ["other.mixed0"]},
                         {name: sorted(each["name"] for each in workers) for name, workers in json.loads(text).items()})
        code, text, _ = self.baton.baton_ctl("--model", "other", "show", "workers", "json")
        self.assertEqual(["other.mixed0"], [each["name"] for each in json.loads(text)])
        code, text, _ = self.baton.baton_ctl("audit")
        self.assertEqual((0, "[small]\nok\n[other]\nok\n"), (code, text))
        for words in (["set", "worker", "mixed0", "drain"], ["top"], ["cancel", "1-1"]):
            code, _, complaint = self.baton.baton_ctl(*words)
            self.assertEqual(1, code)
            self.assertIn(f"--model ({NAMES})", complaint)
        code, _, complaint = self.baton.baton_ctl("--model", "big", "show", "info")
        self.assertEqual(1, code)
        self.assertIn(f"there are {NAMES}", complaint)
        for words in (["set", "worker", "other.mixed0", "drain"], ["set", "worker", "other.mixed0", "ready"],
                      ["--model", "other", "set", "worker", "mixed0", "drain"],
                      ["--model", "other", "set", "worker", "other.mixed0", "ready"],
                      ["--model", "other", "wait", "worker", "mixed0", "ready", "5s"]):
            self.assertEqual((0, "ok\n"), self.baton.baton_ctl(*words)[:2])
        self.assertIn("other.mixed0", self.baton.baton_ctl("--model", "other", "top")[1])

    def test_explain(self):
        port = next(iter(self.baton.frontends.values()))
        for name in self.alone:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/v1/completions", json.dumps({"model": name, "prompt": "x", "max_tokens": 4}),
                               {"X-Request-Id": f"explained-{name}"})
            self.assertEqual(200, connection.getresponse().status)
            connection.close()
        for name in self.alone:
            code, text, complaint = self.baton.baton_ctl("explain", f"explained-{name}")
            self.assertEqual(0, code, complaint)
            self.assertIn("decode", text)

    def test_trace(self):
        file = self.baton.folder / "trace.json"
        done = threading.Event()

        def load():
            while not done.is_set():
                for name in self.alone:
                    tokens(self.baton, PROMPTS[0], name)
        reader = threading.Thread(target=load, daemon=True)
        reader.start()
        code, _, complaint = self.baton.baton_ctl("trace", "--seconds", "2", "-o", str(file))
        done.set()
        reader.join()
        self.assertEqual(0, code, complaint)
        names = {event["args"]["name"] for event in json.loads(file.read_text())["traceEvents"]
                 if event["name"] == "process_name"}
        for name in ("small.scheduler", "other.scheduler", "small.prefill0", "other.mixed0", "frontend0"):
            self.assertTrue(any(name in each for each in names), names)

    def test_console(self):
        port = next(iter(self.baton.frontends.values()))
        for query, worker in (("", "small.prefill0"), ("?model=other", "other.mixed0")):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", f"/console/events{query}")
            response = connection.getresponse()
            line = next(line for line in response if line.startswith(b"data:"))
            self.assertIn(worker, line.decode())
            connection.close()
        self.assertEqual(404, self.baton.get("/console/events?model=big")[0])


class Places(unittest.TestCase):
    def test_what_waits_for_a_dead_model_leaves_the_others_their_places(self):
        with SeveralModels({name: {"workers": MIXED} for name in ("small", "other")},
                           frontend={"max_streams": 4}) as baton:
            baton.kill("other.scheduler")
            wait_until(lambda: baton.get("/health?model=other")[0] == 503, 10, "the front end says so")
            waiting = [baton.stream(PROMPTS[0], model="other", max_tokens=4) for _ in range(2)]
            wait_until(lambda: samples(baton.get("/metrics")[1], "baton_open_streams")['model_name="other"'] == 2, 10, "two wait")
            status, reply = baton.post("/v1/completions", {"prompt": "x", "model": "other"})
            self.assertEqual(429, status)
            self.assertIn("the model 'other' cannot serve now, and 2 requests wait for it", reply["error"]["message"])
            chat(baton, "small")
            baton.start("other.scheduler")
            for stream in waiting:
                stream.finish()


class WithUnloadable(SupervisedModels):
    def wait_ready(self, seconds=60):
        wait_until(lambda: self.worker_state("small.mixed0") == "ready", seconds, "the one that can be loaded is ready")
        wait_until(lambda: self.get("/health?any=1")[0] == 200, seconds, "the front end says so")


class Unloadable(unittest.TestCase):
    def test_a_model_that_cannot_be_loaded_takes_no_other_down(self):
        models = {"small": {"workers": MIXED}, "gone": {"workers": MIXED, "model": "/nonexistent"},
                  "idle": {"workers": []}}
        with WithUnloadable(models=models) as baton:
            chat(baton, "small")
            wait_until(lambda: json.loads(baton.get("/health")[1])["models"][2]["status"] == "no_workers", 20, "it is known")
            health = json.loads(baton.get("/health")[1])
            self.assertEqual({"small": "ok", "gone": "cannot_load", "idle": "no_workers"},
                             {each["model"]: each["status"] for each in health["models"]})
            wait_until(lambda: baton.get("/health")[0] == 200, 20, "neither is waited for")
            self.assertEqual(503, baton.get("/health?all=1")[0])
            self.assertIn("/nonexistent", health["reason"])
            self.assertIn("idle: no workers are configured", health["reason"])
            self.assertEqual(200, baton.get("/health?any=1")[0])
            for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": CHAT}),
                               ("/tokenize", {"prompt": "x"})):
                status, reply = baton.post(path, {**body, "model": "gone"})
                self.assertEqual(503, status, path)
                self.assertIn("the model 'gone': it cannot be loaded: /nonexistent", reply["error"]["message"])
            log = (baton.folder / "run" / "logs" / "baton.log").read_text()
            self.assertIn("no workers are configured for the model idle", log)
            self.assertNotIn("starting it again does not help", log)


class ShownModels(Shown, SeveralModels):
    """At a terminal. The folder of one cannot be read before mend(), and no worker takes what lies in that of another."""

    def __init__(self, folder):
        self.late = folder / "late"
        strange = folder / "strange"
        shutil.copytree(cluster.DEMO_MODEL, strange, ignore=shutil.ignore_patterns("*.safetensors"))
        config = json.loads((strange / "config.json").read_text())
        (strange / "config.json").write_text(json.dumps({**config, "model_type": "perpetuum"}))
        super().__init__("--output", "live", columns=1000, models={
            "small": {"workers": MIXED}, "late": {"workers": MIXED, "model": str(self.late)},
            "strange": {"workers": MIXED, "model": str(strange)}})

    wait_ready = WithUnloadable.wait_ready

    def mend(self):
        self.late.symlink_to(cluster.DEMO_MODEL)

    def health(self, query=""):
        status, text = self.get(f"/health{query}")
        return status, json.loads(text)


class MendedLater(unittest.TestCase):
    def test_what_cannot_be_loaded_is_named_passed_over_and_served_once_it_can_be(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        with ShownModels(folder) as baton:
            wait_until(lambda: baton.health()[0] == 200, 20, "who can serve is waited for, and nobody else")
            status, health = baton.health()
            self.assertEqual({"small": "ok", "late": "cannot_load", "strange": "cannot_load"},
                             {each["model"]: each["status"] for each in health["models"]})
            self.assertIn(f"late: it cannot be loaded: {baton.late}", health["reason"])
            self.assertRegex(health["reason"], "strange: it cannot be loaded: strange.mixed0: .*perpetuum")
            for query, status in (("?any=1", 200), ("?all=1", 503), ("?model=small", 200), ("?model=strange", 503)):
                self.assertEqual(status, baton.health(query)[0], query)
            status, reply = baton.post("/v1/completions", {"model": "strange", "prompt": "x"})
            self.assertEqual(503, status)
            self.assertIn("perpetuum", reply["error"]["message"])
            shown = baton.terminal.text
            for name in ("late", "strange"):
                self.assertIn(f"the model {name}: {name}.mixed0 cannot run: ", shown())
            wait_until(lambda: re.search(r"small: \d+ running.* \|\| late: late.mixed0 cannot run: .* \|\| strange: ", shown()),
                       10, "the live line says so, too")
            self.pass_over(baton)
            front_end = baton.pid("frontend0")
            baton.mend()
            wait_until(lambda: baton.health("?model=late")[0] == 200, 20, "it is served")
            self.assertEqual(chat(baton, "small"), chat(baton, "late"))
            self.assertEqual(front_end, baton.pid("frontend0"))
            self.assertIn("late.mixed0 of the model late runs after all", shown())
            tokenizers = re.findall(r"(?m)^ *tokenizer +(.*)$", baton.baton_ctl("show", "setup")[1])
            self.assertEqual(tokenizers[0], tokenizers[1], "of small, and of what was loaded late")
            self.assertNotIn("none", tokenizers[0])
            self.assertNotIn("late", baton.health()[1]["reason"])

    def pass_over(self, baton):
        known = {process["name"]: process for process in baton.known()}
        self.assertIn("perpetuum", known["strange.mixed0"]["refused"])
        self.assertNotIn("refused", known["small.mixed0"])
        code, said, complaint = baton.baton_ctl("restart", "all", "--within", "60")
        self.assertEqual((0, ""), (code, complaint))
        for name in ("late.mixed0", "strange.mixed0"):
            self.assertIn(f"{name} is passed over, it did not run before: ", said)
        self.assertIn("small.mixed0 is replaced", said)
        self.assertIn("frontend0 is replaced", said)
        code, _, complaint = baton.baton_ctl("restart", "strange.mixed0", "--within", "1")
        self.assertEqual(1, code)
        self.assertRegex(complaint, "strange.mixed0 cannot run: .*perpetuum")


class Renamed(unittest.TestCase):
    def test_a_stream_goes_on_at_an_entry_of_another_name(self):
        with SupervisedModels(models={name: {"workers": MIXED} for name in ("small", "other")}, worker=SLOW) as baton:
            whole = baton.stream(PROMPTS[0], model="small", **LONG).finish()
            stream = baton.stream(PROMPTS[0], model="small", **LONG)
            stream.wait_pieces(5)
            config = json.loads(baton.config.read_text())
            config["models"][0]["name"] = "tiny"
            baton.config.write_text(json.dumps(config))
            code, said, complaint = baton.restart_words("all", "--within", "60")
            self.assertEqual((0, ""), (code, complaint))
            for name in ("small.scheduler", "small.mixed0"):
                self.assertIn(f"{name} is ended: the configuration has it no more", said)
            self.assertEqual(whole, stream.finish())
            self.assertEqual({"small"}, stream.names)
            self.assertEqual(chat(baton, "other"), chat(baton, "tiny"))
            self.assertEqual(404, baton.post("/v1/completions", {"model": "small", "prompt": "x"})[0])


class Supervision(unittest.TestCase):
    def test_all_are_started_healed_and_replaced(self):
        with tempfile.TemporaryDirectory() as folder, \
                SupervisedModels(models=models_of(other_folder(folder)), worker=SLOW) as baton:
            wanted = {"memory", "small.scheduler", "other.scheduler", "small.prefill0", "small.decode0", "other.mixed0",
                      "frontend0"}
            self.assertEqual(wanted, set(baton.lives()) - {"supervisor", "frontend0.twin"})
            whole = {name: baton.stream(PROMPTS[0], model=name, **LONG).finish() for name in baton.models}
            baton.kill("other.scheduler")
            baton.kill("other.mixed0")
            baton.wait_ready()
            before = baton.lives()
            streams = {name: baton.stream(PROMPTS[0], model=name, **LONG) for name in baton.models}
            for stream in streams.values():
                stream.wait_pieces(5)
            code, said, complaint = baton.restart_words("small.decode0", "--rolling")
            self.assertEqual((0, ""), (code, complaint))
            self.assertIn("small.decode0 is replaced", said)
            self.assertEqual(whole, {name: stream.finish() for name, stream in streams.items()})
            streams = {name: baton.stream(PROMPTS[0], model=name, **LONG) for name in baton.models}
            code, said, complaint = baton.restart_words("all", "--rolling", "--model", "other")
            self.assertEqual((0, ""), (code, complaint))
            self.assertEqual(["other.scheduler", "other.mixed0"], [line.split()[0] for line in said.splitlines()])
            self.assertEqual(whole, {name: stream.finish() for name, stream in streams.items()})
            after = baton.lives()
            self.assertEqual({"small.decode0", "other.scheduler", "other.mixed0"},
                             {name for name in wanted if before[name][0] != after[name][0]})
            streams = {name: baton.stream(PROMPTS[0], model=name, **LONG) for name in baton.models}
            code, said, complaint = baton.restart_words("all", "--rolling")
            self.assertEqual((0, ""), (code, complaint))
            self.assertEqual(whole, {name: stream.finish() for name, stream in streams.items()})
            self.assertEqual("supervisor", said.split()[0])
            self.assertIn("frontend0 is replaced", said)
            # Without a configuration the program finds the schedulers by the processes' records.
            command = [baton.bin / "baton-ctl", "--run-dir", baton.folder / "run", "show", "info"]
            found = subprocess.run(command, capture_output=True, text=True, timeout=30)
            self.assertRegex(found.stdout, r"(?s)\[other\]\n.*\[small\]\n", found.stderr)
            # Nor does a restart believe a socket that no scheduler of several has.
            command = [baton.bin / "baton-ctl", "--run-dir", baton.folder / "run", "--socket",
                       baton.folder / "run/admin.sock", "--within", "30", "restart", "small.decode0"]
            found = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual((0, ""), (found.returncode, found.stderr))


if __name__ == "__main__":
    unittest.main()
