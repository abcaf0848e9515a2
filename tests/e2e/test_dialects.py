"""Every HTTP dialect through real processes: golden exchanges, the write-ups' own command lines, several
ports at once, streams that are cut, keys.

    python3 tests/e2e/test_dialects.py --record    writes the replies into tests/golden/dialects
"""

import concurrent.futures
import http.client
import http.server
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from cluster import BIN, DEMO_MODEL, SOURCE, Cluster, free_port, wait_until

BEAMS = SOURCE / "tests" / "golden" / "beams.json"
GOLDEN = SOURCE / "tests" / "golden" / "dialects"
RECORD = "--record" in sys.argv
# Which dialects share a port; the rest own the same paths as one of these.
PORTS = [["openai", "lab", "anthropic", "ollama"], ["mindspore", "tutorial", "mii"], ["tgi"], ["lightllm", "energonai"],
         ["distserve"]]
# What differs from run to run, or in the last digit from machine to machine.
VOLATILE = [(r'"logprob":-?[0-9][0-9.e+-]*', '"logprob":<number>'),
            (r'"timestamp":[0-9.]+', '"timestamp":<time>'),
            (r'"timestamps":\[[0-9.,]*\]', '"timestamps":[<times>]'),
            (r'"created":[0-9]+', '"created":<time>'),
            (r'"data":[0-9]+', '"data":<number>'),
            (r'"version":"[^"]*"', '"version":"<version>"'),
            (r'"system_fingerprint":"baton-[^"]*"', '"system_fingerprint":"<build>"'),
            (r'"(cmpl|chatcmpl)-[^"]*"', r'"\1-<id>"'),
            (r'"(msg|resp)_[0-9a-f-]+(_?[0-9]*)"', r'"\1_<id>\2"'),
            (r'"(created_at|modified_at)":("[^"]*"|[0-9]+)', r'"\1":<time>'),
            (r'_duration":[0-9]+', '_duration":<time>'),
            (r'"baton":"[^"]*"', '"baton":"<version>"')]


