"""The canned answers of the pages for money, cache, models, audit and settings, and a playground that counts its executions."""

import hashlib
import json
import math
import re
import time

from fixture import BOOKS, HOSTILE, money, page, routes, stamp, start  # noqa: F401  `start` is for whoever imports this


@routes("GET", "status")
def status(_):
    return {"version": "0.1.0", "pid": 4711, "listen": "http://127.0.0.1:8080", "started": stamp(90_000), "ready": True, "not_ready": [], "in_flight": 7, "models": ["headrace-demo"], "aliases": ["demo"],
            "stores": [{"store": "identity", "failing": None}, {"store": "ledger", "failing": None}], "revocations_waiting": 0, "totals": totals(None)}


@routes("GET", "models")
def models(asked):
    row = {"lane": "tokens", "context_window": 8192, "default_max_tokens": 1024, "endpoints": ["chat/completions", "responses", "messages", "completions"], "aliases": ["demo"], "not_ready": []}
    return page([{"name": "headrace-demo", **row, "not_ready": ["It is being loaded."] if "headrace-demo" in BOOKS.not_ready else []}, {"name": "qwen3-0.6b", **row, "aliases": []}, {"name": HOSTILE, **row, "not_ready": [f"The file is not there: {HOSTILE}"]}], asked.query)


@routes("GET", "prices")
def prices(asked):
    return page([{"model": name, "from": None, "currency": "USD", "per": "million tokens", "input": money(100_000_000), "cached_input": money(10_000_000), "output": money(400_000_000)} for name in ["headrace-demo", "qwen3-0.6b", HOSTILE]], asked.query)


@routes("GET", "routes")
def all_routes(asked):
    return page([{"name": "fast", "sticky": "key", "to": [{"model": "headrace-demo", "weight": 90, "canary": None}, {"model": "qwen3-0.6b", "weight": 10, "canary": {"calls": [900, 100], "errors": [1, 9], "refusals": [0, 0], "first_token_p95_us": [90_000, 400_000], "rolled_back_unix_s": 1_795_000_000, "why": f"9 of 100 failed: {HOSTILE}"}}]}], asked.query)


@routes("POST", "(routes|upstreams)/([^/]+)/(resume|drain|probe)")
def act(asked, what, name, deed):
    return {"name": name}


@routes("GET", "upstreams")
def upstreams(asked):
    model = {"model": "qwen3-0.6b", "worker": "gpu-1/qwen3", "standing": "healthy", "breaker": "closed", "trips": 1, "in_flight": 3, "failed_permille_last_minute": 2, "failed_permille_last_5_minutes": 1, "first_ms": 84, "cached_blocks": 91_234,
             "load": {"running": 12, "waiting": 2, "cache_used_permille": 641, "age_s": 1}}
    row = {"kind": "vllm", "lane": "tokens", "at": "http://gpu-1:8000", "region": "eu", "state": "healthy", "said": "answers, as it should", "in_flight": 3, "waiting": 0, "calls": 12_900, "failed": 12, "rate_limited": 0, "last_error": HOSTILE, "last_error_age_s": 812, "last_contact_age_s": 0,
           "load_fault": None, "cache_fault": None, "models": [model]}
    return page([{"name": "gpu-1", **row}, {"name": "openai", **row, "kind": "openai", "lane": "messages", "at": "https://api.openai.com", "state": "drained", "said": "by an operator", "models": [{**model, "breaker": "open", "load": None, "standing": "drained"}]}], asked.query)


@routes("GET", "credit")
def credit(asked):
    rows = [("acme", "web", 92), ("zenith", "research", 40), (HOSTILE, "x", 0)]
    return page([{"org": org, "project": project, "balance": money(25 * 10**9), "held": money(412_000), "available": money(25 * 10**9 - 412_000),
                  "budget": {"limit": money(100 * 10**9), "period": "month", "spent": money(share * 10**9), "held": money(0), "left": money((100 - share) * 10**9), "resets": stamp(-86_400 * 8)} if share else None} for org, project, share in rows], asked.query)


