"""A server of others that says what it is told to: OpenAI's chat completions and responses, streamed or not, for clients whose loops need
an answer that a small model would not give. Knows no client.

What it answers follows from what it is asked: a tool's result is told again in words; tools offered are called, each of whose required
arguments is made up by its schema; a JSON schema is filled in; anything else is answered in words. It says something before it calls, or
breaks off, where it is asked to. What it was asked is kept.
"""

import json
import time

from listening import Handler, Listening

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


RESPONSE_USAGE = {
    "input_tokens": 21,
    "input_tokens_details": {"cached_tokens": 5},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 30,
}


def as_chat(body):
    """A response's body as the chat that `reply` knows."""
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = []
    for item in items:
        if item.get("type") == "function_call_output":
            messages.append({"role": "tool", "content": item["output"]})
        elif "role" in item:
            messages.append({"role": item["role"], "content": item["content"]})
    tools = [{"type": "function", "function": tool} for tool in body.get("tools") or [] if tool["type"] == "function"]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"function": {"name": choice["name"]}}
    form = (body.get("text") or {}).get("format") or {}
    more = {"response_format": {"type": "json_schema", "json_schema": form}} if form.get("type") == "json_schema" else {}
    return {"messages": messages or [{"role": "user", "content": ""}], "tools": tools, "tool_choice": choice, **more}


def items_of(body):
    """What a response says: hosted tools at work, then words or calls."""
    text, calls = reply(as_chat(body))
    hosted = [tool["type"] for tool in body.get("tools") or [] if tool["type"] != "function"]
    items = [{"type": f"{name}_call", "id": f"ws_{at}", "status": "completed"} for at, name in enumerate(hosted)]
    if text is not None:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        items.append({"type": "message", "id": "msg_scripted", "role": "assistant", "status": "completed", "content": [part]})
    for at, (name, arguments) in enumerate(calls):
        named = {"call_id": f"call_{at}", "name": name, "arguments": arguments}
        items.append({"type": "function_call", "id": f"fc_{at}", "status": "completed", **named})
    return items


def response(body, number, status="completed", output=(), **more):
    """A response, with a field that only this server knows."""
    echoed = {name: body.get(name) for name in ("instructions", "previous_response_id")}
    return {
        "id": f"resp_scripted_{number}",
        "object": "response",
        "created_at": 1700000000,
        "status": status,
        "model": MODEL,
        "output": list(output),
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "metadata": body.get("metadata") or {},
        "usage": RESPONSE_USAGE if status in ("completed", "failed") else None,
        "an_extension": {"kept": [1.50]},
        **echoed,
        **more,
    }


FAILED = {"code": "server_error", "message": "it broke"}


def response_events(body, number):
    """The events of a response. It fails in the middle where it is asked to."""
    items = items_of(body)
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": response(body, number, "in_progress")}
    for at, item in enumerate(items):
        place = {"output_index": at, "item_id": item["id"]}
        empty = {"content": []} if item["type"] == "message" else {"arguments": ""} if "arguments" in item else {}
        yield {"type": "response.output_item.added", "output_index": at, "item": {**item, "status": "in_progress", **empty}}
        if item["type"] == "message":
            (part,) = item["content"]
            place["content_index"] = 0
            yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
            for piece in pieces(part["text"]):
                yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
            if "Fail now" in json.dumps(body["input"]):
                yield {"type": "response.failed", "response": response(body, number, "failed", error=FAILED)}
                return
            yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **place, "part": part}
        elif item["type"] == "function_call":
            for piece in pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
            yield {"type": "response.function_call_arguments.done", **place, "name": item["name"], "arguments": item["arguments"]}
        else:
            yield {"type": f"response.{item['type']}.searching", **place}
        yield {"type": "response.output_item.done", "output_index": at, "item": item}
    yield {"type": "response.completed", "response": response(body, number, output=items)}


def response_stream(body, number):
    """The same as bytes: with spaces and line ends that nobody else writes."""
    text = ""
    for at, event in enumerate(response_events(body, number)):
        data = json.dumps({**event, "sequence_number": at}, separators=(",", " : "))
        text += f"event:  {event['type']}\r\ndata: {data}\r\n\r\n"
    return text


class Scripted(Listening):
    """The server, on a free port, until it is stopped."""

    class Handler(Handler):
        def do_GET(self):
            card = {"id": MODEL, "object": "model", "created": 1700000000, "owned_by": "tests"}
            self.say("application/json", json.dumps({"object": "list", "data": [card]}))

        def do_POST(self):
            body, outer = json.loads(self.body()), self.server.outer
            outer.asked.append(body)
            outer.parents.append(self.headers.get("traceparent"))
            if outer.refusing > 0:
                outer.refusing -= 1
                error = {"message": "busy", "type": "server_error", "param": None, "code": None}
                self.say("application/json", json.dumps({"error": error}), status=503)
            elif self.path.endswith("/responses"):
                self.respond(body)
            elif not body["messages"]:
                error = {"message": "no messages", "type": "invalid_request_error", "param": "messages", "code": None}
                self.say("application/json", json.dumps({"error": error}), status=400)
            elif body.get("stream"):
                events = [json.dumps(chunk) for chunk in chunks(body)] + ["[DONE]"]
                text = "".join(f"data: {event}\n\n" for event in events)
                self.say("text/event-stream", text, "Break off" in json.dumps(body["messages"]))
            else:
                self.say("application/json", json.dumps(whole(body)))

        def respond(self, body):
            outer, before = self.server.outer, body.get("previous_response_id")
            if before and before not in [f"resp_scripted_{number}" for number in range(outer.responses)]:
                message = f"Previous response with id '{before}' not found."
                error = {"message": message, "type": "invalid_request_error", "param": "previous_response_id", "code": "previous_response_not_found"}
                return self.say("application/json", json.dumps({"error": error}), status=400)
            number, outer.responses = outer.responses, outer.responses + 1
            if body.get("stream"):
                text = response_stream(body, number)
                return self.say("text/event-stream", text, "Break off" in json.dumps(body["input"]))
            failed = "Fail now" in json.dumps(body["input"])
            told = response(body, number, "failed", error=FAILED) if failed else response(body, number, output=items_of(body))
            # As it is told, and in no other order.
            self.say("application/json", json.dumps(told, separators=(", ", " : ")))

        def say(self, kind, text, breaks_off=False, status=200):
            data = text.encode()
            self.head(status, content_type=kind, content_length=len(data))
            if breaks_off:
                data = data[: len(data) // 2]
                self.close_connection = True
            # So is what comes before a failure.
            before, failure, after = data.partition(b"event:  response.failed")
            self.wfile.write(before)
            if failure:
                time.sleep(0.3)
                self.wfile.write(failure + after)
            # What was said is with the client before the end is.
            time.sleep(0.3 if breaks_off else 0)

    def __init__(self):
        self.asked, self.parents = [], []
        self.refusing = 0
        """So many calls more are turned away."""
        self.responses = 0
        """Responses so far, each of which may be gone on from."""
        super().__init__(Scripted.Handler)
