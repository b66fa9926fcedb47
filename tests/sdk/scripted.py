"""A server of others that says what it is told to: OpenAI's chat completions, streamed or not, for clients whose loops need an answer
that a small model would not give. Knows no client.

What it answers follows from what it is asked: a tool's result is told again in words; tools offered are called, each of whose required
arguments is made up by its schema; a JSON schema is filled in; anything else is answered in words. It says something before it calls, or
breaks off, where it is asked to. What it was asked is kept.
"""

import http.server
import json
import threading
import time

MODEL = "scripted"
WORDS = "All is well, says the script."
USAGE = {"prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30}


def example(schema):
    """A value that fits the schema, always the same."""
    for chosen in ("const", "default"):
        if chosen in schema:
            return schema[chosen]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0])
    kind = schema.get("type", "string")
    if kind == "object":
        wanted = schema.get("required", [])
        return {name: example(inner) for name, inner in schema.get("properties", {}).items() if name in wanted}
    if kind == "array":
        return [example(schema.get("items", {}))]
    return {"string": "Lisbon", "integer": 21, "number": 2.5, "boolean": True, "null": None}[kind]


def reply(body):
    """(text, calls) for a request."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        content = last["content"]
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        return f"The tool says: {content}", []
    tools = [tool["function"] for tool in body.get("tools") or [] if tool.get("type") == "function"]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        tools = [tool for tool in tools if tool["name"] == choice["function"]["name"]]
    if tools and choice != "none":
        # All of them, where the question asks for all.
        asked = json.dumps(body["messages"])
        wanted = tools if "every tool" in asked else tools[:1]
        return WORDS if "Say something first" in asked else None, [(tool["name"], json.dumps(example(tool.get("parameters") or {}))) for tool in wanted]
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return json.dumps(example(form["json_schema"]["schema"])), []
    return WORDS, []


def pieces(text, size=5):
    return [text[at : at + size] for at in range(0, len(text), size)]


def call(at, name, arguments):
    return {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": arguments}}


def head(kind):
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1700000000, "model": MODEL}


def whole(body):
    text, calls = reply(body)
    message = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message["tool_calls"] = [call(at, *named) for at, named in enumerate(calls)]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
    return {**head("chat.completion"), "choices": [choice], "usage": USAGE}


def chunks(body):
    text, calls = reply(body)
    deltas = [{"role": "assistant", "content": "" if text else None}]
    deltas += [{"content": piece} for piece in pieces(text or "")]
    for at, (name, arguments) in enumerate(calls):
        deltas.append({"tool_calls": [{"index": at, **call(at, name, "")}]})
        deltas += [{"tool_calls": [{"index": at, "function": {"arguments": piece}}]} for piece in pieces(arguments)]
    choices = [({"index": 0, "delta": delta, "logprobs": None}, None) for delta in deltas]
    choices.append(({"index": 0, "delta": {}, "logprobs": None}, "tool_calls" if calls else "stop"))
    for choice, reason in choices:
        yield {**head("chat.completion.chunk"), "choices": [{**choice, "finish_reason": reason}]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**head("chat.completion.chunk"), "choices": [], "usage": USAGE}


class Scripted:
    """The server, on a free port, until it is stopped."""

    def __init__(self):
        self.asked, self.parents = [], []
        self.refusing = 0
        """So many calls more are turned away."""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                card = {"id": MODEL, "object": "model", "created": 1700000000, "owned_by": "tests"}
                self.answer("application/json", json.dumps({"object": "list", "data": [card]}))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked.append(body)
                outer.parents.append(self.headers.get("traceparent"))
                if outer.refusing > 0:
                    outer.refusing -= 1
                    error = {"message": "busy", "type": "server_error", "param": None, "code": None}
                    self.answer("application/json", json.dumps({"error": error}), status=503)
                elif not body["messages"]:
                    error = {"message": "no messages", "type": "invalid_request_error", "param": "messages", "code": None}
                    self.answer("application/json", json.dumps({"error": error}), status=400)
                elif body.get("stream"):
                    events = [json.dumps(chunk) for chunk in chunks(body)] + ["[DONE]"]
                    text = "".join(f"data: {event}\n\n" for event in events)
                    self.answer("text/event-stream", text, "Break off" in json.dumps(body["messages"]))
                else:
                    self.answer("application/json", json.dumps(whole(body)))

            def answer(self, kind, text, breaks_off=False, status=200):
                data = text.encode()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                if breaks_off:
                    data = data[: len(data) // 2]
                    self.close_connection = True
                self.wfile.write(data)
                # What was said is with the client before the end is.
                time.sleep(0.3 if breaks_off else 0)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
