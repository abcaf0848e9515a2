"""OpenAI's Codex, as a program, over the responses API: commands that it runs, a typed answer, an answer without a call."""

import json
import subprocess
import unittest

import agent_case
import client_packages

client_packages.install("codex")
PROGRAM = client_packages.BUILD / "codex-client/codex_cli_bin/bin/codex"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}, "coast": {"type": "boolean"}},
          "required": ["city", "people", "coast"], "additionalProperties": False}


class Codex(agent_case.AgentCase):
    def setUp(self):
        PROGRAM.chmod(0o755)  # pip installs what lies in a package without it
        self.work = self.home / "work"
        self.work.mkdir(exist_ok=True)
        (self.home / "codex").mkdir(exist_ok=True)

    def run_codex(self, prompt, *options):
        """The events, as it prints them."""
        provider = {"name": "Baton", "base_url": f"{self.url}/v1", "wire_api": "responses", "request_max_retries": 0,
                    "stream_max_retries": 0}
        inline = ",".join(f"{name}={json.dumps(value)}" for name, value in provider.items())  # TOML
        done = subprocess.run(
            [PROGRAM, "exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--model", "demo",
             "-c", "model_provider=baton", "-c", f"model_providers.baton={{{inline}}}", *options, prompt],
            cwd=self.work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280, check=False,
            env=agent_case.environment(self.home, "codex", CODEX_HOME=str(self.home / "codex")))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def answer(self, events):
        return [event["item"]["text"] for event in events
                if event["type"] == "item.completed" and event["item"]["type"] == "agent_message"][-1]

    def test_a_loop_of_three_calls(self):
        said = [agent_case.call("exec_command", {"cmd": f"echo '{number} ä' >> seen; cat 'step {number}'"}) for number in (1, 2, 3)]
        said.append(agent_case.ANSWER)
        for number in (1, 2, 3):
            (self.work / f"step {number}").write_text(self.script.anywhere(said[number]))
        events = self.run_codex(self.says(said[0]))
        self.assertEqual(self.answer(events), agent_case.ANSWER, events)
        self.assertEqual((self.work / "seen").read_text(), "1 ä\n2 ä\n3 ä\n")

    def test_a_structured_answer(self):
        schema = self.work / "schema.json"
        schema.write_text(json.dumps(SCHEMA))
        events = self.run_codex(self.says_json(agent_case.CITY), "--output-schema", str(schema))
        self.assertEqual(json.loads(self.answer(events)), agent_case.CITY)

    def test_a_refusal(self):
        events = self.run_codex(self.says(agent_case.REFUSAL))
        self.assertEqual(self.answer(events), agent_case.REFUSAL)
        self.assertEqual([event["item"]["type"] for event in events if event["type"] == "item.completed"].count("agent_message"), 1)


if __name__ == "__main__":
    unittest.main()
