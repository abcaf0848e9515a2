"""Spans of requests at a collector that the test is: shape, clients' trace context, refusals, a collector that fails.

With opentelemetry-proto installed (`OfTheProject`, nightly) each body is also read by the published definition."""

import collections
import http.client
import http.server
import json
import re
import sys
import threading
import time
import unittest

from cluster import MIXED, PATIENCE, Cluster, free_port, wait_until

ROOT = {"traceId", "spanId", "parentSpanId", "traceState", "flags", "name", "kind", "startTimeUnixNano",
        "endTimeUnixNano", "attributes", "events", "status"}
VALUES = {"stringValue": str, "intValue": str, "doubleValue": (int, float), "boolValue": bool, "arrayValue": dict}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes POSTs of /v1/traces, answers what `answer` says, keeps bodies and heads."""

    def __init__(self, port=0):
        self.bodies, self.heads, self.answer = [], [], 200
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = collector.answer if self.path == "/v1/traces" else 404
                if status == 200:
                    collector.heads.append(dict(self.headers))
                    collector.bodies.append(body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def spans(self):
        """All of them, each checked by the rules of OTLP's JSON."""
        found = []
        for body in list(self.bodies):
            everything = json.loads(body)
            assert set(everything) == {"resourceSpans"}, everything.keys()
            for resource in everything["resourceSpans"]:
                service = attributes(resource["resource"])
                for scope in resource["scopeSpans"]:
                    assert scope["scope"]["name"] == "baton"
                    for span in scope["spans"]:
                        check(span)
                        span["service"] = service["service.name"]
                        found.append(span)
        assert len({span["spanId"] for span in found}) == len(found)
        return found

    def roots(self):
        return [span for span in self.spans() if span["kind"] == 2]

    def root_of(self, name, seconds=20):
        """The span of the request that a client calls so."""
        def look():
            return next((span for span in self.roots() if attributes(span)["baton.request_id"] == name), None)
        return wait_until(look, seconds, f"a span of {name}")

    def parts_of(self, root):
        return [span for span in self.spans() if span.get("parentSpanId") == root["spanId"]]


def check(span):
    assert set(span) <= ROOT, span.keys()
    assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and re.fullmatch("[0-9a-f]{16}", span["spanId"])
    assert set(span["traceId"]) != {"0"} and set(span["spanId"]) != {"0"}
    assert re.fullmatch("[0-9a-f]{16}", span.get("parentSpanId", SPAN))
    assert span["kind"] in (1, 2) and isinstance(span["flags"], int)
    for time_of in ("startTimeUnixNano", "endTimeUnixNano"):
        assert re.fullmatch("[0-9]+", span[time_of]), span
    assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    for event in span.get("events", []):
        assert re.fullmatch("[0-9]+", event["timeUnixNano"]) and event["name"]
        attributes(event)
    attributes(span)
    if "status" in span:
        assert span["status"]["code"] == 2


def attributes(of):
    found = {}
    for one in of.get("attributes", []):
        assert set(one) == {"key", "value"} and len(one["value"]) == 1, one
        (kind, value), = one["value"].items()
        assert isinstance(value, VALUES[kind]), one
        assert kind != "intValue" or re.fullmatch("-?[0-9]+", value), one
        assert one["key"] not in found, one
        if kind == "arrayValue":
            value = [next(iter(each.values())) for each in value["values"]]
        found[one["key"]] = int(value) if kind == "intValue" else value
    return found


