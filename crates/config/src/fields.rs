//! The table of all settings: name, kind, default and description. The checks of the layers, the names of the variables
//! and the reference are derived from it. Knows nothing of how a value is used.

use super::arithmetic::{DEVICES, KV_TYPES, MODES, QUANTIZED};
use super::kinds::{
    DAY, GIB, HOUR, ITEMS, ITEMS_OR_NONE, KIB, LONG_RATE, MIB, MINUTE, RATE, THREADS, TIB, bytes, count,
    millis, seconds,
};
use super::value::SettingKind;
use super::{access_fields, content_rule_fields, otel, record_fields, stopping, storage, table_texts};

pub use super::field::SettingField;
use super::field::{field, joined};

/// All settings, by section.
pub const FIELDS: &[SettingField] = &joined::<{ WITH_ACCESS.len() + content_rule_fields::FIELDS.len() }>(
    WITH_ACCESS,
    content_rule_fields::FIELDS,
);
const WITH_ACCESS: &[SettingField] =
    &joined::<{ WITH_RECORDS.len() + access_fields::FIELDS.len() }>(WITH_RECORDS, access_fields::FIELDS);
const WITH_RECORDS: &[SettingField] =
    &joined::<{ WITH_STORAGE.len() + record_fields::FIELDS.len() }>(WITH_STORAGE, record_fields::FIELDS);
const WITH_STORAGE: &[SettingField] =
    &joined::<{ WITH_STOPPING.len() + storage::FIELDS.len() }>(WITH_STOPPING, storage::FIELDS);
const WITH_STOPPING: &[SettingField] =
    &joined::<{ WITH_OTEL.len() + stopping::FIELDS.len() }>(WITH_OTEL, stopping::FIELDS);
const WITH_OTEL: &[SettingField] = &joined::<{ OWN.len() + otel::FIELDS.len() }>(OWN, otel::FIELDS);