def exchange(port, method, path, body=None, headers=None):
    """(status, content type, text) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def masked(text):
    """The text without what is volatile, cut behind line breaks and zero bytes."""
    for pattern, replacement in VOLATILE:
        text = re.sub(pattern, replacement, text)
    return re.findall(r"[^\n\0]*[\n\0]|[^\n\0]+", text)


def json_texts(text):
    """The objects of a text in which they stand one behind the other."""
    objects, at = [], 0
    while at < len(text):
        value, at = json.JSONDecoder().raw_decode(text, at)
        objects.append(value)
    return objects


def listen_options(ports):
    return [{"port": ports[i], "dialects": names} for i, names in enumerate(PORTS)]


class DialectCluster(Cluster):
    """A pair with one front end that speaks everything; `port_of` says where."""

    def __init__(self, frontend=None, **options):
        ports = [free_port() for _ in PORTS]
        super().__init__(frontend={"listen": listen_options(ports), **(frontend or {})}, **options)
        ports[0] = next(iter(self.frontends.values()))  # what --port makes of the first entry
        self.port_of = {name: ports[i] for i, names in enumerate(PORTS) for name in names}


class Dialects(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(DialectCluster())

    def post(self, dialect, path, body, status=200):
        code, _, text = exchange(self.cluster.port_of[dialect], "POST", path, body)
        self.assertEqual(code, status, text)
        return text

    def test_golden_exchanges(self):
        for file in sorted(GOLDEN.glob("*.json")):
            cases = json.loads(file.read_text())
            self.assertTrue(cases, file)
            for case in cases:
                with self.subTest(dialect=file.stem, case=case["name"]):
                    status, kind, text = exchange(self.cluster.port_of[file.stem], case["method"],
                                                  case["path"], case.get("body"))
                    if RECORD:
                        case.update(status=status, content_type=kind, reply=masked(text))
                    self.assertEqual((status, kind), (case["status"], case["content_type"]))
                    self.assertEqual(masked(text), case["reply"])
            if RECORD:
                file.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")

    def test_every_dialect_has_golden_exchanges(self):
        self.assertEqual(sorted(self.cluster.port_of), sorted(f.stem for f in GOLDEN.glob("*.json")))

    # ---- the write-ups' own calls; only host and port differ
    def curl(self, dialect, line, address):
        self.assertIn(address, line)
        line = line.replace(address, f"127.0.0.1:{self.cluster.port_of[dialect]}")
        return subprocess.run(["sh", "-c", line + " -sS"], check=True, capture_output=True,
                              text=True, timeout=120).stdout

    def test_the_labs_curl(self):
        reply = self.curl("lab", """curl -X POST "http://127.0.0.1:8000/generate" -H "Content-Type: application/json" -d '{"prompt": "你是谁", "temperature": 0.7, "min_length": 50, "max_length": 500}'""", "127.0.0.1:8000")
        self.assertTrue(json.loads(reply)["generated_text"].startswith("你是谁"), reply)

    def test_the_contests_curl(self):
        reply = self.curl("mindspore", """curl 127.0.0.1:8835/models/llama2/generate -X POST -d '{"inputs":" I love Beijing, because","parameters":{"max_new_tokens":56, "do_sample":"True", "return_full_text":"True"}, "stream":"True"}' -H 'Content-Type: application/json'""", "127.0.0.1:8835")
        self.assertEqual(reply.count("\n"), 1, "one line, whatever \"stream\" says on this path")
        told = json.loads(reply)
        self.assertLessEqual(told["generated_tokens"], 56)
        self.assertEqual(told["generated_text"], "".join(t["text"] for t in told["tokens"]))
        self.assertEqual(told["top_tokens"], [[told["tokens"][0]]])

    def test_the_contests_load_generator_reads_the_stream(self):
        # As test_serving_performance.py does: each line is JSON, and the last one has all the text.
        text = self.post("mindspore", "/models/llama2/generate_stream",
                         {"inputs": "Hello", "parameters": {"max_new_tokens": 9, "topk_k": 3,
                          "do_sample": "False", "return_full_text": "True"}})
        pieces = [json.loads(line)["data"][0]["generated_text"] for line in text.splitlines()]
        self.assertEqual("".join(pieces[:-1]), pieces[-1])
        self.assertGreater(len(pieces), 3)

    # ---- parameters of a row stay its own
    def test_rows_of_a_mixed_batch_are_what_they_are_alone(self):
        prompt = "The old man went to"
        rows = [("lab", "/generate", {"prompt": prompt, "max_length": 40, "seed": 3, "temperature": t})
                for t in (0, 0.5, 2)]
        rows += [("lab", "/generate", {"prompt": prompt, "temperature": 0, "max_length": 400,
                                       "min_length": 300})]
        rows += [("mindspore", "/models/llama2/generate",
                  {"inputs": prompt, "parameters": {"max_new_tokens": 24, "seed": 5, **p}})
                 for p in ({"temperature": 0.3}, {"temperature": 3, "top_k": 50}, {"stop": ["the"]},
                           {"do_sample": "False", "repetition_penalty": 2})]
        rows += [("tutorial", "/completion/v2",
                  {"model": "demo", "prompt": prompt, "generation_config": p})
                 for p in ({"do_sample": True, "seed": 1}, {"do_sample": True, "temperature": 3},
                           {"min_new_tokens": 32}, {"max_new_tokens": 2})]
        rows += [("tgi", "/generate", {"inputs": prompt, "parameters": {"seed": 4, "top_p": 0.5}}),
                 ("lightllm", "/generate", {"inputs": prompt, "parameters": {"ignore_eos": True}}),
                 ("mii", "/mii/demo", {"prompts": [prompt, "Hello"], "max_new_tokens": 9,
                                       "do_sample": False})]
        alone = [self.post(*row) for row in rows]
        with concurrent.futures.ThreadPoolExecutor(len(rows)) as pool:
            mixed = list(pool.map(lambda row: self.post(*row), rows))
        self.assertEqual(mixed, alone)
        self.assertGreater(len(set(alone)), len(rows) - 3)

    def test_the_short_of_two_lengths_stops_at_its_own(self):
        # The lab's own server runs both to the longer limit.
        def count(limit):
            text = json.loads(self.post("lab", "/generate", {
                "prompt": "Hello", "temperature": 0, "min_length": limit, "max_length": limit}))
            ids = json.loads(self.post("openai", "/tokenize", {"prompt": text["generated_text"]}))
            return ids["count"]

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            short, long = pool.map(count, (60, 400))
        self.assertLess(short, 90)
        self.assertGreater(long, 250)

    def test_beams_are_those_of_transformers(self):
        # The cases of tests/golden/beams.json whose parameters these dialects have.
        cases = [c for c in json.loads(BEAMS.read_text())["cases"] if c["model"] == "demo/model"
                 and c["params"].get("length_penalty", 1) == 1
                 and c["params"].get("early_stopping", 0) == 0]
        self.assertGreater(len(cases), 3)
        for case in cases:
            params = case["params"]
            prompt, *wanted = (
                json.loads(self.post("openai", "/detokenize", {"tokens": tokens}))["prompt"].lstrip()
                for tokens in [case["prompt"][1:], *(s["tokens"] for s in case["sequences"])])
            ids = json.loads(self.post("openai", "/tokenize", {"prompt": prompt}))["tokens"]
            self.assertEqual(ids, case["prompt"])
            config = {"num_beams": params["num_beams"], "max_new_tokens": params["max_tokens"],
                      "num_return_sequences": len(wanted), "early_stopping": False,
                      "min_new_tokens": params.get("min_tokens", 0),
                      "repetition_penalty": params.get("repetition_penalty", 1)}
            reply = json.loads(self.post("tutorial", "/completion/v1", {
                "model": "demo", "prompt": prompt, "generation_config": config}))
            self.assertEqual([c["text"].lstrip() for c in reply["choices"]], wanted)
            self.assertEqual(reply["usage"]["completion_tokens"],
                             sum(len(s["tokens"]) for s in case["sequences"]))
            if "repetition_penalty" not in params:
                body = {"prompt": prompt, "use_beam_search": True, "best_of": params["num_beams"],
                        "max_tokens": params["max_tokens"]}
                reply = json.loads(self.post("distserve", "/generate", body))
                self.assertEqual(reply["text"][len(prompt):].lstrip(), wanted[0])
                self.assertEqual(len(reply["timestamps"]), params["max_tokens"])
                # A stream has nothing to tell before the end, and tells the same.
                last = json_texts(self.post("distserve", "/generate", body | {"stream": True}))[-1]
                self.assertEqual(last["text"].lstrip(), wanted[0])

    def test_lifetime_events_are_in_order(self):
        for words in (3, 1500):  # one chunk, several
            reply = json.loads(self.post("distserve", "/generate", {
                "prompt": "word " * words, "temperature": 0, "max_tokens": 8, "ignore_eos": True}))
            times = {e["event_type"]: e["timestamp"] for e in reply["lifetime_events"]}
            names = ["issued", "context_begin", "context_end", "migration_begin", "migration_end",
                     "decoding_begin", "decoding_end"]
            self.assertEqual(sorted(times), sorted(names))
            self.assertEqual(sorted(times.values()), [e["timestamp"] for e in reply["lifetime_events"]])
            if words == 3:
                self.assertEqual([e["event_type"] for e in reply["lifetime_events"]], names)
            else:
                self.assertLess(times["migration_begin"], times["context_end"], "chunks move while others run")
            for earlier, later in (("issued", "context_begin"), ("context_begin", "context_end"),
                                   ("context_begin", "migration_begin"), ("migration_begin", "migration_end"),
                                   ("context_end", "migration_end"), ("migration_end", "decoding_begin"),
                                   ("decoding_begin", "decoding_end")):
                self.assertLessEqual(times[earlier], times[later], (earlier, later, words))
            self.assertEqual(reply["timestamps"][-1], times["decoding_end"])
            self.assertLessEqual(times["context_end"], reply["timestamps"][0])

    # ---- ports
    def test_a_path_is_spoken_on_its_port_alone(self):
        for dialect, port in self.cluster.port_of.items():
            self.assertEqual(exchange(port, "GET", "/health")[0], 200)
            status, _, text = exchange(port, "GET", "/")
            self.assertEqual(status, 200)
            self.assertIn(f"  {dialect}\n", text)
        status, _, text = exchange(self.cluster.port_of["tgi"], "POST", "/v1/completions", {})
        self.assertEqual((status, json.loads(text)["error_type"]), (404, "validation"))
        status, _, text = exchange(self.cluster.port_of["mindspore"], "POST", "/generate", {})
        self.assertEqual(status, 404)
        self.assertIn("detail", json.loads(text))

    def test_streams_that_are_cut_leave_nothing_behind(self):
        streams = [("lab", "/generate", {"prompt": "Hello", "stream": True, "min_length": 900,
                                         "max_length": 900}),
                   ("mindspore", "/models/llama2/generate_stream",
                    {"inputs": "Hello", "parameters": {"max_new_tokens": 900}}),
                   ("tgi", "/generate_stream", {"inputs": "Hello",
                                                "parameters": {"max_new_tokens": 900}}),
                   ("lightllm", "/generate_stream",
                    {"inputs": "Hello", "parameters": {"max_new_tokens": 900, "ignore_eos": True}}),
                   ("distserve", "/generate", {"prompt": "Hello", "stream": True, "max_tokens": 900,
                                               "ignore_eos": True})]
        for dialect, path, body in streams:
            connection = http.client.HTTPConnection("127.0.0.1", self.cluster.port_of[dialect],
                                                    timeout=60)
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            self.assertTrue(response.read(40), dialect)
            connection.close()
            response.close()
        self.cluster.assert_at_rest()


class Keys(unittest.TestCase):
    def test_every_path_but_health_wants_a_key(self):
        key = "sk-0123456789abcdef"
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write(key + "\n")
            keys.flush()
            with DialectCluster(frontend={"api_keys": keys.name}, fake=True) as cluster:
                for file in sorted(GOLDEN.glob("*.json")):
                    port = cluster.port_of[file.stem]
                    self.assertEqual(exchange(port, "GET", "/health")[0], 200)
                    for path in ("/", "/metrics", "/version"):
                        self.assertEqual(exchange(port, "GET", path)[0], 401, path)
                    for case in json.loads(file.read_text()):
                        with self.subTest(dialect=file.stem, case=case["name"]):
                            ask = (port, case["method"], case["path"], case.get("body"))
                            status, _, text = exchange(*ask)
                            self.assertEqual(status, 401)
                            shape = set(json.loads(text)) & {"error", "detail", "message"}
                            self.assertEqual(len(shape), 1, text)
                    ask = json.loads(file.read_text())[0]
                    status, _, text = exchange(port, ask["method"], ask["path"], ask.get("body"),
                                               {"Authorization": "Bearer " + key})
                    self.assertEqual(status, 200, text)


class Browsers(unittest.TestCase):
    def test_a_page_may_read_what_every_dialect_says(self):
        page = {"Origin": "https://chat.example"}
        asks = {**page, "Access-Control-Request-Method": "POST"}
        with DialectCluster(frontend={"allowed_origins": [page["Origin"]]}, fake=True) as cluster:
            for file in sorted(GOLDEN.glob("*.json")):
                for case in json.loads(file.read_text()):
                    with self.subTest(dialect=file.stem, case=case["name"]):
                        connection = http.client.HTTPConnection(
                            "127.0.0.1", cluster.port_of[file.stem], timeout=60)
                        self.addCleanup(connection.close)
                        connection.request("OPTIONS", case["path"], headers=asks)
                        preflight = connection.getresponse()
                        preflight.read()
                        if case["name"] != "unknown path":
                            self.assertEqual(preflight.status, 204)
                            self.assertIn(case["method"],
                                          preflight.headers["Access-Control-Allow-Methods"])
                        connection.request(case["method"], case["path"], json.dumps(case.get("body")), page)
                        response = connection.getresponse()
                        self.assertEqual(response.headers["Access-Control-Allow-Origin"], page["Origin"])
                        response.read()


class Full(unittest.TestCase):
    def test_a_full_server_says_so_in_each_dialects_way(self):
        with DialectCluster(frontend={"max_streams": 1, "distserve_zero_bytes": True}, fake=True,
                            worker={"step_delay_ms": 50}) as cluster:
            running = cluster.stream("Hello", max_tokens=400, ignore_eos=True)
            running.wait_pieces(1)
            wanted = {"openai": 429, "lab": 429, "mindspore": 429, "tutorial": 429, "tgi": 429,
                      "lightllm": 429, "mii": 429, "distserve": 429, "energonai": 406,
                      "anthropic": 429, "ollama": 429}
            for file in sorted(GOLDEN.glob("*.json")):
                # The first exchange of each file is a request with one prompt, or two.
                ask = json.loads(file.read_text())[0]
                status, _, text = exchange(cluster.port_of[file.stem], "POST", ask["path"],
                                           ask["body"])
                expected = 400 if file.stem == "mii" else wanted[file.stem]
                self.assertEqual(status, expected, f"{file.stem}: {text}")
            running.leave()
            cluster.assert_at_rest()
            old_form = exchange(cluster.port_of["distserve"], "POST", "/generate", {
                "prompt": "Hello", "stream": True, "max_tokens": 2, "ignore_eos": True})[2]
            self.assertEqual(len([json.loads(text) for text in old_form.split("\0")[:-1]]), 2, old_form)


class ServerEvents(unittest.TestCase):
    def test_a_client_app_hears_of_the_start_and_of_the_end(self):
        heard = []

        class ClientApp(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                heard.append((self.path, json.loads(
                    self.rfile.read(int(self.headers["Content-Length"])))))
                # The first startup is lost: it must be told again.
                self.send_response(503 if len(heard) == 1 else 200)
                self.end_headers()

            def log_message(self, *_):
                pass

        app = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ClientApp)
        threading.Thread(target=app.serve_forever, daemon=True).start()
        self.addCleanup(app.server_close)
        self.addCleanup(app.shutdown)
        url = f"http://127.0.0.1:{app.server_port}/"
        with DialectCluster(frontend={"client_url": url}, fake=True) as cluster:
            wait_until(lambda: len(heard) >= 2, 20, "two tries to tell of the start")
            cluster.signal("frontend0", signal.SIGTERM)
            wait_until(lambda: len(heard) >= 3, 20, "the end")
            server = f"http://127.0.0.1:{cluster.port_of['tutorial']}"
        body = {"url": server, "model_id": "demo", "server_type": "cb"}
        self.assertEqual(heard, [("/event/server_startup", body)] * 2
                         + [("/event/server_shutdown", body)])


    def test_the_gateway_serves_through_a_front_end_that_announced_itself(self):
        port = free_port()
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        config = folder / "client_config.json"
        config.write_text(json.dumps({"continuous_batching_server_urls": [],
                                      "static_batching_server_urls": [],
                                      "openai_jumper_configs": [],
                                      "heart_beat_interval_seconds": 600}))
        log = self.enterContext(open(folder / "log", "w"))
        gateway = subprocess.Popen([sys.executable, SOURCE / "tools" / "gateway", "--port", str(port),
                                    "--client_config_file_path", config, "--allow_registration"],
                                   stdout=log, stderr=log)
        self.addCleanup(gateway.wait)
        self.addCleanup(gateway.kill)

        def models():
            try:
                return json.loads(exchange(port, "GET", "/cb_server/available_models")[2])
            except OSError:
                return None

        wait_until(lambda: models() == [], 20, "the gateway listens")
        with DialectCluster(frontend={"client_url": f"http://127.0.0.1:{port}"}) as cluster:
            wait_until(lambda: models() == ["demo"], 20, "the gateway knows the model")
            task = {"model": "demo", "prompt": "What is Baton?"}
            direct = exchange(cluster.port_of["tutorial"], "POST", "/completion/v2", task)
            through = exchange(port, "POST", "/completion/v2", task)
            self.assertEqual((through[0], json.loads(through[2])), (200, json.loads(direct[2])))
            cluster.signal("frontend0", signal.SIGTERM)
            wait_until(lambda: models() == [], 20, "the gateway has been told of the end")


class Configuration(unittest.TestCase):
    def test_two_dialects_with_one_path_are_an_error_that_names_both(self):
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "clash.yaml"
            config.write_text(f"model: {DEMO_MODEL}\nfrontend:\n  listen:\n    - port: 8000\n"
                              "      dialects: [lab, openai, tgi]\n")
            for program in ("baton-frontend", "baton-scheduler"):
                result = subprocess.run([BIN / program, "--config", config], capture_output=True,
                                        text=True, timeout=60)
                self.assertEqual(result.returncode, 2)
                self.assertIn("clash.yaml:5: frontend.listen[0].dialects: lab and tgi both own POST "
                              "/generate", result.stderr)


if __name__ == "__main__":
    if RECORD:
        sys.argv = [sys.argv[0], "-v", "Dialects.test_golden_exchanges"]
    unittest.main(verbosity=2)