def ask(cluster, name, path="/v1/completions", headers=None, body=None, **fields):
    connection = http.client.HTTPConnection("127.0.0.1", next(iter(cluster.frontends.values())), timeout=60)
    try:
        connection.request("POST", path, body or json.dumps(fields),
                           {"Content-Type": "application/json", "X-Request-Id": name, **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        return response.status, text
    finally:
        connection.close()


def metric(cluster, name):
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", cluster.get("/metrics")[1], re.MULTILINE)
    return None if found is None else float(found.group(1))


class Otlp(unittest.TestCase):
    def cluster(self, collector, **telemetry):
        return Cluster(workers=MIXED, fake=True,
                       top={"telemetry": {"otlp_url": collector.url, "service_name": "llm", **telemetry}})

    def test_a_request_and_its_parts_under_its_clients_span(self):
        collector = Collector()
        with self.cluster(collector) as cluster:
            begun = time.time()
            status, text = ask(cluster, "mine", prompt="What is Baton?", max_tokens=6, temperature=0.5,
                               ignore_eos=True,
                               headers={"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=abc"})
            self.assertEqual(status, 200, text)
            root = collector.root_of("mine")
            self.assertEqual((root["traceId"], root["parentSpanId"], root["traceState"]), (TRACE, SPAN, "vendor=abc"))
            self.assertEqual((root["name"], root["service"]), ("POST /v1/completions", "llm"))
            self.assertNotIn("status", root)
            start, end = int(root["startTimeUnixNano"]) / 1e9, int(root["endTimeUnixNano"]) / 1e9
            self.assertLess(begun - 1, start)
            self.assertLess(end, time.time() + 1)
            facts = attributes(root)
            self.assertEqual(facts["gen_ai.usage.output_tokens"], 6)
            self.assertEqual(facts["gen_ai.request.max_tokens"], 6)
            self.assertEqual(facts["gen_ai.request.temperature"], 0.5)
            self.assertEqual(facts["gen_ai.request.model"], "demo")
            self.assertEqual(facts["gen_ai.operation.name"], "text_completion")
            self.assertEqual(facts["gen_ai.response.finish_reasons"], ["length"])
            self.assertEqual(facts["http.response.status_code"], 200)
            self.assertGreater(facts["gen_ai.response.time_to_first_chunk"], 0)
            self.assertIn("first_token", [event["name"] for event in root["events"]])
            self.assertIn("chunk", [event["name"] for event in root["events"]])
            # The parts are those of `explain`, one behind the other, and fill the request.
            parts = collector.parts_of(root)
            self.assertLessEqual({"read", "tokenise", "prefill", "decode"}, {part["name"] for part in parts})
            self.assertEqual({part["traceId"] for part in parts}, {TRACE})
            at = root["startTimeUnixNano"]
            for part in parts:
                self.assertEqual(part["startTimeUnixNano"], at)
                at = part["endTimeUnixNano"]
            self.assertEqual(at, root["endTimeUnixNano"])
            told = json.loads(cluster.baton_ctl("explain", "mine", "--json")[1])
            took = {part["name"]: int(part["endTimeUnixNano"]) - int(part["startTimeUnixNano"]) for part in parts}
            for name, ms in told["parts_ms"].items():
                self.assertAlmostEqual(took.get(name, 0) / 1e6, ms, delta=0.001)

            # What chats, what streams, and what has no place in a trace of its client.
            status, text = ask(cluster, "chat", path="/v1/chat/completions", stream=True, max_tokens=3,
                               messages=[{"role": "user", "content": "Hello"}])
            self.assertEqual(status, 200, text)
            chat = collector.root_of("chat")
            self.assertNotIn("parentSpanId", chat)
            self.assertNotEqual(chat["traceId"], TRACE)
            self.assertEqual(attributes(chat)["gen_ai.operation.name"], "chat")
            self.assertIs(attributes(chat)["baton.stream"], True)
            self.assertEqual(collector.heads[0]["Content-Type"], "application/json")

            # Refused ones: by their body, by their path, by the model's limits.
            for name, path, fields, code in (("body", "/v1/completions", {"prompt": 7}, 400),
                                             ("path", "/v1/nothing", {}, 404)):
                status, text = ask(cluster, name, path=path, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"}, **fields)
                self.assertEqual(status, code, text)
                refused = collector.root_of(name)
                self.assertEqual((refused["traceId"], refused["parentSpanId"]), (TRACE, SPAN))
                facts = attributes(refused)
                self.assertEqual((facts["http.response.status_code"], facts["error.type"]), (code, str(code)))
                self.assertTrue(facts["baton.error"])
                self.assertNotIn("status", refused)  # the client's mistake is no failure of a server
            # Logs and spans quote no body; the reply does.
            for name, path, body, told in (
                    ("syntax", "/v1/completions", '{"prompt": "canary", canary', "not valid JSON at line 1, column 22"),
                    ("twice", "/v1/completions", '{"canary": 1, "canary": 2}', "invalid_argument"),
                    ("value", "/v1/chat/completions", '{"messages": [{"role": "canary", "content": ""}]}', "messages[0].role"),
                    ("model", "/v1/completions", '{"model": "canary", "prompt": "x"}', "model_not_found: model")):
                status, text = ask(cluster, name, path=path, body=body)
                self.assertIn(status, (400, 404), text)
                self.assertIn("canary", text)
                facts = attributes(collector.root_of(name))
                self.assertIn(told, facts["baton.error"])
                self.assertEqual(facts["http.route"], path)
            self.assertEqual(collector.root_of("path")["name"], "POST")
            self.assertNotIn("canary", json.dumps(collector.spans()))
            log = (cluster.folder / "frontend0.log").read_text()
            self.assertIn("not valid JSON at line 1, column 22", log)
            self.assertNotIn("canary", log)
            # Not sampled, says the client; and whoever probes is not told of.
            ask(cluster, "unsampled", prompt="x", max_tokens=2, headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
            cluster.get("/health")
            cluster.get("/nothing")
            ask(cluster, "last", prompt="x", max_tokens=2)
            collector.root_of("last")
            names = collections.Counter(attributes(span)["baton.request_id"] for span in collector.roots())
            self.assertEqual(names, dict.fromkeys(("mine", "chat", "body", "path", "syntax", "twice", "value", "model", "last"), 1))
            wait_until(lambda: metric(cluster, "baton_spans_exported_total") == len(collector.spans()), 10, "they are counted")
            self.keep_whole(collector)
        collector.stop()

    def test_a_client_that_leaves_and_a_worker_that_dies(self):
        collector = Collector()
        with Cluster(workers=MIXED, fake=True, worker={"step_delay_ms": 20},
                     top={"telemetry": {"otlp_url": collector.url}}) as cluster:
            stream = cluster.stream("left", max_tokens=400, ignore_eos=True)
            stream.wait_pieces(2)
            stream.leave()
            left = wait_until(lambda: next(iter(collector.roots()), None), 20, "a span of who left")
            self.assertIn("client", attributes(left)["error.type"])
            self.assertNotIn("http.response.status_code", attributes(left))
            stream = cluster.stream("goes on", max_tokens=60, ignore_eos=True)
            stream.wait_pieces(5)
            cluster.restart("mixed0")
            stream.finish()
            root = wait_until(lambda: next((span for span in collector.roots() if span["spanId"] != left["spanId"]), None),
                              20, "its span")
            facts = attributes(root)
            self.assertEqual((facts["gen_ai.usage.output_tokens"], facts["baton.parts_are_sums"]), (60, True))
            self.assertIn("away", [part["name"] for part in collector.parts_of(root)])
            self.keep_whole(collector)
        collector.stop()

    def test_a_collector_that_is_away_costs_nobody_anything(self):
        port = free_port()
        with Cluster(workers=MIXED, fake=True,
                     top={"telemetry": {"otlp_url": f"http://127.0.0.1:{port}/v1/traces"}}) as cluster:
            for i in range(5):
                begun = time.monotonic()
                self.assertEqual(ask(cluster, f"away{i}", prompt="x", max_tokens=3)[0], 200)
                self.assertLess(time.monotonic() - begun, 5 * PATIENCE)
            collector = Collector(port)  # it comes before the batch is given up
            self.assertEqual(len({collector.root_of(f"away{i}", 60)["spanId"] for i in range(5)}), 5)
            collector.answer = 400
            ask(cluster, "refused", prompt="x", max_tokens=3)
            wait_until(lambda: 'reason="not_taken"} 1' in cluster.get("/metrics")[1], 20, "it is counted")
            log = (cluster.folder / "frontend0.log").read_text()
            self.assertIn("takes no spans: status 400", log)
            collector.stop()
            # Nor does its death hold up the end of the front end.
            ask(cluster, "late", prompt="x", max_tokens=3)
            begun = time.monotonic()
            cluster.processes["frontend0"].terminate()
            cluster.processes["frontend0"].wait(30)
            self.assertLess(time.monotonic() - begun, 10 * PATIENCE)

    def test_off_and_by_chance(self):
        with Cluster(workers=MIXED, fake=True) as cluster:
            ask(cluster, "off", prompt="x", max_tokens=2)
            self.assertIsNone(metric(cluster, "baton_spans_exported_total"))
        collector = Collector()
        with self.cluster(collector, sample_ratio=0) as cluster:
            ask(cluster, "no", prompt="x", max_tokens=2)
            ask(cluster, "yes", prompt="x", max_tokens=2, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
            collector.root_of("yes")
            self.assertEqual(len(collector.roots()), 1)
        collector.stop()

    def keep_whole(self, collector):
        """For whoever has the published definition."""


class OfTheProject(Otlp):
    """The same, each body read by opentelemetry-proto's own definition: no field that it does not know."""

    def keep_whole(self, collector):
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
        self.assertTrue(collector.bodies)
        for body in collector.bodies:
            request = json_format.Parse(body, trace_service_pb2.ExportTraceServiceRequest())
            spans = [span for resource in request.resource_spans for scope in resource.scope_spans
                     for span in scope.spans]
            self.assertEqual(len(spans), len(json.loads(body)["resourceSpans"][0]["scopeSpans"][0]["spans"]))
            for span in spans:
                self.assertLessEqual(span.start_time_unix_nano, span.end_time_unix_nano)


if __name__ == "__main__":
    if "OfTheProject" in " ".join(sys.argv):
        from client_packages import install
        install("otlp")
        unittest.main()
    else:
        unittest.main(defaultTest="Otlp")
