"""A server of the OpenAI dialect that writes one word at a time until its client goes away: an answer that can be stopped."""

import http.server
import json
import threading
import time

MODEL = "talker"
WORD_S = 0.02
MOST_WORDS = 30_000


class Talker:
    """Serves on a thread of its own. `asked` holds the messages of each call, `left` the words written when a client went away."""

    def __init__(self):
        talker = self
        self.asked = []
        self.left = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.whole({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "tests"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                talker.asked.append(body["messages"])
                said = str(body["messages"][-1]["content"])
                words = MOST_WORDS if "long" in said else 3
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                for at in range(words):
                    try:
                        self.event({"choices": [{"index": 0, "delta": {"content": f"word{at} "}, "finish_reason": None}]})
                    except OSError:
                        talker.left.append(at)
                        return
                    time.sleep(WORD_S)
                self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
                self.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": words, "total_tokens": 5 + words}})
                self.wfile.write(b"data: [DONE]\n\n")

            def event(self, data):
                whole = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": MODEL, **data}
                self.wfile.write(f"data: {json.dumps(whole)}\n\n".encode())
                self.wfile.flush()

            def whole(self, value):
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