/// The settings that no other module defines.
const OWN: &[SettingField] = &[
    field(
        "data_dir",
        SettingKind::Path,
        "\"./headrace-data\"",
        "Directory of keys, ledger, traces and secrets. Used by one process at a time; created with mode 0700.",
    ),
    field(
        "server.listen",
        SettingKind::Address,
        "\"127.0.0.1:8080\"",
        "Address of the API listener. Port 0 selects a free port. The server writes the actual address to the file `address` in the data directory.",
    ),
    field(
        "server.region",
        SettingKind::Text,
        "",
        "The region of this server, such as `\"eu\"`. It covers the models that run here and the data stored here. Calls that are pinned to regions (`headrace orgs regions`) use these models only if the pin includes this region. For other pinned calls, traces store none of an upstream's error text.",
    ),
    field(
        "server.metrics_listen",
        SettingKind::Address,
        "",
        "Address of `/metrics`, `/healthz` and `/readyz`, for Prometheus. Without this setting, no metrics are served.",
    ),
    field(
        "server.tls_cert",
        SettingKind::Path,
        "",
        "PEM file with the certificate chain. Together with `tls_key`, this setting enables TLS 1.3. A reload reads both files again.",
    ),
    field("server.tls_key", SettingKind::Path, "", "PEM file with the private key."),
    field(
        "server.header_timeout",
        millis(100, 10 * MINUTE * 1000),
        "\"10s\"",
        "Maximum time for a client to send the headers of a request, including the TLS handshake.",
    ),
    field(
        "server.body_progress_timeout",
        millis(100, HOUR * 1000),
        "\"30s\"",
        "Maximum pause while a request body is received.",
    ),
    field("server.body_total_timeout", seconds(1, DAY), "\"5m\"", "Maximum total time for a request body."),
    field(
        "server.write_timeout",
        seconds(1, HOUR),
        "",
        "Last resort: maximum time during which a socket accepts no bytes. Default: five seconds longer than `gateway.stall_timeout`, which ends calls with clients that do not read.",
    ),
    field(
        "server.idle_timeout",
        seconds(1, DAY),
        "\"90s\"",
        "Maximum time that a connection stays open without a request.",
    ),
    field(
        "server.cors",
        SettingKind::Text,
        "",
        "Origins of web pages that may call the API from a browser and read the answers, separated by commas, such as `\"https://app.example.com, http://localhost:5173\"`. Write each origin exactly as browsers do: without a slash at the end, and never `*`. By default, no origin is allowed. Cookies are never allowed. A page sends a key in a header, so everyone who can open the page can read that key.",
    ),
    field(
        "server.max_header",
        bytes(KIB, MIB),
        "\"16KiB\"",
        "Maximum size of the request line and headers. Larger requests get status 431.",
    ),
    field(
        "server.max_body",
        bytes(KIB, 256 * MIB),
        "\"8MiB\"",
        "Maximum size of a request body. Larger requests get status 413.",
    ),
    field(
        "server.request_memory",
        bytes(MIB, TIB),
        "\"256MiB\"",
        "Memory for the headers and bodies of all calls that are being read or answered. A call that needs more gets status 503.",
    ),
    field(
        "server.request_memory_per_key",
        bytes(KIB, TIB),
        "",
        "The part of `request_memory` that the calls of one key may use. A call beyond this part gets status 429. Default: a quarter.",
    ),
    field(
        "server.max_connections",
        count(1, 1_000_000),
        "4096",
        "Maximum number of open connections. A further connection replaces the connection that has been idle longest. If no connection is idle, the further connection gets status 503. If the process may not open enough files, the server lowers this number at start and reports the lower number.",
    ),
    field(
        "server.max_connections_per_peer",
        count(1, 1_000_000),
        "",
        "Maximum number of open connections per client address (an IPv6 /64 counts as one address). Default: half of `max_connections`; behind a proxy, set all of them. Unless this is all of them, the last sixteenth is reserved for addresses with few connections.",
    ),
    field(
        "server.max_refusals_per_peer",
        count(1, 1_000_000_000),
        "6000",
        "Maximum number of refusals per minute and client address, for requests without a valid key. Further requests get status 429, and the server closes the connection.",
    ),
    field(
        "server.max_concurrent_streams",
        count(1, 65_535),
        "100",
        "Maximum number of concurrent requests on one HTTP/2 connection.",
    ),
    field(
        "server.transport_buffer",
        bytes(16 * KIB, 64 * MIB),
        "\"64KiB\"",
        "Buffer for answer bytes on their way to the network, per connection. A client that stops reading can be charged for up to this amount of unread output.",
    ),
    field(
        "admin.listen",
        SettingKind::Text,
        "",
        "Address of the admin listener: the admin API and the console. `\"off\"` disables the listener. By default, `up` listens on `127.0.0.1:8081` or the next free port, and `serve` does not listen. For access from other machines, set `admin.tls`, or put a proxy with TLS in front and name the proxy in `admin.url`.",
    ),
    field(
        "admin.tls",
        SettingKind::Flag,
        "false",
        "Whether the admin listener uses TLS 1.3, with the certificate of `server.tls_cert` and `server.tls_key`. A reload reads the certificate again for both listeners.",
    ),
    field(
        "admin.url",
        SettingKind::Text,
        "",
        "The URL at which browsers reach the admin listener, such as `\"https://console.example.com\"`, if that is not the address of the listener. Sign-in links begin with this URL, and requests may name its host. With `https`, browsers send the session cookie over TLS only.",
    ),
    field("models", SettingKind::Tables, "", table_texts::MODELS),
    field("upstreams", SettingKind::Tables, "", table_texts::UPSTREAMS),
    field(
        "engine.threads",
        THREADS,
        "",
        "Compute threads, shared by all models. The `threads` of a model limits its part. Default: the processors that the process may use.",
    ),
    field(
        "engine.device",
        SettingKind::Choice(DEVICES),
        "\"cpu\"",
        "Compute device: the processors, or the first NVIDIA GPU, in bf16 (for a program built with `--features cuda`; docs/gpu.md). On a GPU, `kv_memory` is GPU memory, by default all memory that the weights leave free.",
    ),
    field(
        "engine.isa",
        SettingKind::Choice(&["scalar", "neon", "avx2", "avx512"]),
        "",
        "Instruction set, part of a model's numerics. Default: the best instruction set of this machine. `HEADRACE_ISA` also sets this.",
    ),
    field(
        "engine.compute",
        SettingKind::Choice(MODES),
        "\"auto\"",
        "Type of activations, part of a model's numerics. `exact` uses f32. `fast` uses int8 with quantized weights and bf16 with bf16 weights. `auto` is `fast` for models with quantized weights and `exact` for others.",
    ),
    field(
        "engine.kv_type",
        SettingKind::Choice(KV_TYPES),
        "",
        "Type of cached keys and values, part of a model's numerics. Default: `f32` in compute mode `exact`, `f16` in `fast`.",
    ),
    field(
        "engine.quantize",
        SettingKind::Choice(QUANTIZED),
        "\"none\"",
        "Type to which f32, f16 and bf16 weights are quantized at load. Rows with a length that 256 does not divide use a type with blocks of 32 instead of a K type. The output projection keeps at least six bits.",
    ),
    field(
        "engine.kv_memory",
        bytes(64 * KIB, 64 * TIB),
        "",
        "Memory of each model's KV cache. Default: up to half of the memory that the process limit leaves after the weights, and at most the memory of `max_running` full contexts.",
    ),
    field(
        "engine.max_positions",
        count(16, 1 << 24),
        "",
        "Maximum context of every model, in tokens. Default: the model's own maximum.",
    ),
    field("engine.max_choices", count(1, 4096), "128", "Maximum number of answers to one prompt (`n`)."),
    field(
        "engine.runtime_threads",
        THREADS,
        "",
        "Threads for sockets and requests. Default: half of the processors, at least 2.",
    ),
    field(
        "scheduler.step_tokens",
        count(1, 65_536),
        "128",
        "Maximum number of tokens in one step, prefill and decode together.",
    ),
    field(
        "scheduler.max_running",
        count(1, 65_536),
        "64",
        "Maximum number of sequences that are computed at the same time.",
    ),
    field(
        "scheduler.max_chunk",
        count(1, 65_536),
        "512",
        "Maximum number of tokens of one sequence in one step. `scheduler.step_tokens` is a further limit.",
    ),
    field(
        "scheduler.max_score_chunk",
        count(1, 65_536),
        "32",
        "The same limit for calls that request log-probabilities of every position.",
    ),
    field(
        "scheduler.queue_sequences",
        count(1, 1 << 20),
        "1024",
        "Maximum number of waiting sequences. Further calls get status 503 with `Retry-After`.",
    ),
    field("scheduler.queue_tokens", count(1, 1 << 40), "1048576", "Maximum number of waiting prompt tokens."),
    field(
        "scheduler.max_bypass",
        count(0, 1 << 20),
        "8",
        "Maximum number of sequences that may start before an earlier sequence that does not fit yet.",
    ),
    field(
        "scheduler.idle_patience",
        millis(10, 3600 * 1000),
        "\"1s\"",
        "Maximum time for which idle work (`service_tier: \"flex\"`, batches) is passed over. Then one request of idle work runs as normal work.",
    ),
    field(
        "scheduler.dedup_tokens",
        count(0, 1 << 20),
        "32",
        "Minimum length of an uncached prefix, in tokens, for which a call waits if another call is computing the same prefix.",
    ),
    field(
        "scheduler.prefix_cache",
        SettingKind::Flag,
        "true",
        "Whether computed prefixes are kept for later calls of the same tenant.",
    ),
    field(
        "scheduler.prefix_lifetime",
        seconds(1, 365 * DAY),
        "",
        "Lifetime of a cached prefix that no call uses. Default: until its memory is needed.",
    ),
    field(
        "scheduler.pinned_percent",
        count(0, 100),
        "50",
        "Percentage of a model's KV blocks that are evicted last because calls ask to keep them (`cache_control`).",
    ),
    field(
        "scheduler.pinned_percent_of_one",
        count(0, 100),
        "25",
        "The same percentage for one organisation.",
    ),
    field(
        "scheduler.keep_aborted",
        SettingKind::Flag,
        "false",
        "Whether the computed prefix of a call stays in the prefix cache if the client disconnects.",
    ),
    field(
        "scheduler.weights",
        SettingKind::Tables,
        "",
        "Each table has `org` and `weight` (1 to 1000). The weight is the organisation's share of an engine relative to other organisations, which have weight 1.",
    ),
    field("prices", SettingKind::Tables, "", table_texts::PRICES),
    field("budgets", SettingKind::Tables, "", table_texts::BUDGETS),
    field("free_tiers", SettingKind::Tables, "", table_texts::FREE_TIERS),
    field("costs", SettingKind::Tables, "", table_texts::COSTS),
    field("aliases", SettingKind::Names, "", "A table of names: an alias, and the name of a served model."),
    field("routes", SettingKind::Tables, "", table_texts::ROUTES),
    field("identity.issuers", SettingKind::Tables, "", table_texts::ISSUERS),
    field("limits.key.requests_per_minute", RATE, "", "Requests per minute of a new key."),
    field(
        "limits.key.tokens_per_minute",
        LONG_RATE,
        "",
        "Tokens per minute of a new key, input and output together.",
    ),
    field("limits.key.concurrency", RATE, "", "Concurrent requests of a new key."),
    field("limits.project.requests_per_minute", RATE, "", "Requests per minute of a new project."),
    field("limits.project.tokens_per_minute", LONG_RATE, "", "Tokens per minute of a new project."),
    field("limits.project.concurrency", RATE, "", "Concurrent requests of a new project."),
    field("limits.org.requests_per_minute", RATE, "", "Requests per minute of a new organisation."),
    field("limits.org.tokens_per_minute", LONG_RATE, "", "Tokens per minute of a new organisation."),
    field("limits.org.concurrency", RATE, "", "Concurrent requests of a new organisation."),
    field(
        "gateway.default_max_tokens",
        count(1, 1 << 20),
        "1024",
        "Maximum length of an answer, in tokens, if the caller names none. A model's `default_max_tokens`, or else the `max_new_tokens` of its generation_config.json, takes precedence. `config check` shows the source.",
    ),
    field(
        "gateway.hold_lifetime",
        seconds(1, DAY),
        "\"1h\"",
        "Lifetime of a hold that is not settled. A call, including its waiting time, ends up to a minute earlier.",
    ),
    field(
        "gateway.stall_timeout",
        seconds(1, HOUR),
        "\"30s\"",
        "Maximum time that a client may read nothing while output waits, until the last byte of the answer.",
    ),
    field(
        "gateway.delivery_buffer",
        bytes(4 * KIB, 64 * MIB),
        "\"256KiB\"",
        "Buffer for answer bytes that wait for a slow client. The engine buffers the same amount again; then the call pauses until the client reads.",
    ),
    field(
        "gateway.first_event_wait",
        seconds(0, HOUR),
        "\"10s\"",
        "Maximum time that the status line of a stream waits for the first event.",
    ),
    field(
        "gateway.keep_alive",
        seconds(1, HOUR),
        "\"15s\"",
        "Interval of keep-alive events on a silent stream.",
    ),
    field(
        "gateway.render_inline",
        bytes(0, MIB),
        "\"32KiB\"",
        "Requests longer than this are read and rendered outside the event loop. Requests that only pass through are read there from 16 times this length.",
    ),
    field(
        "gateway.max_render_bytes_at_once",
        bytes(MIB, TIB),
        "\"16MiB\"",
        "Maximum number of bytes of such requests that are read and rendered at the same time. One key may use half of them.",
    ),
    field(
        "gateway.max_call_memory",
        bytes(MIB, TIB),
        "\"64MiB\"",
        "Maximum memory that one call may use for its prompt and answer, by an upper estimate.",
    ),
    field(
        "gateway.max_key_memory",
        bytes(MIB, TIB),
        "\"256MiB\"",
        "Maximum memory that all calls of one key may use at the same time, until their last bytes are read.",
    ),
    field("gateway.max_memory", bytes(MIB, TIB), "\"2GiB\"", "The same limit for all calls together."),
    field(
        "gateway.alias_header",
        SettingKind::Flag,
        "true",
        "Whether answers to calls of an alias or a route name the model: `x-headrace-alias: NAME -> MODEL`.",
    ),
    field("wire.max_json_depth", count(1, 512), "64", "Maximum nesting depth of objects and arrays."),
    field("wire.max_messages", ITEMS, "4096", "Maximum number of messages per conversation."),
    field("wire.max_content_parts", ITEMS, "1024", "Maximum number of parts per message."),
    field("wire.max_tool_calls", ITEMS, "128", "Maximum number of tool calls per assistant message."),
    field("wire.max_tools", ITEMS, "128", "Maximum number of tools per call."),
    field(
        "wire.max_free_form_values",
        ITEMS,
        "50000",
        "Maximum number of values in all tool schemas and arguments of a request together.",
    ),
    field("wire.max_prompts", ITEMS, "128", "Maximum number of prompts per completions call."),
    field(
        "wire.max_prompt_ids",
        count(1, 1 << 24),
        "131072",
        "Maximum number of token ids in a prompt that is given as ids.",
    ),
    field(
        "wire.max_form_text_bytes",
        ITEMS,
        "131072",
        "Maximum length, in bytes, of one text that constrains an answer: a pattern, a grammar, a choice.",
    ),
    field(
        "wire.max_form_choices",
        ITEMS,
        "4096",
        "Maximum number of choices for an answer, and of triggers of structural tags.",
    ),
    field("wire.max_form_tags", ITEMS, "128", "Maximum number of structural tags."),
    field(
        "wire.max_stop_strings",
        ITEMS_OR_NONE,
        "16",
        "Maximum number of stop strings. OpenAI's dialect accepts at most 4, independently of this setting.",
    ),
    field("wire.max_stop_bytes", ITEMS, "1024", "Maximum length of a stop string, in bytes."),
    field("wire.max_stop_token_ids", ITEMS_OR_NONE, "256", "Maximum number of stop token ids."),
    field("wire.max_n", ITEMS, "128", "Maximum number of answers to one prompt."),
    field("wire.max_choices", ITEMS, "128", "Maximum number of prompts times `n`."),
    field("wire.max_logit_bias", ITEMS_OR_NONE, "1024", "Maximum number of tokens with a bias."),
    field(
        "wire.max_logprobs",
        SettingKind::Count { least: 0, most: 20 },
        "20",
        "Maximum number of alternatives with log-probabilities per token.",
    ),
    field("wire.max_output_tokens_per_request", count(1, 1 << 24), "1048576", "Maximum `max_tokens`."),
    field(
        "wire.max_label_bytes",
        ITEMS,
        "256",
        "Maximum length, in bytes, of a short string: the name of a model or a user, an id.",
    ),
    field("wire.max_metadata_pairs", ITEMS_OR_NONE, "16", "Maximum number of pairs in `metadata`."),
    field(
        "responses.skip_hosted_tools",
        SettingKind::Flag,
        "true",
        "Whether tools that OpenAI hosts (web search, files, MCP, ...) are left out of a Responses call and named in its answer. If false, calls with such tools are refused.",
    ),
    field(
        "objects.retention",
        seconds(60, 3650 * DAY),
        "\"30d\"",
        "Retention of responses, and of conversations to which nothing is added.",
    ),
    field("objects.max_object", bytes(KIB, GIB), "\"16MiB\"", "Maximum size of one stored response."),
    field(
        "objects.max_responses_per_project",
        count(1, 1 << 40),
        "100000",
        "Maximum number of stored responses per project. The oldest responses are removed first.",
    ),
    field("objects.max_response_bytes_per_project", bytes(KIB, TIB), "\"1GiB\"", "The same limit in bytes."),
    field(
        "objects.max_conversations_per_project",
        count(1, 1 << 40),
        "10000",
        "Maximum number of conversations per project. Further conversations are refused.",
    ),
    field(
        "objects.max_items_per_conversation",
        count(1, 1 << 20),
        "10000",
        "Maximum number of items per conversation. Further items are refused.",
    ),
    field(
        "objects.max_turns",
        count(1, 1 << 20),
        "1000",
        "Maximum length of a chain of responses, each of which continues the previous one.",
    ),
    field(
        "objects.max_history",
        bytes(KIB, GIB),
        "\"32MiB\"",
        "Maximum size of the responses, or of the conversation, that one call continues.",
    ),
    field("objects.max_file", bytes(KIB, TIB), "\"512MiB\"", "Maximum size of one file."),
    field(
        "objects.max_files_per_project",
        count(1, 1 << 40),
        "10000",
        "Maximum number of files and parts per project.",
    ),
    field("objects.max_file_bytes_per_project", bytes(KIB, TIB), "\"10GiB\"", "The same limit in bytes."),
    field(
        "objects.max_open_batches_per_project",
        count(1, 1 << 20),
        "100",
        "Maximum number of open batches per project.",
    ),
    field(
        "objects.max_requests_per_batch",
        count(1, 1 << 20),
        "50000",
        "Maximum number of requests per batch.",
    ),
    field(
        "traces.max_records",
        count(1, 1 << 40),
        "1000000",
        "Maximum number of stored traces (about 2 kB each). The oldest traces are removed first. Refusals may use a quarter of the number.",
    ),
    field(
        "traces.max_age",
        seconds(0, 3650 * DAY),
        "\"30d\"",
        "Maximum age of traces. Older traces are removed. With `\"0s\"`, there is no maximum age, and only `traces.max_records` counts.",
    ),
    field(
        "traces.queue_records",
        count(1, 1 << 20),
        "8192",
        "Maximum number of traces that wait to be stored, for calls that ran. Further traces are dropped and counted.",
    ),
    field(
        "traces.recent_records",
        count(0, 1 << 20),
        "1024",
        "Number of traces kept in memory, so that they can be read right after the answer.",
    ),
    field(
        "traces.strangers_per_second",
        count(0, 1 << 20),
        "10",
        "Maximum number of stored refusals per second, for callers without a valid key. All refusals are counted.",
    ),
    field(
        "first_start.credit",
        SettingKind::Dollars,
        "\"10\"",
        "Promotional credit of organisation `default`, in dollars.",
    ),
    field(
        "first_start.key_file",
        SettingKind::Path,
        "",
        "File with the first API key (`sk-…`). `HEADRACE_BOOTSTRAP_KEY` also sets the key. By default, the first start creates a key: `up` shows the key once, and `serve` writes the key to the file `first-key` in the data directory.",
    ),
    field(
        "worker.secret_file",
        SettingKind::Path,
        "",
        "File with a secret of 32 or more random characters. Another Headrace server that signs with the same secret may send jobs. That server names the secret in the `secret_file` of its upstream.",
    ),
    field(
        "secrets.key_hash_file",
        SettingKind::Path,
        "",
        "File with 64 hexadecimal digits, the secret for hashes of keys. Default: `secrets/key-hash` in the data directory, created at the first start. Without this secret no key works.",
    ),
    field(
        "secrets.cache_salt_file",
        SettingKind::Path,
        "",
        "The same for the secret that separates the prefix caches of tenants. Default: `secrets/cache-salt`.",
    ),
    field(
        "reload.watch",
        seconds(0, HOUR),
        "\"2s\"",
        "Interval at which the configuration file and the certificate files are checked for changes. `\"0s\"` disables the check.",
    ),
    field(
        "log.filter",
        SettingKind::Text,
        "\"warn\"",
        "Log filter: a level (off, error, warn, info, debug, trace), or directives per module such as `warn,headrace_edge=debug`. `headrace_calls=info` logs a line for each finished call and each refusal. `HEADRACE_LOG` also sets this.",
    ),
    field(
        "log.format",
        SettingKind::Choice(&["text", "json"]),
        "\"text\"",
        "Log format. With `json`, each line is an object. Colours appear only in terminals.",
    ),
];

/// Finds a setting by its path.
pub(crate) fn find(path: &str) -> Option<&'static SettingField> {
    FIELDS.iter().find(|field| field.path == path)
}
