"""A server of chat completions that says and calls what a script tells it to, for agents of others: by the last question that the script
knows, one step for each result of a call. A step is a text, or a tool's name and what it is given. Knows no agent.
"""

import http.server
import json
import threading

USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


class Model:
    """The server, on a free port. `arguments(tools, name, what)` names the tool that is offered for a step's, and its arguments. What it was asked is
    kept."""

    def __init__(self, name, script, arguments=None):
        self.name, self.script, self.arguments = name, script, arguments
        self.asked, outer = [], self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.answer("application/json", json.dumps({"object": "list", "data": [{"id": name, "object": "model"}]}))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked.append(body)
                if body.get("stream"):
                    events = [json.dumps(event) for event in outer.events(body)] + ["[DONE]"]
                    self.answer("text/event-stream", "".join(f"data: {event}\n\n" for event in events))
                else:
                    self.answer("application/json", json.dumps(outer.whole(body)))

            def answer(self, kind, text):
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def step(self, body):
        """What comes next: after the last question that the script knows, one step for each result."""
        done, steps = 0, ["I was told nothing of that."]
        for message in reversed(body["messages"]):
            content = message.get("content") or ""
            text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
            if message["role"] == "tool":
                done += 1
            elif message["role"] == "user":
                known = [question for question in self.script if question in text]
                if known:
                    steps = self.script[known[0]]
                    break
        return steps[min(done, len(steps) - 1)]

    def whole(self, body):
        """A text; what calls is asked to stream."""
        choice = {"index": 0, "message": {"role": "assistant", "content": self.step(body)}, "finish_reason": "stop"}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": self.name}
        return {**head, "choices": [choice], "usage": USAGE}

    def events(self, body):
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": self.name}
        step = self.step(body)
        if isinstance(step, str):
            deltas = [{"role": "assistant", "content": ""}] + [{"content": piece} for piece in cut(step)]
        else:
            name, arguments = self.arguments(offered(body), *step)
            function = {"name": name, "arguments": ""}
            call = {"index": 0, "id": f"call_{len(self.asked)}", "type": "function", "function": function}
            deltas = [{"role": "assistant", "tool_calls": [call]}]
            deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in cut(arguments)]
        for delta in deltas:
            yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        reason = "stop" if isinstance(step, str) else "tool_calls"
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
        if (body.get("stream_options") or {}).get("include_usage"):
            yield {**head, "choices": [], "usage": USAGE}


def cut(text, size=7):
    return [text[at : at + size] for at in range(0, len(text), size)]


def offered(body):
    """The functions offered, by their names."""
    return {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or []}


def configuration(model):
    """Of a Headrace in front of it, which serves it by its own name."""
    return f"""
[server]
metrics_listen = "127.0.0.1:0"

[[upstreams]]
name = "far"
kind = "openai"
url = "{model.url}"
price = {{ input = "1", cached_input = "0.1", output = "4" }}

[[models]]
name = "{model.name}"
targets = ["far/{model.name}"]
"""