@routes("POST", "projects/([^/]+)/credit")
def grant(asked, project):
    return {"org": "acme", "amount": money(25 * 10**9), "balance": money(50 * 10**9), "before": False}


@routes("PUT", "projects/([^/]+)/budget")
def budget(asked, project):
    return credit(asked)["data"][0]


@routes("GET", "projects/([^/]+)/grants")
def grants(asked, project):
    return page([{"at": stamp(86_400), "actor": "operator ada", "org": "acme", "amount": money(25 * 10**9), "kind": "paid", "reference": HOSTILE}], asked.query)


@routes("GET", "ledger/totals")
def totals(_):
    return {"available": money(75 * 10**9), "held": money(412_000), "revenue": money(1_234_567_890), "loss": money(-12_000), "open_holds": 7, "settled": 12_912}


@routes("POST", "ledger/verify")
def verify(_):
    return {"ok": True, "rows": 25_840, "transactions": 12_912, "snapshots": 3, "finding_count": 0, "findings": []}


@routes("GET", "holds")
def holds(asked):
    return page([{"id": f"req_{at:032x}", "org": "acme", "project": "web", "amount": money(412_000), "since": stamp(1), "expires": stamp(-600)} for at in range(3)], asked.query)


@routes("GET", "usage")
def usage(asked):
    by = (asked.query.get("by") or "model").split(",")[0]
    names = {"model": ["headrace-demo", "qwen3-0.6b", HOSTILE], "org": ["acme", "zenith"]}.get(by, ["a", "b"])
    days = range(14) if asked.query.get("interval") else range(1)
    nano = lambda at, day: int(10**8 * (3 - at) * (1.4 + math.sin(day / 2 + at)))  # noqa: E731
    if by == "key":
        rows = [{"key": f"key_{at:06x}", "key_name": ["web backend", "ci", HOSTILE][at], "start": None, "last_hour": stamp(3600 * 50 * at)[:14] + "00:00Z", "calls": 90, "charged": money(10**9 + at)} for at in range(3)]
        return {"rows": rows, "next": None}
    return {"data": [{by: name, "last_hour": stamp(1800)[:14] + "00:00Z", "start": stamp(86_400 * day)[:10] + "T00:00:00Z", "calls": 900 - at * 200, "completed": 880, "cancelled": 5, "failed": 4, "refused": 11, "input_tokens": 91_000, "cached_input_tokens": 40_000, "output_tokens": 23_000,
                      "charged": money(nano(at, day)), "loss": money(0), "paid": None, "margin": None} for day in days for at, name in enumerate(names)], "next": None}


@routes("GET", "margin")
def margin(_):
    sums = {"calls": 912, "charged_nano_dollars": 12 * 10**9, "paid_nano_dollars": 7 * 10**9, "margin_nano_dollars": 5 * 10**9, "cost_unknown": {"calls": 3, "charged_nano_dollars": 150_500, "paid_nano_dollars": 0}}
    return {"object": "margin", "by": ["model"], "rows": [{**sums, "model": name} for name in ["qwen3-0.6b", HOSTILE]], "total": sums}


@routes("GET", "statement")
def statement(asked):
    lines = [{"model": model, "class": of, "tokens": 912_000, "price_per_million": money(100_000_000), "amount": money(91_200_000)} for model in ["headrace-demo", HOSTILE] for of in ["input", "cached_input"]]
    return {"object": "statement", "project": asked.query["project"], "org": "acme", "month": asked.query["month"], "closed": False, "currency": "USD", "lines": lines, "days": [{"day": "2026-11-26", "charged": money(91_200_000)}],
            "calls": {"settled": 12, "completed": 9, "cancelled": 2, "failed": 1}, "not_charged": money(500), "total": money(12 * 10**9)}


