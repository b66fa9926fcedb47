"""A server of a test's own on a free port, and what its handlers have in common."""

import http.server
import json
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Says nothing on the terminal, and keeps its connections."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self):
        return self.rfile.read(int(self.headers["content-length"]))

    def head(self, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def answer(self, data=b"", status=200, **headers):
        self.head(status, content_length=len(data), **headers)
        self.wfile.write(data)


class Listening:
    """Serves by a handler, which finds it as `self.server.outer`, until it is stopped."""

    def __init__(self, handler):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.outer = self
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
