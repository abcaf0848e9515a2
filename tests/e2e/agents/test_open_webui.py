"""open-webui's server, as the page of a browser speaks to it: chats that it keeps, with tools that it runs.

Its packages are those that it imports for that: no torch, nothing that reads documents or speech.
"""

import http.client
import json
import subprocess
import sys
import unittest
import uuid

import agent_case
import client_packages
from cluster import free_port, wait_until

client_packages.install("open_webui")

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"},
                                           "coast": {"type": "boolean"}}, "required": ["city", "people", "coast"]}
TOOL = '''
import json, pathlib

class Tools:
    def look_up(self, key: str) -> str:
        """
        The value of a key.
        :param key: the key
        """
        file = pathlib.Path(%r)
        state = json.loads(file.read_text())
        state["asked"].append(key)
        file.write_text(json.dumps(state))
        return state["results"][key]
'''


class OpenWebUI:
    """One open-webui for the whole class, over one API (.api)."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.state = cls.home / "task.json"
        cls.ui_port = free_port()
        (cls.home / "data").mkdir()
        log = cls.enterClassContext(open(cls.home / "open-webui.log", "w+"))
        ui = subprocess.Popen(
            [sys.executable, "-c", "from open_webui import app; app()", "serve", "--host", "127.0.0.1", "--port", str(cls.ui_port)],
            cwd=cls.home, stdout=log, stderr=log, env=agent_case.environment(
                cls.home, "open_webui", DATA_DIR=str(cls.home / "data"), WEBUI_SECRET_KEY="of-a-test", WEBUI_AUTH="False",
                OFFLINE_MODE="True", HF_HUB_OFFLINE="1", BYPASS_EMBEDDING_AND_RETRIEVAL="True", RAG_EMBEDDING_ENGINE="openai",
                ENABLE_OLLAMA_API=str(cls.api == "ollama"),
                ENABLE_OPENAI_API=str(cls.api == "openai"), OLLAMA_BASE_URLS=cls.url, OPENAI_API_BASE_URLS=f"{cls.url}/v1", OPENAI_API_KEYS="any"))
        cls.addClassCleanup(ui.wait)
        cls.addClassCleanup(ui.kill)
        cls.key = None

        def ready():
            assert ui.poll() is None, (cls.home / "open-webui.log").read_text()
            try:
                return cls.ask("GET", "/health")["status"]
            except OSError:
                return False
        wait_until(ready, 120, "open-webui")
        cls.key = cls.ask("POST", "/api/v1/auths/signin", {"email": "", "password": ""})["token"]
        cls.ask("POST", "/api/v1/tools/create", {"id": "values", "name": "Values", "content": TOOL % str(cls.state),
                                                 "meta": {"description": "values"}})

    @classmethod
    def ask(cls, method, path, body=None, raw=False):
        connection = http.client.HTTPConnection("127.0.0.1", cls.ui_port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {
                "Content-Type": "application/json", **({"Authorization": f"Bearer {cls.key}"} if cls.key else {})})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        assert response.status == 200, (path, response.status, text)
        return text if raw else json.loads(text)

    def chat(self, prompt, stream=True, **options):
        """What the page does for a new chat: asks, and reads the answer out of what is kept of it."""
        asked, told = str(uuid.uuid4()), str(uuid.uuid4())
        reply = self.ask("POST", "/api/chat/completions", {
            "model": "demo", "stream": stream, "messages": [{"role": "user", "content": prompt}], "parent_id": None, "id": told,
            "session_id": "test", "user_message": {"id": asked, "role": "user", "content": prompt, "parentId": None,
                                                   "childrenIds": [told], "models": ["demo"]}, **options})
        chat = reply["chat_id"]

        def done():
            message = self.ask("GET", f"/api/v1/chats/{chat}")["chat"]["history"]["messages"][told]
            return message if message.get("done") or message.get("error") else None
        message = wait_until(done, 60, f"the answer of {reply}")
        self.assertNotIn("error", message)
        return message

    def test_models(self):
        self.assertIn(("demo", self.api), [(model["id"], model["owned_by"]) for model in self.ask("GET", "/api/models")["data"]])

    def test_a_loop_of_three_calls(self):
        task = self.task()
        self.state.write_text(json.dumps({"asked": [], "results": dict(zip(agent_case.KEYS, task.results))}))
        message = self.chat(task.prompt, tool_ids=["values"])
        task.asked = json.loads(self.state.read_text())["asked"]
        self.assert_done(task, message["content"])
        self.assertEqual([item["type"] for item in message["output"]], ["function_call", "function_call_output"] * 3 + ["message"])

    def test_a_refusal(self):
        for stream in (True, False):
            message = self.chat(self.says(agent_case.REFUSAL), stream=stream, tool_ids=["values"])
            self.assertEqual(message["content"], agent_case.REFUSAL)
            self.assertEqual([item["type"] for item in message["output"]], ["message"])


class OverChats(OpenWebUI, agent_case.AgentCase):
    api = "openai"

    def test_a_structured_answer(self):
        """It hands on what a page does not ask for."""
        body = {"model": "demo", "messages": [{"role": "user", "content": self.says_json(agent_case.CITY)}], "response_format": {
            "type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}}
        whole = self.ask("POST", "/api/chat/completions", {**body, "stream": False})
        self.assertEqual(json.loads(whole["choices"][0]["message"]["content"]), agent_case.CITY)
        streamed = self.ask("POST", "/api/chat/completions", {**body, "stream": True}, raw=True)
        events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        said = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
        self.assertEqual(json.loads(said), agent_case.CITY)


class OverOllama(OpenWebUI, agent_case.AgentCase):
    api = "ollama"

    def test_a_structured_answer(self):
        body = {"model": "demo", "messages": [{"role": "user", "content": self.says_json(agent_case.CITY)}], "format": SCHEMA}
        whole = self.ask("POST", "/ollama/api/chat", {**body, "stream": False})
        self.assertEqual(json.loads(whole["message"]["content"]), agent_case.CITY)
        lines = self.ask("POST", "/ollama/api/chat", {**body, "stream": True}, raw=True).splitlines()
        self.assertEqual(json.loads("".join(json.loads(line)["message"]["content"] for line in lines)), agent_case.CITY)


if __name__ == "__main__":
    unittest.main()
