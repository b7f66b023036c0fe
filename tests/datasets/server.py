"""A web server on this machine, for downloads: with or without ranges, cut short, slow, or absent."""

import http.server
import re
import threading
from contextlib import contextmanager


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        content = server.files.get(self.path)
        if self.path in server.moved:
            self.send_response(302)
            self.send_header("Location", server.moved[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if content is None:
            self.send_error(404)
            return
        start = 0
        if server.ranges and (
            match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        ):
            start = int(match[1])
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header(
                "Content-Range", f"bytes {start + server.shift}-{len(content) - 1}/{len(content)}"
            )
        else:
            self.send_response(200)
        if server.length:
            self.send_header("Content-Length", str(len(content) - start))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        body = content[start : server.cut]
        step = server.step or len(body) or 1
        for at in range(0, len(body), step):
            self.wfile.write(body[at : at + step])
            self.wfile.flush()
            server.pause.wait(server.wait)
        if server.cut is not None or not server.length:
            self.close_connection = True

    def log_message(self, *arguments):
        pass


@contextmanager
def serving(files, ranges=True, cut=None, step=None, wait=0.0, shift=0, moved=None, length=True):
    """A server of these files.

    `cut` ends every body there, `step` and `wait` slow it down, `shift` misplaces ranges, `moved`
    sends elsewhere, and without `length` nothing says how long a body is.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.files, server.ranges, server.cut, server.step, server.wait = (
        files,
        ranges,
        cut,
        step,
        wait,
    )
    server.length, server.shift, server.moved, server.asked, server.pause = (
        length,
        shift,
        moved or {},
        [],
        threading.Event(),
    )
    server.handle_error = lambda *arguments: None  # a client that went away
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield server
    finally:
        server.pause.set()
        server.shutdown()
        thread.join()
        server.server_close()
