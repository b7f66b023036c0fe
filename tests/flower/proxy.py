"""The proxy that examples/flower/README.md asks for: TLS, and nothing but what nodes need."""

import http.client
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OPEN = "/v1/fleet/"
HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class Proxy(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1, and hands on to `port`. `refused` are paths that were asked for in vain."""

    def __init__(self, port, path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream, self.refused = port, []
        self.trust = ssl.create_default_context(cafile=path / "ca.crt")
        identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        identity.load_cert_chain(path / "server.crt", path / "server.key")
        # The handshake belongs to the connection's own thread: here it would hold up the others.
        self.socket = identity.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request, client_address):
        """A node that hangs up, or does not like our certificate, is no news."""

    def close(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.path.startswith(OPEN):
            self.server.refused.append(self.path)
            self.answer(403, {}, b"")
            return
        upstream = http.client.HTTPSConnection(
            "127.0.0.1", self.server.upstream, context=self.server.trust, timeout=60
        )
        try:
            upstream.request(self.command, self.path, body, end_to_end(self.headers))
            reply = upstream.getresponse()
            self.answer(reply.status, end_to_end(reply.headers), reply.read())
        finally:
            upstream.close()

    do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815

    def answer(self, status, headers, body):
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def end_to_end(headers):
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
