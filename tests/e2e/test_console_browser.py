"""The console in a browser (Chromium without a window): what a person sees, with mouse and with keyboard.

Skipped where no Chromium is installed: `apt-get install chromium`.
"""

import sys
import unittest

import browser
from cluster import Cluster

KEY = "a-key-of-sixteen-letters"
FAKE = {"fake": True, "worker": {"step_delay_ms": 20, "pool_mib": 64}}
TAG = "<img src=x onerror=\"document.title='taken'\">"

# A reply as a model with reasoning and tools streams it, in place of the server's.
MADE_UP = """(() => {
  const real = window.fetch;
  window.fetch = (path, options) => {
    if (path !== '/v1/chat/completions') return real(path, options);
    window.sent = JSON.parse(options.body);
    const deltas = [{reasoning_content: 'Let me <b>think</b>. '}, {reasoning_content: 'A tool knows.'}, {content: 'I look it up.'},
      {tool_calls: [{index: 0, id: 'call_7', function: {name: 'weather', arguments: '{"city": '}}]},
      {tool_calls: [{index: 0, function: {arguments: '"<i>Ulm</i>"}'}}]}];
    const events = deltas.map((delta) => ({choices: [{delta}]}));
    events.push({choices: [{delta: {}, finish_reason: 'tool_calls'}]}, {choices: [], usage: {completion_tokens: 20}});
    const text = events.map((event) => `data: ${JSON.stringify(event)}\\n\\n`).join('') + 'data: [DONE]\\n\\n';
    return Promise.resolve(new Response(text, {status: 200}));
  };
})()"""


