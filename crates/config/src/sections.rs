//! The sections of the settings in the order of the reference, and the settings that a reload applies. Must not know
//! the sections' content.

/// The sections in the order of the reference, each with its subject.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    ("", "Settings at the top of the file"),
    ("server", "Sockets, TLS, and the bounds on connections"),
    ("admin", "The listener for operators: the admin API and the console"),
    (
        "models",
        "Models to serve: one `[[models]]` table per model. Without any table, the server serves the built-in demo model",
    ),
    (
        "upstreams",
        "Upstream servers: one `[[upstreams]]` table per server. Keys are in files, or in variables named \
         `HEADRACE_UPSTREAM_NAME_KEY`; workers' secrets are in `HEADRACE_UPSTREAM_NAME_SECRET`",
    ),
    ("engine", "The embedded engine: defaults for all models"),
    ("scheduler", "Batching and queueing within each engine"),
    (
        "prices",
        "Prices for callers: one `[[prices]]` table per model and date. Calls of a model without a price are refused, never free",
    ),
    (
        "budgets",
        "Budgets by window: one `[[budgets]]` table per budget. `headrace budgets` shows their use, and sets further ones",
    ),
    (
        "webhooks",
        "Endpoints that receive alerts and other events: one `[[webhooks]]` table per endpoint. `headrace webhooks` shows their state",
    ),
    ("receipts", "Signed statements about single calls. See [receipts](receipts.md)"),
    ("invoices", "Invoices for organisations by month. See [monthly invoices](recipes/monthly-invoices.md)"),
    (
        "free_tiers",
        "Free use by window: one `[[free_tiers]]` table per free tier. `headrace free-tiers` shows their use, and sets further ones",
    ),
    (
        "costs",
        "Charges of upstreams: one `[[costs]]` table per upstream, model and date. Only operators see costs. A missing cost is unknown, never 0",
    ),
    ("aliases", "Additional names of models: `\"gpt-4o-mini\" = \"headrace-demo\"`"),
    ("routes", "Names that are served by several models, by weight: one `[[routes]]` table per name"),
    ("limits", "Limits of new keys, projects and organisations. Without a setting, there is no limit"),
    (
        "identity",
        "Identity providers: callers sign in with JWTs in place of API keys. See [identity providers](recipes/identity-provider.md)",
    ),
    (
        "moderation",
        "Rules on the content of requests and answers. By default there are no rules, and nothing is checked",
    ),
    ("gateway", "Defaults and bounds of a call"),
    ("wire", "Bounds on the content of one request"),
    ("responses", "OpenAI's Responses API"),
    ("storage", "Place of keys and ledger"),
    ("objects", "Objects that clients store, and their retention"),
    ("idempotency", "Answers that repeated requests get again. See [idempotency keys](idempotency.md)"),
    ("traces", "Bounds on stored traces"),
    ("records", "What is recorded of calls besides times, counts and charges. See [privacy](privacy.md)"),
    ("first_start", "Initial content of an empty data directory"),
    (
        "worker",
        "Jobs of token ids from other Headrace servers for the engines of this server. Off without a secret. The variable \
         `HEADRACE_WORKER_SECRET` may also hold the secret",
    ),
    ("secrets", "Files of secrets"),
    (
        "reload",
        "Detection of a changed configuration. `headrace reload` and, under `serve`, SIGHUP trigger an immediate reload",
    ),
    ("log", "The log, on standard error"),
    (
        "telemetry",
        "Export of traces, metrics and logs by OTLP. Without an address, nothing is sent. Texts of prompts and answers are never sent",
    ),
];

/// Settings that a reload applies. All others need a restart.
pub(crate) const LIVE: &[&str] = &[
    "models",
    "upstreams",
    "prices",
    "budgets",
    "free_tiers",
    "costs",
    "aliases",
    "routes",
    "scheduler.weights",
    "admin.sign_in",
    "identity.issuers",
    "identity.certificates",
    "moderation.rules",
    "moderation.judges",
    "gateway.alias_header",
    "limits.key.requests_per_minute",
    "limits.key.tokens_per_minute",
    "limits.key.concurrency",
    "limits.project.requests_per_minute",
    "limits.project.tokens_per_minute",
    "limits.project.concurrency",
    "limits.org.requests_per_minute",
    "limits.org.tokens_per_minute",
    "limits.org.concurrency",
    "log.filter",
];

/// Whether a reload applies that setting.
pub fn is_live(path: &str) -> bool {
    LIVE.contains(&path)
}
