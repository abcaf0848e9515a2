"""aider, as a program: one message edits a file, in each of its formats of edits."""

import subprocess
import sys
import unittest

import agent_case
import client_packages

client_packages.install("aider")

BEFORE = 'def greet(name):\n    return "hello"\n'
AFTER = 'def greet(name):\n    return f"Grüße, {name}"\n'
OLD, NEW = '    return "hello"', '    return f"Grüße, {name}"'
EDITS = {
    "whole": f"I change the reply.\n\ngreet.py\n```\n{AFTER}```\n",
    "diff": f"I change the reply.\n\ngreet.py\n```python\n<<<<<<< SEARCH\n{OLD}\n=======\n{NEW}\n>>>>>>> REPLACE\n```\n",
    "udiff": f"I change the reply.\n\n```diff\n--- greet.py\n+++ greet.py\n@@ ... @@\n def greet(name):\n-{OLD}\n+{NEW}\n```\n",
}


class Aider(agent_case.AgentCase):
    distance = 6144  # it repeats its rules behind what the user says

    def run_aider(self, said, *options):
        folder = self.home / "work"
        folder.mkdir(exist_ok=True)
        (folder / "greet.py").write_text(BEFORE)
        done = subprocess.run(
            [sys.executable, "-m", "aider", "--model", "openai/demo", "--openai-api-base", f"{self.url}/v1", "--openai-api-key", "any",
             "--message", self.says(said), "--yes-always", "--no-git", "--no-check-update", "--no-show-model-warnings",
             "--no-analytics", "--no-show-release-notes", "--no-pretty", *options, "greet.py"],
            cwd=folder, env=agent_case.environment(self.home, "aider", LITELLM_LOCAL_MODEL_COST_MAP="True"), capture_output=True,
            text=True, timeout=240, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout, (folder / "greet.py").read_text()

    def test_an_edit_of_every_format(self):
        for form, said in EDITS.items():
            for stream in ("--stream", "--no-stream"):
                with self.subTest(form=form, stream=stream):
                    shown, text = self.run_aider(said, "--edit-format", form, stream)
                    self.assertEqual(text, AFTER, shown)

    def test_a_loop_of_three_edits(self):
        """What the command says of the file goes to the model, until it is content."""
        folder = self.home / "work"
        folder.mkdir(exist_ok=True)
        texts = [AFTER.replace("Grüße", word) for word in ("Hi", "Hello", "Grüße")]
        said = [EDITS["whole"].replace(AFTER, text) for text in texts]
        results = {text: self.script.anywhere(next_said) for text, next_said in zip(texts, said[1:])}
        (folder / "check.py").write_text(
            f"import pathlib, sys\ntext = {results!r}.get(pathlib.Path('greet.py').read_text())\nif text: sys.exit(text)\n")
        shown, text = self.run_aider(said[0], "--edit-format", "whole", "--auto-test", "--test-cmd", f"{sys.executable} check.py")
        self.assertEqual(text, AFTER, shown)
        self.assertEqual(shown.count("Applied edit to greet.py"), 3, shown)

    def test_a_refusal(self):
        shown, text = self.run_aider(agent_case.REFUSAL)
        self.assertIn(agent_case.REFUSAL, shown)
        self.assertEqual(text, BEFORE)


if __name__ == "__main__":
    unittest.main()