@routes("GET", "cache")
def cache(asked):
    by = asked.query.get("by") or "model"
    names = {"model": ["headrace-demo", "qwen3-0.6b"], "org": ["acme", HOSTILE], "prefix": ["3fa9c1", "77b012"]}[by]
    miss = {"reason": "differs", "calls": 120, "computed_tokens": 84_000, "example": f"req_{6:032x}"}
    places = [{**miss, "place": place, "could_save_tokens": tokens, "could_save_prefill_us": 9_000} for place, tokens in [("message 1, character 39", 12_000), (HOSTILE, None)]]
    rows = [{by: name, "calls": 900 - at * 300, "prompt_tokens": 910_000, "cached_tokens": 640_000 - at * 400_000, "hit_rate": 0.5, "misses": [miss, {**miss, "reason": "evicted", "calls": 12}], "places": places} for at, name in enumerate(names)]
    return {"object": "cache", "by": [by], "rows": rows, "calls": 1500, "since": stamp(86_400), "whole": False, "how_savings_are_estimated": "As if what differs stood at the end."}


@routes("GET", "audit")
def audit(asked):
    return page([{"seq": 300 - at, "at": stamp(at * 4000), "actor": ["ada (op_1)", "config", HOSTILE][at % 3], "act": ["key.create", "credit.grant", "canary.roll_back", "new.thing"][at % 4], "subject": f"key_{at:06x}",
                   "detail": ['{"arm": "qwen3-0.6b", "calls": 100, "amount_nano_dollars": "2500000000", "why": {"failed": 9, "of": 100}}', "project web, name ci", "unlimited requests/min, unlimited tokens/min, unlimited at once", HOSTILE][at % 4]} for at in range(300)], asked.query)


@routes("GET", "settings")
def settings(asked):
    return page([{"name": name, "value": value, "origin": origin, "what": "What it is for, in a sentence.", "live": live} for name, value, origin, live in [
        ("server.listen", "127.0.0.1:8080", "flag --listen", False), ("limits.key.requests_per_minute", "60", "file headrace.toml", True), ("gateway.first_event_wait", "30s", "default", True), ("log.filter", HOSTILE, "environment HEADRACE_LOG", True), ("admin.secret", None, "default", False)]], asked.query)


@routes("POST", "reload")
def reload(_):
    return {"changed": ["models"]}


WORDS = "The capital of France is Paris .".split()


def answer_of(body, turn):
    if body.get("tools") and body["messages"][-1]["role"] == "user":
        return None
    said = str(body["messages"][-1]["content"])
    if said.startswith("MD\n"):
        return said
    return f"Answer {turn}: you said “{said[:200]}”. {HOSTILE} And so it goes on for a while, until it ends."


@routes("POST", "playground/chat/completions")
def chat(asked):
    key = asked.headers.get("idempotency-key")
    digest = hashlib.sha256(json.dumps(asked.body).encode()).hexdigest()
    if not key:
        return 400, {"error": {"code": "invalid", "message": "A call needs an Idempotency-Key."}}
    with BOOKS.lock:
        known = BOOKS.executions.get(key)
        if known and known != digest:
            return 422, {"error": {"code": "idempotency_key_reused", "message": "The key was used for another body."}}
        BOOKS.executions[key] = digest
        if known:
            BOOKS.asked_again.set()
        turn = list(BOOKS.executions).index(key) + 1
    body = asked.body
    if body.get("temperature", 1) > 2:
        return 400, {"error": {"code": "decimal_above_max_value", "message": f"`temperature` is at most 2. {HOSTILE}", "remedy": "Take 2 or less.", "field": "temperature"}}
    text = answer_of(body, turn)
    headers = {"x-request-id": f"req_{turn:032x}", **({"idempotent-replayed": "true"} if known else {})}
    usage = {"prompt_tokens": 47, "completion_tokens": 20, "total_tokens": 67, "prompt_tokens_details": {"cached_tokens": 32}}
    calls = [{"index": 0, "id": "call_1", "type": "function", "function": {"name": body["tools"][0]["function"]["name"], "arguments": '{"city": "Oslo"}'}}] if text is None else None
    pieces = [] if text is None else [text[at:at + 6] for at in range(0, len(text), 6)]

    def logprobs(piece):
        if not body.get("logprobs"):
            return None
        return {"content": [{"token": piece, "logprob": -0.2 - len(piece) % 5 / 2, "top_logprobs": [{"token": piece, "logprob": -0.2}, {"token": HOSTILE[:6], "logprob": -2.1}]}]}

    if not body.get("stream"):
        message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        return lambda handler: handler.told(200, {"id": "chatcmpl-1", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}], "usage": usage}, **headers)

    def stream(handler):
        handler.stream(headers)
        for at, piece in enumerate(pieces):
            if at == 4 and not known and "Only once" in text:
                # Its reader leaves in the middle, however slow it is.
                BOOKS.asked_again.wait(60)
            handler.event({"choices": [{"index": 0, "delta": {"content": piece}, "logprobs": logprobs(piece), "finish_reason": None}]})
            time.sleep(0.02)
        if calls:
            handler.event({"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}]})
        handler.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]})
        handler.event({"choices": [], "usage": usage})
        handler.event("[DONE]")

    return stream


