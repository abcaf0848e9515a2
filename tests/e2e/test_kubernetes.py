"""The manifests of docs/kubernetes: what one says of another, the configuration that they hold (by the program that reads it),
and, with the published schemas at hand, every field.

Core resources are checked against the schemas of kubernetes-validate (requirements-kubernetes.txt; skipped where it cannot be
installed). Those of the Gateway API and its inference extension are published as resource definitions, which no package
has: BATON_CRDS names a folder with such files, for example config/crd of their repositories.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import client_packages

client_packages.install("kubernetes")

import jsonschema
import kubernetes_validate
import yaml

from cluster import BIN, SOURCE, wait_until

FOLDER = SOURCE / "docs" / "kubernetes"
VERSION = "1.30"
CUSTOM = {"InferencePool", "Gateway", "HTTPRoute"}
# The fields that CRDs have and schemas of JSON do not.
FORMATS = {"int32", "int64", "double", "byte"}


def resources():
    """(file, resource) of each."""
    return [(path.name, resource) for path in sorted(FOLDER.glob("*.yaml"))
            for resource in yaml.safe_load_all(path.read_text())]


def find(kind, name):
    found = [resource for _, resource in resources() if (resource["kind"], resource["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{kind} {name}: {len(found)}"
    return found[0]


def strict(schema):
    """As `kubectl apply --validate=strict`: what a definition does not name is an error."""
    if not isinstance(schema, dict):
        return schema
    schema = {key: value for key, value in schema.items() if key != "format" or value not in FORMATS}
    if "properties" in schema:
        schema["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        schema[key] = strict(schema[key]) if key in schema else None
        if schema[key] is None:
            del schema[key]
    return schema


class Schemas(unittest.TestCase):
    def test_core_resources(self):
        count = 0
        for file, resource in resources():
            if resource["kind"] in CUSTOM:
                continue
            with self.subTest(file=file, kind=resource["kind"], name=resource["metadata"]["name"]):
                kubernetes_validate.validate(resource, VERSION, strict=True)
            count += 1
        self.assertGreater(count, 6)

    def test_a_misspelt_field_is_found(self):
        pod = find("DaemonSet", "baton")
        pod["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(pod, VERSION, strict=True)

    def test_custom_resources(self):
        if "BATON_CRDS" not in os.environ:
            self.skipTest("BATON_CRDS names no folder of resource definitions")
        definitions = {}
        for path in pathlib.Path(os.environ["BATON_CRDS"]).rglob("*.yaml"):
            for crd in yaml.safe_load_all(path.read_text()):
                if isinstance(crd, dict) and crd.get("kind") == "CustomResourceDefinition":
                    spec = crd["spec"]
                    for version in spec["versions"]:
                        name = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                        definitions.setdefault(name, version["schema"]["openAPIV3Schema"])
        for file, resource in resources():
            if resource["kind"] not in CUSTOM:
                continue
            name = (resource["apiVersion"], resource["kind"])
            with self.subTest(file=file, kind=name):
                self.assertIn(name, definitions)
                schema = strict(definitions[name])
                schema["properties"]["metadata"] = {"type": "object"}
                jsonschema.validate(resource, schema)
                # And it would notice.
                resource["spec"]["selecter"] = {}
                with self.assertRaises(jsonschema.ValidationError):
                    jsonschema.validate(resource, schema)


class Together(unittest.TestCase):
    def setUp(self):
        self.baton = find("DaemonSet", "baton")["spec"]["template"]
        self.container = self.baton["spec"]["containers"][0]
        self.settings = yaml.safe_load(find("ConfigMap", "baton")["data"]["baton.yaml"])

    def test_names_lead_somewhere(self):
        pool = find("InferencePool", "baton")["spec"]
        labels = self.baton["metadata"]["labels"]
        self.assertLessEqual(pool["selector"]["matchLabels"].items(), labels.items())
        port = pool["targetPorts"][0]["number"]
        self.assertEqual([port], [p["containerPort"] for p in self.container["ports"]])
        self.assertEqual(port, self.settings["frontend"]["port"])
        picker = find("Service", pool["endpointPickerRef"]["name"])["spec"]
        self.assertIn(pool["endpointPickerRef"]["port"]["number"], [p["port"] for p in picker["ports"]])
        deployment = find("Deployment", "baton-picker")["spec"]["template"]
        self.assertEqual(picker["selector"], deployment["metadata"]["labels"])
        self.assertIn("--pool-name=baton", deployment["spec"]["containers"][0]["args"])
        for backend in find("HTTPRoute", "baton")["spec"]["rules"][0]["backendRefs"]:
            find(backend["kind"], backend["name"])
        for parent in find("HTTPRoute", "baton")["spec"]["parentRefs"]:
            find(parent["kind"], parent["name"])
        # Pods that no Baton is in must not be in the pool.
        self.assertFalse(pool["selector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items())

    def test_streams_end_within_the_grace_period(self):
        spec = self.baton["spec"]
        arguments = dict(word.removeprefix("--").split("=", 1) for word in self.container["args"])
        pause = int(self.container["lifecycle"]["preStop"]["exec"]["command"][1])
        self.assertLess(self.settings["frontend"]["drain_s"], int(arguments["drain-bound"]))
        self.assertLess(int(arguments["drain-bound"]), int(arguments["stop-bound"]))
        self.assertLess(pause + int(arguments["stop-bound"]), spec["terminationGracePeriodSeconds"])
        self.assertGreaterEqual(find("Deployment", "baton-picker")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
                                spec["terminationGracePeriodSeconds"])

    def test_the_program_takes_its_configuration(self):
        text = find("ConfigMap", "baton")["data"]["baton.yaml"]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "baton.yaml"

            def start(settings):
                path.write_text(settings.replace("model: /model", f"model: {SOURCE}/demo/model"))
                return subprocess.Popen([BIN / "baton-scheduler", "--config", path, "--run_dir", folder],
                                        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            scheduler = start(text)
            try:
                wait_until((path.parent / "admin.sock").exists, 30, "the scheduler listens")
            finally:
                scheduler.terminate()
                scheduler.communicate(timeout=30)
            _, complaint = start(text.replace("drain_s", "drain_z")).communicate(timeout=30)
            self.assertIn("drain_z", complaint)

    def test_the_picker_reads_what_is_served(self):
        plugins = find("ConfigMap", "baton-picker")["data"]["plugins.yaml"]
        source = (SOURCE / "frontend" / "core" / "metrics.cpp").read_text()
        for name in re.findall(r"vllm:\w+", plugins):
            self.assertIn(f'"{name}"', source)
        profile = yaml.safe_load(plugins)
        self.assertLessEqual({plugin["pluginRef"] for plugin in profile["schedulingProfiles"][0]["plugins"]},
                             {plugin["type"] for plugin in profile["plugins"]})


if __name__ == "__main__":
    unittest.main(verbosity=2)
