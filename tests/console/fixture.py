"""A server with the console's files and canned answers, for what a real run cannot show quickly: 10,000 requests, hostile texts, errors.

Speaks as docs of the admin API say. To look at pages by hand: `python fixture.py 8099`, then http://127.0.0.1:8099/#sign-in=x.
"""

import datetime
import http.server
import json
import pathlib
import re
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
ASSETS = ROOT / "crates" / "admin-assets" / "assets"
TRACES = ROOT / "crates" / "trace" / "tests" / "data"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
HOSTILE = "<img src=x onerror=\"window.pwned=1\"><script>window.pwned=1</script>\u202egnp.\u202c ]]></style>{{7*7}}"
ROWS = 10_000
BEGAN = datetime.datetime(2026, 11, 22, 20, 0, tzinfo=datetime.timezone.utc)


def stamp(seconds_ago=0):
    return (datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def money(nano):
    sign, nano = ("-", -nano) if nano < 0 else ("", nano)
    text = f"{nano // 10**9}.{nano % 10**9:09}".rstrip("0")
    whole, part = text.split(".")
    return {"dollars": f"{sign}{whole}.{part.ljust(2, '0')}", "nano_dollars": f"{sign}{nano}"}


VERDICTS = [
    {"rule": "threats", "action": "block", "kind": "judge", "place": "answer"},
    {"rule": "personal-data", "action": "redact", "kind": "pii", "place": "tool_calls"},
    {"rule": HOSTILE, "action": "flag", "kind": "words", "place": "input", "dry_run": "block"},
    {"rule": "second-opinion", "action": "no_verdict", "kind": "judge", "place": "reasoning"},
    {"rule": "insults", "action": "flag", "kind": "classifier", "place": "input"},
]
EXPLAINED_VERDICTS = [
    {"rule": HOSTILE, "kind": "words", "judge": None, "place": "input", "outcome": "dry_run", "took_us": None, "cost_nano_dollars": None, "cost_dollars": None, "text": f"The rule {HOSTILE} matched in the request, in a dry run.", "client_saw": "Nothing of it: the text passed unchanged.", "way_out": "To apply the rule, remove `dry_run`."},
    {"rule": "threats", "kind": "judge", "judge": "guard", "place": "answer", "outcome": "blocked", "took_us": 120_000, "cost_nano_dollars": "210000", "cost_dollars": "0.00021", "text": "The rule `threats` (judge `guard`) ended the answer.", "client_saw": "The text before the match, and then `finish_reason` `content_filter`.", "way_out": ""},
    {"rule": "second-opinion", "kind": "judge", "judge": "guard", "place": "answer", "outcome": "passed", "took_us": 90_000, "cost_nano_dollars": None, "cost_dollars": None, "text": "It found nothing in the text of the answer.", "client_saw": "Nothing of it: the text passed unchanged.", "way_out": ""},
]


def outcome_of(verdict):
    """The outcome of a verdict, as the filter `moderation` names it."""
    return {"block": "blocked", "redact": "redacted", "no_verdict": "no_verdict"}.get(verdict["action"]) or ("dry_run" if verdict.get("dry_run") else "flagged")


def request_row(at):
    kinds = ["completed"] * 7 + ["cancelled", "refused", "failed"]
    kind = kinds[at % 10]
    took = 9_000 + (at * 7919) % 2_400_000
    outcome = {"kind": kind}
    if kind == "refused":
        outcome.update(stage="hold", code="rate_limit_exceeded", status=429, message=f"No. {HOSTILE}")
    if kind == "failed":
        outcome.update(stage="decode", message="The worker was lost.")
    nano = 91_280 + at * 13
    verdicts = {"verdicts": [VERDICTS[at // 20 % len(VERDICTS)]]} if at % 20 == 0 else {}
    return {
        **verdicts,
        "id": f"req_{at:032x}", "started": stamp(at * 7), "started_unix_us": 0, "duration_us": took, "server_us": took,
        "time_to_first_token_us": took // 9 if kind == "completed" else None, "org": ["acme", "zenith", HOSTILE][at % 3], "project": "web", "key": "key_7f3a2b",
        "key_name": ["green-service", "notebooks", HOSTILE][at % 3], "user": ["eva@example.com", None, HOSTILE][at % 3], "endpoint": "chat.completions", "stream": True, "model": {"asked": "demo", "served": ["headrace-demo", "qwen3-0.6b", HOSTILE][at % 3]}, "upstream": None,
        "stage": "decode", "usage": {"prompt_tokens": 40 + at % 900, "cached_input_tokens": 16, "completion_tokens": at % 300},
        "cost": {"charged_dollars": money(nano)["dollars"], "charged_nano_dollars": nano}, "outcome": outcome,
    }


def trace(request_id):
    names = ["completed", "cancelled", "failed", "refused", "slow-upload", "fell-back"]
    at = int(request_id[4:], 16) if re.fullmatch(r"req_[0-9a-f]{32}", request_id) else 0
    told = json.loads((TRACES / f"{names[at % len(names)]}.api.json").read_text())
    told["id"] = request_id
    if at % 3 == 2:
        told["org"] = told["model"]["asked"] = HOSTILE
    if at % 20 == 0:
        told["output_moderation"] = [VERDICTS[at // 20 % len(VERDICTS)]]
    return told


LIMITS = {"requests_per_minute": 600, "tokens_per_minute": 2_000_000, "concurrency": 64}
NO_LIMITS = dict.fromkeys(LIMITS)


def key_row(at, **more):
    names = ["web backend", "ci", HOSTILE, "notebooks", "support bot"]
    return {"id": f"key_{at:06x}", "org": "acme", "project": "web", "name": names[at % 5], "hint": "sk-…3f9a", "models": None if at % 2 else ["headrace-demo"], "endpoints": None,
            "limits": LIMITS if at % 2 else NO_LIMITS, "regions": None, "created": stamp(86_400 * at), "expires": stamp(-86_400 * 30) if at == 3 else None, "revoked": stamp(7200) if at == 4 else None, **more}


def now():
    second = int(time.time())
    return {
        "at": stamp(), "in_flight": {"total": 7, "by_stage": {"render": 1, "queue": 2, "prefill": 1, "decode": 3}},
        "tokens_per_s": {"prompt": 5200 + second * 37 % 900, "completion": 1450 + second * 53 % 400}, "ttft_us": {"p50": 86_000 + second % 7 * 4000, "p95": 420_000, "calls": 212},
        "queue_us": {"p50": 1_200 + second % 5 * 300, "p95": 60_000}, "queue_depth": 2, "batch": {"mean": 3.4, "max": 8}, "kv": {"used_blocks": 812, "blocks": 2048},
        "cache": {"hit_tokens": 51_000, "prompt_tokens": 88_000}, "per_minute": {"calls": 212, "refused": 3, "failed": 1, "cancelled": 2, "spend_dollars": "0.0231", "spend_nano_dollars": "23100000"},
        "calls": [{"id": f"req_{at:032x}", "stage": ["decode", "decode", "queue", "prefill"][at % 4], "age_us": 40_000 + at * 190_000, "org": "acme", "project": "web", "key": "key_7f3a2b", "key_name": ["green-service", HOSTILE][at % 2], "model": "headrace-demo", "completion_tokens": at * 17} for at in range(7)],
        "notes": [
            {"kind": "slow", "text": "acme waits 420 ms for its first token (usually 86 ms): two long prompts are read before it.", "request": f"req_{3:032x}", "code": None},
            {"kind": "refused", "text": f"3 calls of {HOSTILE} were refused: 60 requests a minute.", "request": f"req_{8:032x}", "code": "rate_limit_exceeded"},
        ],
    }


EXPLAIN = {
    "id": "x", "sentence": "Most of the 1.92 s went to decoding: 48 tokens at 38 ms each, in a batch of 3.4.", "money_sentence": "$0.00009128: 48 output tokens are 62 % of it.", "total_us": 1_921_480, "dearest": "decode",
    "terms": [
        {"name": "connect", "party": "client", "us": 41, "share": 0.0, "usual_us": 38, "reference_us": None, "text": "The connection was open already.", "unusual": False},
        {"name": "render", "party": "gateway", "us": 88, "share": 0.0, "usual_us": 80, "reference_us": [0, 3000], "text": "412 tokens.", "unusual": False},
        {"name": "queue_others_prompts", "party": "engine", "us": 1_204, "share": 0.001, "usual_us": 300, "reference_us": None, "text": "One prompt of 900 tokens was read before this one.", "unusual": True},
        {"name": "prefill", "party": "engine", "us": 84_100, "share": 0.044, "usual_us": 80_000, "reference_us": None, "text": "156 tokens computed, 256 from the cache.", "unusual": False},
        {"name": "decode", "party": "engine", "us": 1_834_000, "share": 0.954, "usual_us": 1_500_000, "reference_us": [300_000, 800_000], "text": "48 tokens, 38 ms each.", "unusual": False},
    ],
    "compared": {"calls": 200, "what": "calls of headrace-demo-20m"}, "levers": [{"name": "fewer_output_tokens", "text": "Half as many tokens would do.", "saves_us": 900_000, "saves_dollars": "0.00003", "try": True}], "notes": [], "refusal": None,
}
COST = {"sentence": "412 prompt tokens, 256 of them cached, and 48 written.", "terms": [
    {"class": "input", "tokens": 156, "lost_tokens": 0, "price_per_million_dollars": "0.10", "usual_price_per_million_dollars": None, "dollars": "0.0000156", "nano_dollars": "15600"},
    {"class": "cached_input", "tokens": 256, "lost_tokens": 0, "price_per_million_dollars": "0.01", "usual_price_per_million_dollars": None, "dollars": "0.00000256", "nano_dollars": "2560"},
    {"class": "output", "tokens": 48, "lost_tokens": 0, "price_per_million_dollars": "0.40", "usual_price_per_million_dollars": None, "dollars": "0.0000192", "nano_dollars": "19200"}],
    "total_dollars": "0.00003736", "total_nano_dollars": "37360", "held_dollars": "0.000412", "saved_by_cache_dollars": "0.00002304", "paid_dollars": None, "margin_dollars": None, "tier": "standard", "priced_at": "2026-11-01T00:00:00Z", "notes": []}
COMPARE = {"a": "a", "b": "b", "sentence": "B took 1.1 s longer, nearly all of it in decode: it wrote 30 tokens more.", "terms": [{"name": "prefill", "a_us": 84_100, "b_us": 91_000, "delta_us": 6_900, "text": "12 tokens more"}, {"name": "decode", "a_us": 1_834_000, "b_us": 2_934_000, "delta_us": 1_100_000, "text": "30 tokens more"}],
           "facts": [{"name": "model", "a": "headrace-demo", "b": HOSTILE}]}


def user_row(at, name, org="acme", email=None, role=None):
    return {"id": f"usr_{at}", "org": org, "name": name, "display_name": None, "email": email, "external_id": None, "login": None, "role": role, "effective_role": role, "groups": [HOSTILE], "active": True, "created": stamp(9e5), "changed": stamp(9e5)}


def score_row(name, value, comment):
    return {"name": name, "value": value, "comment": comment, "actor": "ada", "at": stamp(60)}


def content(request_id):
    request = {"model": "demo", "messages": [{"role": "user", "content": HOSTILE}]}
    answer = [{"kind": "reasoning", "text": "Short."}, {"kind": "text", "text": HOSTILE}, {"kind": "tool_call", "name": "find", "text": "{}", "choice": 1}]
    return {"id": request_id, "started": stamp(60), "expires": stamp(-9e4), "org": "acme", "project": "web", "key": "key_7f3a2b", "user": None, "model": "headrace-demo", "endpoint": "chat.completions",
            "level": "redacted", "request": request, "request_cut": False, "answer": answer, "answer_cut": True}


def budget_row(name, scope="org", measure="dollars", window="month", limit="25.00", hard=True, from_settings=False, **more):
    """A budget rule with one counter, which is used up to 80 %."""
    used = f"{float(limit) * 0.8:.2f}" if measure == "dollars" else str(int(limit) * 8 // 10)
    left = f"{float(limit) * 0.2:.2f}" if measure == "dollars" else str(int(limit) * 2 // 10)
    counter = {"subject": HOSTILE, "used": used, "reserved": "0", "left": left, "resets": None if window == "total" else stamp(-9e4), "alerted": [80]}
    row = {"name": name, "scope": scope, "org": None, "subject": None, "tier": None, "window": window, "zone": "Europe/Berlin", "measure": measure, "limit": limit, "limit_now": limit, "raised_until": None, "hard": hard, "thresholds": [80, 100], "from_settings": from_settings}
    return {**row, **{key: value for key, value in more.items() if key in row}, "counters": [counter]}


class Books:
    """What the canned answers remember, so that a test can count."""

    def __init__(self):
        self.lock = threading.Lock()
        self.executions = {}
        self.keys = [key_row(at) for at in range(5)]
        self.role = "owner"
        self.users = [user_row(at, name) for at, name in enumerate(["ann", HOSTILE])]
        self.tiers = [{"name": "basic", "models": ["headrace-demo"], "max_context_tokens": 8192, "max_output_tokens": None, "reasoning": False, "limits": LIMITS, "created": stamp(9e5)}]
        self.assigned = []
        self.budgets = [budget_row("monthly"), budget_row(HOSTILE, scope="key", measure="requests", window="day", limit="1000", hard=False, from_settings=True)]
        self.raises = []
        self.signed_in = False
        self.broken = set()
        self.projects = []
        self.scores = [score_row("quality", 0.8, HOSTILE)]
        self.records = []
        self.not_ready = set()
        # Set when an answer is asked for again.
        self.asked_again = threading.Event()


BOOKS = Books()
ROUTES = []


def routes(method, pattern):
    def mark(function):
        ROUTES.append((method, re.compile(pattern + "$"), function))
        return function
    return mark


def page(rows, query, default=100):
    start = int(query.get("cursor") or 0)
    limit = min(500, int(query.get("limit") or default))
    last = start + limit
    return {"data": rows[start:last], "next": str(last) if last < len(rows) else None}


MAY = [line.strip() for line in """GET /status|GET /now|GET /gateways|GET /events|GET /requests|GET /requests/{id}|GET /requests/{id}/explain|GET /requests/{id}/beside|GET /requests/{id}/cost|GET /requests/{id}/scores|GET /requests/compare|GET /cache|GET /usage|GET /models|GET /prices|GET /routes|GET /upstreams|GET /orgs
|GET /projects|GET /keys""".split("|")]
MAY_WRITE = [line.strip() for line in """GET /requests/{id}/content|POST /requests/{id}/scores|POST /keys|PATCH /keys/{id}|POST /keys/{id}/revoke|POST /keys/{id}/rotate|GET /users|POST /users|PATCH /users/{id}|DELETE /users/{id}|POST /users/{id}/deactivate|POST /users/{id}/activate|GET /service-accounts|POST /service-accounts|DELETE /service-accounts/{id}|POST /service-accounts/{id}/deactivate|GET /groups|PATCH /groups/{id}|GET /scim|POST /scim|DELETE /scim/{id}|GET /tiers|POST /tiers|PUT /tiers/{id}|DELETE /tiers/{id}|PUT /orgs/{id}/tier|GET /budgets|GET /budget-alerts|GET /webhooks|GET /webhook-deliveries|POST /webhooks/{id}/test|POST /webhooks/{id}/resume|GET /invoices|POST /invoices|GET /invoice-draft|PUT /budgets/{id}|DELETE /budgets/{id}|POST /budgets/{id}/raise|POST /projects|PATCH /projects/{id}|POST /orgs|PATCH /orgs/{id}|GET /operators|POST /operators|DELETE /operators/{id}|POST /operators/{id}/link|GET /credit|GET /projects/{id}/grants
|POST /projects/{id}/credit|PUT /projects/{id}/budget|GET /ledger/totals|POST /ledger/verify|GET /holds|GET /margin|GET /statement|GET /shadow|GET /audit|GET /settings|POST /reload|POST /routes/{name}/resume|POST /upstreams/{name}/drain|POST /upstreams/{name}/resume
|POST /upstreams/{name}/probe|POST /playground/chat/completions|POST /playground/tokenize|POST /models/{name}/render|POST /models/{name}/tokenize|GET /models/{name}/doctor""".split("|")]


def session():
    may = MAY + (MAY_WRITE if BOOKS.role == "owner" else [])
    return {"operator": "ada", "id": "op_1", "role": BOOKS.role, "csrf": "c5rf", "expires": stamp(-3600), "may": may}


@routes("GET", "session")
def get_session(_):
    return session() if BOOKS.signed_in else (401, {"error": {"code": "not_signed_in", "message": "Nobody is signed in.", "remedy": "Use a link or a key."}})


@routes("GET", "sign-in")
def get_providers(_):
    return {"data": [{"name": "acme", "label": "Acme"}, {"name": "other", "label": HOSTILE}]}


@routes("POST", "session")
def post_session(asked):
    if "wrong" in json.dumps(asked.body):
        return 401, {"error": {"code": "bad_credentials", "message": "That is no operator's key.", "remedy": "`headrace operators` makes one."}}
    BOOKS.signed_in = True
    return session()


@routes("DELETE", "session")
def delete_session(_):
    BOOKS.signed_in = False
    return 204, None


@routes("GET", "now")
def get_now(_):
    second = int(time.time())
    at = [second - 5 * back for back in range(59, 0, -1)]
    return {**now(), "history": {"at_unix_s": at, "completion_tokens_per_s": [1500] * 59, "prompt_tokens_per_s": [5200] * 59, "ttft_p50_us": [None] * 9 + [90_000] * 50, "queue_p50_us": [1_200] * 59}}


@routes("GET", "requests")
def get_requests(asked):
    rows = [request_row(at) for at in range(ROWS)]
    if asked.query.get("outcome"):
        rows = [row for row in rows if row["outcome"]["kind"] == asked.query["outcome"]]
    if asked.query.get("text"):
        rows = [row for row in rows if asked.query["text"] in row["outcome"].get("message", "")]
    moderation, rule = asked.query.get("moderation"), asked.query.get("content_rule")
    if moderation or rule:
        meets = lambda verdict: moderation in (None, "any", outcome_of(verdict)) and rule in (None, verdict["rule"])
        rows = [row for row in rows if any(meets(verdict) for verdict in row.get("verdicts", []))]
    if asked.query.get("project"):
        rows = [row for row in rows if row["project"] == asked.query["project"]]
    return page(rows, asked.query)


@routes("GET", "requests/compare")
def get_compare(_):
    return COMPARE


@routes("GET", "requests/([^/]+)")
def get_request(asked, request_id):
    return trace(request_id)


@routes("GET", "requests/([^/]+)/explain")
def get_explain(asked, request_id):
    return {**EXPLAIN, "verdicts": EXPLAINED_VERDICTS if int(request_id[4:], 16) % 20 == 0 else []}


@routes("GET", "requests/([^/]+)/cost")
def get_cost(asked, request_id):
    return COST


@routes("GET", "requests/([^/]+)/beside")
def get_beside(asked, request_id):
    return {"data": [{**request_row(at), "overlap_us": 900_000 - at * 100_000, "same_org": at % 2 == 0} for at in range(4)], "next": None}


@routes("GET", "requests/([^/]+)/content")
def get_content(asked, request_id):
    return content(request_id)


@routes("GET", "requests/([^/]+)/scores")
def get_scores(asked, request_id):
    return {"data": BOOKS.scores}


@routes("POST", "requests/([^/]+)/scores")
def post_scores(asked, request_id):
    BOOKS.scores.append(score_row(asked.body["name"], asked.body["value"], asked.body["comment"]))
    return 201, BOOKS.scores[-1]


@routes("GET", "keys")
def get_keys(asked):
    return page(BOOKS.keys, asked.query)


@routes("POST", "keys")
def post_keys(asked):
    if not asked.body.get("name"):
        return 400, {"error": {"code": "invalid", "message": "A key needs a name of 1 to 128 bytes.", "remedy": "Say who uses it.", "field": "name", "stage": None, "doc": None}}
    BOOKS.keys.append(key_row(len(BOOKS.keys) + 1, name=asked.body["name"]))
    return 201, {"key": BOOKS.keys[-1], "secret": "sk-shown-once-0123456789", "unserved": []}


@routes("PATCH", "(keys|orgs|projects)/([^/]+)")
def patch_any(asked, what, which):
    if "records" in asked.body:
        BOOKS.records.append((which, asked.body["records"]))
    return {"id": which, **asked.body}


@routes("POST", "keys/([^/]+)/revoke")
def post_revoke(asked, which):
    for key in BOOKS.keys:
        if key["id"] == which:
            key["revoked"] = stamp()
    return {"id": which, "durability": "written", "why": None}


@routes("POST", "keys/([^/]+)/rotate")
def post_rotate(asked, which):
    key = next(key for key in BOOKS.keys if key["id"] == which)
    key["former_until"] = stamp(-asked.body["overlap_seconds"])
    return {"key": key, "secret": "sk-rotated-once-0123456789"}


@routes("GET", "users")
def get_users(asked):
    return page(BOOKS.users, asked.query)


@routes("POST", "users")
def post_users(asked):
    BOOKS.users.append(user_row(len(BOOKS.users), asked.body["name"], org=asked.body["org"], email=asked.body["email"], role=asked.body["role"]))
    return 201, BOOKS.users[-1]


@routes("PATCH", "users/([^/]+)")
def patch_user(asked, which):
    user = next(user for user in BOOKS.users if user["id"] == which)
    user.update(role=asked.body["role"], effective_role=asked.body["role"])
    return user


@routes("POST", "users/([^/]+)/(deactivate|activate)")
def post_user_state(asked, which, act):
    user = next(user for user in BOOKS.users if user["id"] == which)
    user["active"] = act == "activate"
    return user


@routes("DELETE", "users/([^/]+)")
def delete_user(asked, which):
    BOOKS.users = [user for user in BOOKS.users if user["id"] != which]
    return 204, None


@routes("GET", "service-accounts")
def get_service_accounts(asked):
    return page([{"id": "svc_1", "org": "acme", "project": "web", "name": HOSTILE, "active": True, "created": stamp(9e5), "changed": stamp(9e5)}], asked.query)


@routes("GET", "groups")
def get_groups(asked):
    return page([{"id": "grp_1", "org": "acme", "name": HOSTILE, "members": 12, "role": "viewer", "tier": None, "created": stamp(9e5), "changed": stamp(9e5)}], asked.query)


@routes("GET", "scim")
def get_scim(asked):
    return page([{"id": "scim_1", "org": "acme", "hint": "wxyz", "issuer": HOSTILE, "created": stamp(9e5), "revoked": None}], asked.query)


@routes("GET", "budgets")
def get_budgets(asked):
    return page(BOOKS.budgets, asked.query)


@routes("GET", "budget-alerts")
def get_budget_alerts(_):
    return [{"at": stamp(3600), "budget": "monthly", "subject": HOSTILE, "percent": percent, "used": "20.00", "limit": "25.00", "resets": stamp(-9e4)} for percent in [100, 80]]


@routes("GET", "webhooks")
def get_webhooks(_):
    return [{"name": name, "host": f"https://hooks.example.com{HOSTILE}", "events": ["budget.alert"], "gone": gone, "pending": 2, "delivered": 7, "failed": 0, "last_at": stamp(60), "last_result": f"status 500 {HOSTILE}"} for name, gone in [("ops", None), ("mail", stamp(900))]]


@routes("GET", "webhook-deliveries")
def get_webhook_deliveries(_):
    return [{"event": f"evt_{HOSTILE}", "kind": "budget.alert", "webhook": "ops", "at": stamp(120), "state": state, "tries": 3, "last_at": stamp(60), "last_result": "status 500", "next": stamp(-60) if state == "pending" else None} for state in ["pending", "delivered", "failed"]]


@routes("POST", "webhooks/([^/]+)/test")
def post_webhook_test(_, name):
    return {"event": "evt_1", "accepted": True, "result": "status 204"}


@routes("POST", "webhooks/([^/]+)/resume")
def post_webhook_resume(_, name):
    return get_webhooks(None)


@routes("GET", "invoices")
def get_invoices(_):
    return [{"number": f"INV-{number}", "kind": "invoice", "org": org, "month": "2026-10", "created": stamp(9e5), "hash": "ab" * 32, "charged": "12.34", "due": "2.34"} for number, org in [(1, "acme"), (2, HOSTILE)]]


def invoice(org, month):
    line = {"id": 1, "project": HOSTILE, "model": "headrace-demo", "class": "input", "quantity": 1234567, "unit_price": "0.10", "base_quantity": 1000000, "price": None, "amount": "0.1234567", "net": "0.12"}
    totals = {"charged": "0.1234567", "rounding_to_cents": "-0.0034567", "charged_cents": "0.12", "net": "0.12", "allowance": "0.00", "taxable": "0.12", "tax": "0.02", "gross": "0.14", "paid": "0.12", "rounding": "0.00", "due": "0.02"}
    party = {"name": HOSTILE, "address": [], "country": "DE"}
    return {"number": None, "state": "draft", "type": 380, "org": org, "month": month, "zone": "UTC", "from": f"{month}-01", "to": f"{month}-30", "issued": "2026-12-01", "due_date": "2026-12-15", "currency": "USD", "seller": party, "buyer": party, "buyer_reference": None, "lines": [line], "taxes": [{"category": "S", "percent": "19", "base": "0.12", "amount": "0.02"}], "totals": totals, "note": None, "ledger": {"calls": 3, "last_row": 9, "checksum": "ab" * 32}}


@routes("GET", "invoice-draft")
def get_invoice_draft(asked):
    return invoice(asked.query["org"], asked.query["month"])


@routes("POST", "invoices")
def post_invoices(asked):
    return 201, {**invoice(asked.body["org"], asked.body["month"]), "number": "INV-3", "state": "final"}


@routes("PUT", "budgets/([^/]+)")
def put_budget(asked, name):
    BOOKS.budgets = [row for row in BOOKS.budgets if row["name"] != name]
    BOOKS.budgets.append(budget_row(name, **asked.body))
    return BOOKS.budgets[-1]


@routes("DELETE", "budgets/([^/]+)")
def delete_budget(asked, name):
    BOOKS.budgets = [row for row in BOOKS.budgets if row["name"] != name]
    return 204, None


@routes("POST", "budgets/([^/]+)/raise")
def raise_budget(asked, name):
    BOOKS.raises.append((name, asked.body))
    row = next(row for row in BOOKS.budgets if row["name"] == name)
    row.update(limit_now=asked.body["limit"], raised_until=stamp(-asked.body["seconds"]))
    return row


@routes("GET", "gateways")
def get_gateways(_):
    seen = [("north", True, "live", 4, 60, 0.6, None), ("south", False, "live", None, None, None, f"no answer within 2 s {HOSTILE}"), (HOSTILE, False, "dead", None, None, None, None), ("west", False, "live", 0, 40, 0.4, None)]
    return {"data": [{"name": name, "is_this": is_this, "state": state, "version": "0.2.0", "joined": stamp(9e4), "seen": stamp(90 if state == "dead" else 1), "in_flight": in_flight, "calls_per_minute": calls, "share": share, "silent": silent} for name, is_this, state, in_flight, calls, share, silent in seen]}


@routes("GET", "tiers")
def get_tiers(asked):
    return page(BOOKS.tiers, asked.query)


@routes("POST", "tiers")
def post_tiers(asked):
    BOOKS.tiers.append({"name": asked.body["name"], "created": stamp(), **asked.body["rules"]})
    return 201, BOOKS.tiers[-1]


@routes("PUT", "(orgs|projects)/([^/]+)/tier")
def put_tier(asked, what, which):
    BOOKS.assigned.append((what, which, asked.body["tier"]))
    return asked.body


@routes("GET", "orgs")
def get_orgs(asked):
    return page([{"id": name, "limits": LIMITS, "regions": None, "created": stamp(9e6)} for name in ["acme", "zenith", HOSTILE]], asked.query)


@routes("GET", "projects")
def get_projects(asked):
    rows = [{"id": "web", "org": "acme", "limits": NO_LIMITS, "records": {"level": None, "keep_seconds": None}, "created": stamp(8e6)}, {"id": "research", "org": "zenith", "limits": LIMITS, "records": {"level": "redacted", "keep_seconds": 604_800}, "created": stamp(7e6)}]
    return page([{**rows[0], "id": name} for name in BOOKS.projects] if BOOKS.projects else rows, asked.query)


@routes("GET", "operators")
def get_operators(asked):
    return page([{"id": "op_1", "name": "ada", "role": "owner", "hint": "", "created": stamp(9e6), "revoked": None}, {"id": "op_2", "name": HOSTILE, "role": "viewer", "hint": "", "created": stamp(9e5), "revoked": None}], asked.query)


class Asked:
    def __init__(self, query, body, headers):
        self.query, self.body, self.headers = query, body, headers


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer("GET")

    def do_POST(self):
        self.answer("POST")

    do_PATCH = do_PUT = do_DELETE = lambda self: self.answer(self.command)

    def answer(self, method):
        url = urllib.parse.urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length)
        try:
            if not url.path.startswith("/admin/v1/"):
                return self.file(url.path)
            path = urllib.parse.unquote(url.path.removeprefix("/admin/v1/"))
            if path in BOOKS.broken:
                return self.told(503, {"error": {"code": "store_unavailable", "message": f"The store does not answer: {HOSTILE}", "remedy": "Look at the disk, then try again.", "doc": "/docs/errors.md#store_unavailable"}})
            if path == "events":
                return self.events()
            asked = Asked(dict(urllib.parse.parse_qsl(url.query)), json.loads(raw or b"null"), self.headers)
            if method != "GET" and path != "session" and self.headers.get("x-headrace-csrf") != "c5rf":
                return self.told(403, {"error": {"code": "csrf", "message": "The page's sign is missing.", "remedy": "Load the page again."}})
            for of, pattern, function in ROUTES:
                if of == method and (found := pattern.match(path)):
                    made = function(asked, *found.groups())
                    if made is None:
                        return None
                    if callable(made):
                        return made(self)
                    return self.told(*made) if isinstance(made, tuple) else self.told(200, made)
            return self.told(404, {"error": {"code": "not_found", "message": f"There is no {method} {path} here.", "remedy": "Look at openapi.json."}})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def told(self, status, value, **headers):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, what in {"content-type": "application/json", "content-length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), what)
        self.end_headers()
        self.wfile.write(body)

    def file(self, path):
        file = ASSETS / (path.lstrip("/") or "index.html")
        if not file.is_file() or ASSETS not in file.resolve().parents:
            return self.told(404, {"error": {"code": "not_found", "message": "No such page."}})
        body = file.read_bytes()
        self.send_response(200)
        for name, what in {"content-type": TYPES.get(file.suffix, "text/plain"), "content-length": str(len(body)), "content-security-policy": CSP, "x-content-type-options": "nosniff", "cache-control": "no-cache"}.items():
            self.send_header(name, what)
        self.end_headers()
        self.wfile.write(body)

    def stream(self, headers=None):
        self.send_response(200)
        for name, what in {"content-type": "text/event-stream", "cache-control": "no-store", "connection": "close", **(headers or {})}.items():
            self.send_header(name, what)
        self.end_headers()
        self.close_connection = True

    def event(self, data, name=None):
        self.wfile.write(((f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n").encode())
        self.wfile.flush()

    def events(self):
        self.stream()
        at = 0
        while True:
            self.event(now(), "now")
            if at % 3 == 2:
                self.event({**request_row(at), "started": stamp()}, "call")
            at += 1
            time.sleep(1)


def start(port=0):
    """Serves on a thread of its own; the server's `server_port` says where."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    import fixture_pages

    served = fixture_pages.start(int(sys.argv[1]) if len(sys.argv) > 1 else 8099)
    print(f"http://127.0.0.1:{served.server_port}/#sign-in=x")
    threading.Event().wait()