@routes("POST", "playground/stop")
def stop(_):
    return 204, None


@routes("POST", "playground/tokenize")
def tokenize(asked):
    pieces = ["<|im_start|>", "user", "\n"] + str(asked.body["messages"][-1]["content"]).replace(" ", "\u2581 ").split("\u2581") + ["<|im_end|>", "\n", "<|im_start|>", "assistant", "\n"]
    return {"count": len(pieces), "max_model_len": 8192, "tokens": list(range(len(pieces))), "token_strs": pieces}


def shown_tokens(text):
    pieces = re.findall(r"<\|[^|]+\|>|\s*\S+|\s+", text)
    return [{"id": at, "piece": piece, "start": None, "end": None, "kind": "special" if piece.startswith("<|") else "text"} for at, piece in enumerate(pieces)]


@routes("POST", "models/([^/]+)/render")
def render(asked, _model):
    messages = asked.body["body"].get("messages") or asked.body["body"].get("input")
    tokens, parts = [], []
    for at, message in enumerate(messages):
        tokens += shown_tokens(f"<|im_start|>{message['role']}\n")
        own = shown_tokens(str(message["content"]))
        parts.append({"what": "message", "index": at, "whose": message["role"], "start": 0, "end": 1, "first_token": len(tokens), "tokens": len(own)})
        tokens += own + shown_tokens("<|im_end|>\n")
    for at, token in enumerate(tokens):
        token["id"] = at
    cached = {"common_tokens": 7, "cached_tokens": 4} if asked.body.get("after") else {}
    return {"model": "headrace-demo", "context": 8192, "cost": {"uncached_nano_dollars": 4700, "cached_nano_dollars": 1500}, "text": "", "count": len(tokens), "tokens": tokens, "parts": parts, "template_tokens": 6,
            "special_tokens": 2, "block_tokens": 4, "cacheable_tokens": 8, "spelled": [{"text": HOSTILE, "start": 3}], "placed": True, **cached}


@routes("POST", "models/([^/]+)/tokenize")
def tokenize_text(asked, _model):
    text = asked.body.get("text") or "from ids"
    tokens = shown_tokens(text)
    return {"text": text, "bytes": len(text.encode()), "count": len(tokens), "tokens": tokens, "decoded": HOSTILE}


@routes("GET", "models/([^/]+)/doctor")
def doctor(_, _model):
    facts = {"vocabulary": 512, "tokenizer_ids": 500, "context": 4096, "family": "hermes", "thinks": False, "shows_tools": True, "ends": ["<|im_end|>"], "opens": "<|im_start|>assistant\n", "before": []}
    return {"model": "headrace-demo", "facts": facts, "findings": [
        {"code": "bos_doubled", "severity": "fault", "what": f"The prompt begins with two marks. {HOSTILE}", "evidence": "[1, 1, 42]", "way_out": "Take `add_bos_token` out of tokenizer_config.json."},
        {"code": "no_generation_prompt", "severity": "warning", "what": "The template opens no answer.", "evidence": HOSTILE, "way_out": "Download the template again."},
        {"code": "long_context", "severity": "note", "what": "It claims more than it was trained for.", "evidence": "rope", "way_out": "Set max_positions."}]}
