"""Claude Code, as a program, over the messages API: tools that it runs, a typed answer, an answer without a call."""

import json
import subprocess
import unittest

import agent_case
import client_packages

client_packages.install("claude_code")
PROGRAM = client_packages.BUILD / "claude_code-client/claude_agent_sdk/_bundled/claude"
BEFORE = 'def greet(name):\n\treturn "hello"\n'
OLD, NEW = '\treturn "hello"', '\treturn f"Grüße, {name} \\\\n"'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}, "coast": {"type": "boolean"}},
          "required": ["city", "people", "coast"]}


class ClaudeCode(agent_case.AgentCase):
    context, distance = 131072, 12288  # tokens are bytes: all of its tools take 40,000, and reminders stand behind what the user says
    worker = {"pool_mib": 256}

    def setUp(self):
        self.work = self.home / "work"
        self.work.mkdir(exist_ok=True)

    def run_claude(self, prompt, *options):
        done = subprocess.run(
            [PROGRAM, "--print", prompt, "--model", "demo", "--output-format", "json", "--max-turns", "8", *options],
            cwd=self.work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280, check=False,
            env=agent_case.environment(self.home, "claude_code", ANTHROPIC_BASE_URL=self.url, ANTHROPIC_API_KEY="any",
                                       CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1"))
        reply = json.loads(done.stdout)
        self.assertEqual((reply["subtype"], reply["is_error"]), ("success", False), done.stdout + done.stderr)
        return reply

    def test_a_loop_of_three_turns(self):
        """Calls side by side, and arguments with what JSON escapes."""
        file = self.work / "greet.py"
        file.write_text(BEFORE)

        def look(number):
            return agent_case.call("Bash", {"command": f"echo '{number} ä' >> seen; cat 'step {number}'", "description": "Looks"})
        said = ["I look.\n" + agent_case.call("Read", {"file_path": str(file)}) + "\n" + look(1),
                agent_case.call("Edit", {"file_path": str(file), "old_string": OLD, "new_string": NEW}) + "\n" + look(2),
                look(3), agent_case.ANSWER]
        for number in (1, 2, 3):
            (self.work / f"step {number}").write_text(self.script.anywhere(said[number]))
        reply = self.run_claude(self.says(said[0]), "--tools", "Bash,Read,Edit", "--allowedTools", "Bash,Read,Edit")
        self.assertEqual((reply["result"], reply["permission_denials"]), (agent_case.ANSWER, []))
        self.assertEqual((self.work / "seen").read_text(), "1 ä\n2 ä\n3 ä\n")
        self.assertEqual(file.read_text(), BEFORE.replace(OLD, NEW))

    def test_a_structured_answer(self):
        said = agent_case.call("StructuredOutput", agent_case.CITY)
        reply = self.run_claude(self.says(said), "--tools", "", "--json-schema", json.dumps(SCHEMA))
        self.assertEqual(reply["structured_output"], agent_case.CITY)

    def test_a_refusal_with_all_of_its_tools(self):
        reply = self.run_claude(self.says(agent_case.REFUSAL))
        self.assertEqual((reply["result"], reply["num_turns"]), (agent_case.REFUSAL, 1))


if __name__ == "__main__":
    unittest.main()
