"""Chat templates as their makers publish them: our front end's prompts are those that transformers renders, for
every request body of tests/golden/chat_templates; and the calls that they write down are read.

Writes templates and goldens into the build folder and has chat_template_test compare them.
"""

import json
import os
import shutil
import subprocess
import sys
import unittest

import published

sys.path.insert(0, str(published.ROOT / "tests" / "golden" / "chat_templates"))
import make_goldens  # noqa: E402

FOLDER = published.client_packages.BUILD / "published-templates"
PROGRAM = published.client_packages.BUILD / "tests" / "chat_template_test"
TRL = published.PACKAGES / "trl" / "chat_templates"
AXOLOTL = published.PACKAGES / "axolotl" / "utils" / "chat_templates" / "templates"

# How families of models that we serve write calls and reasoning (frontend/chat/calls/call_format.cpp).
MARKS = {
    "llama3": ["", ""], "llama3_1": ["llama3_json", ""], "llama3_2": ["llama3_json", ""],
    "mistral_v1": ["", ""], "mistral_v2v3": ["mistral", ""], "mistral_v3_tekken": ["mistral", ""],
    "mistral_v7_tekken": ["", ""], "deepseek_r1_distill": ["", "<think>"],
    "qwen2_5": ["hermes", ""], "qwen3": ["hermes", "<think>"], "qwen3_instruct_2507": ["hermes", ""],
    "qwen3_5_think": ["qwen3_xml", "<think>"], "qwen3_6": ["qwen3_xml", "<think>"], "gptoss": ["openai", ""],
}


def templates():
    """Names and files, without those that are changed for training."""
    found = {path.stem: path for path in sorted(TRL.glob("*.jinja")) if not path.stem.endswith("_training")}
    for path in sorted(AXOLOTL.glob("*.jinja")):
        found.setdefault(path.stem, path)
    return found


# Ends of an assistant's turn.
ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<|call|>")
CALLS = [("get_weather", {"place": "Köln, \"here\" <b>\n{x}", "days": [1, 2], "at": {"z": None, "a": "1"}}),
         ("get_weather", {"place": "true", "unit": "C"}), ("clock", {})]


def reply_with(name, text, calls, content):
    """What the assistant says when it makes these calls, in this template's words."""
    def render(messages, **options):
        return make_goldens.tokenizer().apply_chat_template(messages, chat_template=text, tokenize=False, tools=tools,
                                                            **options)
    tools = [make_goldens.WEATHER, make_goldens.CLOCK]
    asked = [{"role": "user", "content": "Go"}]
    made = [make_goldens.call(function, arguments, f"00000000{i}") for i, (function, arguments) in enumerate(calls)]
    answered = [*asked, {"role": "assistant", "content": content, "tool_calls": made}]
    prompt, whole = render(asked, add_generation_prompt=True), render(answered)
    common = os.path.commonprefix([prompt, whole])
    reply = whole[len(common):].rstrip("\n")
    for end in ENDS:
        reply = reply.removesuffix(end)
    return {"template": name, "prompt": prompt, "reply": reply, "calls": calls, "content": content, "tools": tools}


class Published(unittest.TestCase):
    def test_templates(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        for name, path in templates().items():
            shutil.copy(path, FOLDER / f"{name}.jinja")
        goldens = make_goldens.goldens_of(FOLDER)
        self.assertGreater(len(goldens["renders"]), 1000)
        goldens["marks"] = MARKS
        goldens["replies"] = []
        for name, (style, _) in MARKS.items():
            # The templates of Llama and gpt-oss take one call at a time.
            several = [] if style in ("llama3_json", "openai") else [CALLS]
            for calls in [[call] for call in CALLS] + several if style else []:
                for content in ("", "Wait.") if style in ("hermes", "qwen3_xml") else ("",):
                    goldens["replies"].append(reply_with(name, templates()[name].read_text(), calls, content))
        # What OpenAI's own renderer makes of the same bodies (make_harmony.py).
        goldens["harmony"] = json.loads((published.ROOT / "tests" / "golden" / "harmony.json").read_text())
        (FOLDER / "goldens.json").write_text(json.dumps(goldens, ensure_ascii=False))
        run = subprocess.run([PROGRAM, "--gtest_filter=*RendersWhatTransformersRenders:*FindsHowAFamilyMarksItsReply"
                              ":*ReadsTheCallsThatAFamilysTemplateWrites:*HarmonyPromptsAreThoseOfTheOfficialRenderer"], cwd=published.ROOT,
                             capture_output=True, text=True, check=False,
                             env={**os.environ, "BATON_CHAT_TEMPLATES": f"{FOLDER}/"})
        self.assertEqual(run.returncode, 0, run.stdout[-6000:] + run.stderr)
        self.assertIn("[  PASSED  ] 4 tests.", run.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