class Console(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(**FAKE).__enter__()
        cls.port = next(iter(cls.cluster.frontends.values()))
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.__exit__()
        cls.cluster.__exit__(None, None, None)

    def open(self, port=None, **how):
        page = self.browser.page(**how)
        page.open(f"http://127.0.0.1:{port or self.port}/console")
        return page

    def live(self, **how):
        page = self.open(**how)
        page.wait("Number(document.body.dataset.looks) > 2")
        return page

    def close(self, page, complaints=()):
        self.browser.listen(0.1)
        self.assertEqual([c for c in page.complaints if not any(known in c for known in complaints)], [])
        page.call("Page.close")

    def test_a_chat_streams_in_and_the_pools_show_it(self):
        page = self.live(width=1440, height=900)
        self.assertEqual(page.tell("document.getElementById('model').textContent"), "demo")
        maps = "[...document.querySelectorAll('.part canvas')].map((c) => c.toDataURL()).join()"
        before = page.tell(maps)
        page.tell("document.getElementById('max_tokens').value = 150")
        page.tell("document.getElementById('prompt').focus()")
        page.write(TAG + " hello" * 100)
        page.press("Enter")
        length = "(document.querySelector('.said.assistant .text') || {textContent: ''}).textContent.length"
        first = page.wait(length)
        page.wait(f"{length} > {first} && document.getElementById('send').textContent === 'Stop'")
        page.wait("Number(document.body.dataset.pulls) > 0")
        page.wait("document.querySelector('#requests .row')")
        self.assertNotEqual(page.tell(maps), before)
        page.wait("document.getElementById('send').textContent === 'Send'")
        self.assertRegex(page.tell("document.querySelector('.said.assistant .meta').textContent"), r"150 tokens · .*tokens/s")
        self.assertTrue(page.tell("document.querySelector('.said.assistant .spark path').getAttribute('d').length > 5"))
        # What a user or a model says is text.
        self.assertTrue(page.tell("document.querySelector('.said.user .text').textContent").startswith(TAG))
        self.assertFalse(page.tell("document.querySelector('#log img') || document.title === 'taken'"))
        origin = f"http://127.0.0.1:{self.port}/"
        self.assertTrue(all(url.startswith((origin, "data:")) for _, url in page.asked), page.asked)
        self.assertEqual({url for method, url in page.asked if method != "GET"}, {origin + "v1/chat/completions"})
        self.close(page)

    def test_stop_ends_the_request(self):
        page = self.live()
        page.tell("document.getElementById('max_tokens').value = 4000")
        page.tell("document.querySelector('[data-ask]').click()")
        page.wait("document.querySelector('.said.assistant .text')")
        page.tell("document.getElementById('send').click()")
        page.wait("document.querySelector('.said.assistant .meta').textContent.includes('stopped')")
        page.wait("document.getElementById('f-running').textContent === '0'")
        self.assertEqual(self.cluster.show("requests"), [])
        self.close(page)

    def test_a_request_opens_as_its_time_line(self):
        stream = self.cluster.stream("Hello " * 300, max_tokens=400, ignore_eos=True)
        page = self.live()
        page.wait("document.querySelector('#requests .row')")
        page.tell("document.querySelector('#requests .row').focus()")
        page.press("Enter")
        page.wait("/decodes on decode0/.test(document.querySelector('.events').textContent)")
        said = page.tell("document.querySelector('.events').textContent")
        self.assertRegex(said, "came with .* prompt tokens.*prefill began")
        self.assertEqual(page.tell("document.querySelector('#requests .row').getAttribute('aria-expanded')"), "true")
        stream.leave()
        page.wait("/ended after/.test(document.querySelector('.events').textContent)")
        page.tell("document.querySelector('#requests .row').click()")
        page.wait("!document.querySelector('#requests .row')")
        self.close(page)

    def test_reasoning_and_tool_calls_are_shown_and_answered(self):
        page = self.live()
        page.tell(MADE_UP)
        page.tell("document.getElementById('system').value = 'Be brief.'; document.getElementById('seed').value = '7'; "
                  "document.getElementById('tools').value = '[{\"type\": \"function\"}]'")
        page.tell("document.querySelector('[data-ask]').click()")
        page.wait("document.querySelector('form.call')")
        sent = page.tell("window.sent")
        self.assertEqual((sent["messages"][0], sent["seed"], sent["tools"]),
                         ({"role": "system", "content": "Be brief."}, 7, [{"type": "function"}]))
        self.assertEqual(page.tell("document.querySelector('.said.assistant details .text').textContent"),
                         "Let me <b>think</b>. A tool knows.")
        self.assertIn("<i>Ulm</i>", page.tell("document.querySelector('.call pre').textContent"))
        page.tell("document.querySelector('form.call textarea').value = '12 degrees'")
        page.tell("document.querySelector('form.call').requestSubmit()")
        page.wait("document.querySelectorAll('.said.assistant').length === 2")
        called, answered = page.tell("window.sent.messages")[-2:]
        self.assertEqual(called["tool_calls"][0]["function"], {"name": "weather", "arguments": '{"city": "<i>Ulm</i>"}'})
        self.assertEqual(answered, {"role": "tool", "tool_call_id": "call_7", "content": "12 degrees"})
        self.close(page)

    def test_everything_can_be_reached_by_keyboard_and_has_a_name(self):
        stream = self.cluster.stream("Hello", max_tokens=1000, ignore_eos=True)
        page = self.live()
        page.wait("document.querySelector('#requests .row')")
        page.tell("document.getElementById('settings-open').click()")
        controls = page.controls()
        self.assertEqual([control for control in controls if not control[1].strip()], [])
        names = {name for _, name in controls}
        for name in ("Your message", "Send", "Settings", "New chat", "System prompt", "Temperature", "Top-p", "Max tokens", "Seed"):
            self.assertIn(name, names)
        reached, focused = [], "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
        for _ in range(30):
            page.press("Tab")
            reached.append(page.tell(focused))
        for wanted in ("settings-open", "system", "temperature", "top_p", "max_tokens", "seed", "tools", "log", "prompt", "send", "row"):
            self.assertIn(wanted, reached)
        stream.leave()
        self.close(page)

    def test_a_phone_shows_one_at_a_time_and_nothing_overflows(self):
        page = self.live(width=390, height=844)
        for view, shown, other in (("work", "work", "chat"), ("chat", "chat", "work")):
            page.tell(f"document.querySelector('#views [data-view={view}]').click()")
            self.assertTrue(page.tell(f"document.getElementById('{shown}').offsetHeight > 0"))
            self.assertEqual(page.tell(f"document.getElementById('{other}').offsetHeight"), 0)
            self.assertLessEqual(page.tell("document.documentElement.scrollWidth"), 390)
        self.close(page)

    def test_who_wants_no_motion_gets_none(self):
        page = self.live(still=True)
        self.assertTrue(page.tell("flights.still.matches"))
        self.close(page)


class Others(unittest.TestCase):
    def test_a_key_stays_in_its_tab(self):
        with browser.Browser() as chromium, Cluster(**FAKE) as cluster:
            keys = cluster.folder / "keys"
            keys.write_text(KEY + "\n")
            with Cluster(frontend={"host": "0.0.0.0", "api_keys": str(keys)}, **FAKE) as guarded:
                page = chromium.page()
                page.open(f"http://127.0.0.1:{guarded.frontends['frontend0']}/console")
                page.wait("!document.getElementById('keybar').hidden")
                page.tell("document.getElementById('key').focus()")
                page.write(KEY)
                page.press("Enter")
                page.wait("Number(document.body.dataset.looks) > 1 && document.getElementById('model').textContent")
                self.assertTrue(page.tell("document.getElementById('keybar').hidden"))
                self.assertEqual(page.tell("[Object.values(sessionStorage), localStorage.length, document.cookie]"),
                                 [[KEY], 0, ""])
                self.assertEqual([c for c in page.complaints if "401" not in c], [])
                page.tell("document.getElementById('forget').click()")
                page.wait("!document.getElementById('keybar').hidden && sessionStorage.length === 0")

    def test_a_scheduler_that_leaves_is_waited_for(self):
        with browser.Browser() as chromium, Cluster(**FAKE) as cluster:
            page = chromium.page()
            page.open(f"http://127.0.0.1:{cluster.frontends['frontend0']}/console")
            page.wait("document.getElementById('state').dataset.is === 'live'")
            cluster.kill("scheduler")
            page.wait("document.getElementById('state').textContent === 'the scheduler does not answer'")
            cluster.start("scheduler")
            page.wait("document.getElementById('state').dataset.is === 'live'")
            self.assertEqual(page.complaints, [])


if __name__ == "__main__":
    if browser.program() is None:
        print("no Chromium here: apt-get install chromium")
        sys.exit(77)
    unittest.main()
