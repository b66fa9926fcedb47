//! The sections of the settings in the order of the reference, and the settings that a reload applies. Must not know
//! the sections' content.

/// The sections in the order of the reference, each with its subject.
pub(crate) const SECTIONS: &[(&str, &str)] = &[
    ("", "At the top of the file"),
    ("server", "Sockets, TLS, and the bounds on connections"),
    ("admin", "The listener for operators: the admin API and the console"),
    (
        "models",
        "What is served: one `[[models]]` table per model. Without any, the built-in demo model is served",
    ),
    (
        "upstreams",
        "Servers that calls are sent on to: one `[[upstreams]]` table for each. Their keys stand in files, or in variables named \
         `HEADRACE_UPSTREAM_NAME_KEY`; workers' secrets in `HEADRACE_UPSTREAM_NAME_SECRET`",
    ),
    ("engine", "The embedded engine, for every model that does not say otherwise"),
    ("scheduler", "Batching and queueing within each engine"),
    ("prices", "One `[[prices]]` table per model and date. A model without a price is refused, never free"),
    (
        "costs",
        "One `[[costs]]` table per upstream, model and date: what we pay. For operators alone; what has none is unknown, never 0",
    ),
    ("aliases", "Further names of models: `\"gpt-4o-mini\" = \"headrace-demo\"`"),
    ("routes", "Names that lead to several models, by weight: one `[[routes]]` table for each name"),
    ("limits", "Limits that new keys, projects and organisations get. Absent is unlimited"),
    ("moderation", "Rules on what callers send. None by default, which switches the stage off"),
    ("gateway", "Defaults and bounds of a call"),
    ("wire", "What one request may say"),
    ("responses", "OpenAI's Responses API"),
    ("objects", "What clients store, and for how long"),
    ("traces", "How many traces are kept"),
    ("first_start", "What an empty data directory is set up with"),
    (
        "worker",
        "Whether other Headraces may send jobs of token ids to the engines here. Off without a secret, which may also stand in the \
         variable `HEADRACE_WORKER_SECRET`",
    ),
    ("secrets", "Where secrets are kept"),
    (
        "reload",
        "How a changed configuration is noticed; `headrace reload` and, under `serve`, SIGHUP have it read at once",
    ),
    ("log", "The log, on standard error"),
    (
        "telemetry",
        "Traces, metrics and logs out by OTLP. Nothing is sent without an address, and no word of a prompt or an answer ever is",
    ),
];

/// Settings that a reload applies. All others need a restart.
pub(crate) const LIVE: &[&str] = &[
    "models",
    "upstreams",
    "prices",
    "costs",
    "aliases",
    "routes",
    "scheduler.weights",
    "moderation.rules",
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
pub(crate) fn is_live(path: &str) -> bool {
    LIVE.contains(&path)
}
