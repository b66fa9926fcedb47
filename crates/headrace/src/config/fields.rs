//! Every setting there is: its name, its kind, its default and what it does. From this one table come the layers'
//! checks, the environment's names and the reference. Knows nothing of what becomes of a value.

use super::arithmetic::{DEVICES, KV_TYPES, MODES, QUANTIZED};
use super::kinds::{
    DAY, GIB, HOUR, ITEMS, ITEMS_OR_NONE, KIB, LONG_RATE, MIB, MINUTE, RATE, THREADS, TIB, bytes, count,
    millis, seconds,
};
use super::otel;
use super::value::Kind;

pub(crate) use super::field::Field;
use super::field::field;

/// Every setting, by section.
pub(crate) const FIELDS: &[Field] = &joined::<{ OWN.len() + otel::FIELDS.len() }>(OWN, otel::FIELDS);

/// Two lists as one. Every index is below the length of its list, or this would not compile.
const fn joined<const N: usize>(first: &[Field], more: &[Field]) -> [Field; N] {
    let mut all = [first[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { more[at - first.len()] };
        at += 1;
    }
    all
}

/// Those that stand here.
const OWN: &[Field] = &[
    field(
        "data_dir",
        Kind::Path,
        "\"./headrace-data\"",
        "Keys, ledger, traces and secrets. One process at a time; created with mode 0700.",
    ),
    field(
        "server.listen",
        Kind::Address,
        "\"127.0.0.1:8080\"",
        "Where the API listens. Port 0 takes a free one, which is written to `address` in the data directory.",
    ),
    field(
        "server.region",
        Kind::Text,
        "",
        "The region that this server is in, such as `\"eu\"`, with its own models and what it keeps. Calls that are pinned to regions (`headrace orgs regions`) use its models only where theirs have this name; where they do not, traces keep nothing of what a server said of its failures.",
    ),
    field(
        "server.metrics_listen",
        Kind::Address,
        "",
        "Where `/metrics`, `/healthz` and `/readyz` listen for Prometheus. Without it, no metrics are served.",
    ),
    field(
        "server.tls_cert",
        Kind::Path,
        "",
        "PEM file with the certificate chain. Together with `tls_key`: TLS 1.3. A reload reads both files again.",
    ),
    field("server.tls_key", Kind::Path, "", "PEM file with the private key."),
    field(
        "server.drain",
        seconds(0, DAY),
        "\"30s\"",
        "How long calls in flight may go on after SIGTERM or Ctrl-C before they are cut off and settled; `\"0s\"` cuts at once.",
    ),
    field(
        "server.header_timeout",
        millis(100, 10 * MINUTE * 1000),
        "\"10s\"",
        "How long a client may take to send its headers, TLS handshake included.",
    ),
    field(
        "server.body_progress_timeout",
        millis(100, HOUR * 1000),
        "\"30s\"",
        "The longest pause within a request's body.",
    ),
    field(
        "server.body_total_timeout",
        seconds(1, DAY),
        "\"5m\"",
        "How long a request's body may take in all.",
    ),
    field(
        "server.write_timeout",
        seconds(1, HOUR),
        "",
        "How long a socket may take no bytes, as the last resort. By default five seconds longer than `gateway.stall_timeout`, which ends calls that are not read.",
    ),
    field(
        "server.idle_timeout",
        seconds(1, DAY),
        "\"90s\"",
        "How long a connection stays open without a request.",
    ),
    field(
        "server.cors",
        Kind::Text,
        "",
        "Origins whose web pages may call the API from a browser and read its answers, with commas between, such as `\"https://app.example.com, http://localhost:5173\"`: exactly as browsers write them, so without a slash at the end, and never `*`. By default none. Cookies are never allowed: a page sends a key in a header, and whoever can open the page can read that key.",
    ),
    field(
        "server.max_header",
        bytes(KIB, MIB),
        "\"16KiB\"",
        "Largest request line and headers; more is answered with 431.",
    ),
    field(
        "server.max_body",
        bytes(KIB, 256 * MIB),
        "\"8MiB\"",
        "Largest request body; more is answered with 413.",
    ),
    field(
        "server.request_memory",
        bytes(MIB, TIB),
        "\"256MiB\"",
        "Heads and bodies of all calls that are being read or answered; a call that needs more is answered with 503.",
    ),
    field(
        "server.request_memory_per_key",
        bytes(KIB, TIB),
        "",
        "The part of `request_memory` that the calls of one key may fill; more is answered with 429. By default, a quarter.",
    ),
    field(
        "server.max_connections",
        count(1, 1_000_000),
        "4096",
        "Connections open at a time. For one more, the one idle longest gives way; where none is idle, it is answered with 503.",
    ),
    field(
        "server.max_connections_per_peer",
        count(1, 1_000_000),
        "",
        "The same for one client address (an IPv6 /64 is one). By default half of `max_connections`; behind a proxy, all of them.",
    ),
    field(
        "server.max_refusals_per_peer",
        count(1, 1_000_000_000),
        "6000",
        "Refusals without a good key that one client address is told in a minute; more are answered with 429 and closed.",
    ),
    field(
        "server.max_concurrent_streams",
        count(1, 65_535),
        "100",
        "Requests at once on one HTTP/2 connection.",
    ),
    field(
        "server.transport_buffer",
        bytes(16 * KIB, 64 * MIB),
        "\"64KiB\"",
        "Bytes of an answer on their way to the network, per connection: what a reader that stopped reading can be charged for without having seen it.",
    ),
    field(
        "admin.listen",
        Kind::Text,
        "",
        "Where operators are listened to: the admin API and the console. `\"off\"`: nowhere. By default `up` listens at `127.0.0.1:8081`, or the next free port, and `serve` nowhere. Beyond this machine set `admin.tls`, or put a proxy with TLS in front and name it in `admin.url`.",
    ),
    field(
        "admin.tls",
        Kind::Flag,
        "false",
        "Whether operators are listened to by TLS 1.3, with the certificate of `server.tls_cert` and `server.tls_key`. A reload reads that again for both listeners.",
    ),
    field(
        "admin.url",
        Kind::Text,
        "",
        "How browsers reach the admin listener, such as `\"https://console.example.com\"`, where that is not its address: sign-in links begin with it, its host is one that may be asked by, and by `https` the session's cookie travels only there.",
    ),
    field(
        "models",
        Kind::Tables,
        "",
        "Tables with `name`, `path` (a Hugging Face directory, a GGUF file, or `builtin:demo`) and, optionally, `threads`, `kv_memory`, `max_positions`, `default_max_tokens`, `device`, `compute`, `kv_type`, `quantize`, `limits`, `tools`, `thinking`, `structured`, `parse_special`, `past_answers`, `reply`. `reply` names the form in which the model writes calls of tools, where its template does not tell: `hermes`, `qwen3_coder`, `llama3_json`, `pythonic`, `mistral_array`, `mistral`, `deepseek_v3`, `deepseek_v31`, `deepseek_v32`, `deepseek_v4`, `harmony`, `granite`, `glm45`, `kimi_k2`, `minimax_m2`, `functiongemma`, `gemma4`, `json`, or `plain` for none. Or with `targets` instead of `path`, a list of `\"UPSTREAM/MODEL\"`, and, optionally, `default_max_tokens`, `context_window`, `input`, `limits`, `on_break`, `hedge`, `tools`, `thinking`, `structured`, `parse_special`, `past_answers`, `reply`. With `targets` and `path`, targets of kind `vllm`, `sglang` and `llamacpp` are asked by token ids: tokenizer, template and configuration are read from the path, weights never. `on_break` says what follows where an answer breaks in its middle and nobody goes on with it as if nothing had happened: it ends with an error (`error`, the default), or another target goes on with it in its own way (`continue`), and the stream and the trace say where. Targets that are asked by token ids go on from the tokens; of those that are asked in messages, `vllm`, `sglang` and `anthropic` (but not its newer models) go on from the text of a stream without tools, stop strings and the like. Such streams are read and written anew, so that fields which are not known here are not passed on. `hedge = { after = \"p95\", share = 0.05 }` puts a call to a second target once it waits longer for its first word than 95 of 100 calls of the other targets did, and that for at most 5 of 100 calls: whoever speaks first has it, the other one is let go of, and its cost is yours. `tools.order` says in which order a model is shown the properties of tools: as they were sent (`sent`, the default: their order carries meaning), or sorted (`canonical`), so that callers who order them differently share cached prefixes. `structured.invalid` says what follows where a finished answer is no JSON of the schema that was asked for: it is refused, and a stream ends with an error (`refuse`, the default), a whole answer is asked for up to twice more, as long as retries last (`retry`), or it goes out and is not judged (`pass`). `thinking = { low = 1024, high = 8192 }` says how many tokens of thought an effort is at most (`minimal`, `low`, `medium`, `high`, `xhigh`, `max`), where a call names no number itself; `last_words` is what a thought ends with that has had enough, and counts as a part of it. `parse_special` names the keys, by their ids, whose raw prompts (`/v1/completions`) may hold control tokens that are spelt out, where the call says so: `[\"key_…\"]`, or `\"all\"`; with them a prompt can end its own turn, so that nobody may by default. `past_answers` says what former answers in a prompt are read as, where their texts would become other tokens than were generated: what was generated (`generated`, the default: within an hour, and within bounds of memory, a conversation goes on from what was computed of it), or their texts alone (`text`). Calls that name a `seed` are read as texts. `input = [\"text\", \"image\"]` says what a model that is asked in messages takes (`document`, `audio` and `video` too): other parts are refused here, by their place; without it its servers decide. Of either kind with `shadow`, a table: copies of a `share` (0.1: one in ten) of its calls run at the `model` too, nobody is charged for them, and all cost no more than the `budget` (`\"$5/day\"`, `\"$0.50/hour\"`, at list prices); `compare = false` keeps no answer to compare it with; `in_flight` (4) and `queue` (64) bound the copies at work and those that wait. With `retires` (a day such as `\"2027-01-31\"`) answers say that the name ends (`deprecation`, `sunset`, `link`), since when it should not be used (`deprecated`, a day), what comes after it (`successor`, a name) and where that is told (`page`, an address); from that day on calls are refused, or go to the successor with `after = \"move\"`.",
    ),
    field(
        "upstreams",
        Kind::Tables,
        "",
        "Tables with `name`, `kind` (`openai`, `anthropic`, `vllm`, `sglang`, `llamacpp`, `headrace`), `url` and, optionally, `region` (where it is, such as `\"eu\"`: calls that are pinned to regions go to no other), `serve` (true: every model that it lists is served as `NAME/MODEL`), `price` (a table of what `[[prices]]` has, for its models without a price), `key_file`, `secret_file` (of another Headrace that has it as its `worker.secret_file`: its engines are sent jobs of token ids), `headers` (a table), `ca_file`, `proxy`, `http2` (`auto`, `off`, `always`), `connect_timeout`, `head_timeout` (of a stream), `whole_timeout` (of an answer in one piece, and of an event where only comments come), `idle_timeout`, `max_in_flight`, `queue`, `queue_wait`, `idle_connections`, `load_every` (how often a server of kind `vllm`, `sglang` or `llamacpp` is asked how busy it is: `\"1s\"` unless given, `\"0s\"` for never), `kv_events` and `kv_replay` (addresses such as `\"tcp://10.0.0.7:5557\"` at which a server of kind `vllm` or `sglang` publishes what it does to its prefix cache, and tells it again: its models are then chosen by what is cached there), `abandoned` (what becomes of an answer whose client goes away: `abort`, or `drain` to learn its usage), `responses` (how `/v1/responses` is asked for: as a chat, `translate`, the default; or in itself, `pass`, at servers that speak it, where all targets of a model do).",
    ),
    field(
        "engine.threads",
        THREADS,
        "",
        "Threads that compute, shared by all models; a model's own `threads` bounds what it uses of them. By default, the processors that the process may use.",
    ),
    field(
        "engine.device",
        Kind::Choice(DEVICES),
        "\"cpu\"",
        "What computes models: the processors, or the first NVIDIA GPU, in bf16 (of a program that was built with `--features cuda`; docs/gpu.md). There `kv_memory` is the GPU's, and by default all that the weights leave.",
    ),
    field(
        "engine.isa",
        Kind::Choice(&["scalar", "neon", "avx2", "avx512"]),
        "",
        "Instruction set, part of a model's numerics. By default the best of this machine. `HEADRACE_ISA` sets it too.",
    ),
    field(
        "engine.compute",
        Kind::Choice(MODES),
        "\"auto\"",
        "How activations are held, part of a model's numerics: `exact` in f32; `fast` in int8 before quantized weights and in bf16 before bf16 ones. `auto` is `fast` for models whose weights are quantized, `exact` for others.",
    ),
    field(
        "engine.kv_type",
        Kind::Choice(KV_TYPES),
        "",
        "How keys and values are held, part of a model's numerics. By default `f32` in compute mode `exact`, `f16` in `fast`.",
    ),
    field(
        "engine.quantize",
        Kind::Choice(QUANTIZED),
        "\"none\"",
        "What f32, f16 and bf16 weights are quantized to at load. Rows that 256 does not divide take a type with blocks of 32 instead of a K type; the output projection stays at six bits or more.",
    ),
    field(
        "engine.kv_memory",
        bytes(64 * KIB, 64 * TIB),
        "",
        "Memory of each model's KV cache. By default, up to half of what the memory limit of the process leaves beside the weights, and no more than `max_running` full contexts.",
    ),
    field(
        "engine.max_positions",
        count(16, 1 << 24),
        "",
        "Bound on the context of every model, in tokens. By default, each model's own.",
    ),
    field("engine.max_choices", count(1, 4096), "128", "Most answers to one prompt (`n`)."),
    field(
        "engine.runtime_threads",
        THREADS,
        "",
        "Threads for sockets and requests. By default half of the processors, at least 2.",
    ),
    field(
        "scheduler.step_tokens",
        count(1, 65_536),
        "128",
        "Tokens computed in one step, prefill and decode together.",
    ),
    field("scheduler.max_running", count(1, 65_536), "64", "Sequences that are computed at a time."),
    field(
        "scheduler.max_chunk",
        count(1, 65_536),
        "512",
        "Tokens of one sequence computed in one step; never more than `scheduler.step_tokens`.",
    ),
    field(
        "scheduler.max_score_chunk",
        count(1, 65_536),
        "32",
        "The same where log-probabilities of every position are wanted.",
    ),
    field(
        "scheduler.queue_sequences",
        count(1, 1 << 20),
        "1024",
        "Sequences that may wait; more are answered with 503 and `Retry-After`.",
    ),
    field("scheduler.queue_tokens", count(1, 1 << 40), "1048576", "Prompt tokens that may wait."),
    field(
        "scheduler.max_bypass",
        count(0, 1 << 20),
        "8",
        "How many sequences may start before one that came first and does not fit yet.",
    ),
    field(
        "scheduler.dedup_tokens",
        count(0, 1 << 20),
        "32",
        "A cold prefix this long that is being computed is waited for, not computed twice.",
    ),
    field(
        "scheduler.prefix_cache",
        Kind::Flag,
        "true",
        "Whether computed prefixes are kept for later calls of the same tenant.",
    ),
    field(
        "scheduler.prefix_lifetime",
        seconds(1, 365 * DAY),
        "",
        "How long a cached prefix that no call uses stays findable [default: until its room is needed].",
    ),
    field(
        "scheduler.pinned_percent",
        count(0, 100),
        "50",
        "Of the KV blocks of a model, the hundredths that are used up last because calls wish them kept (`cache_control`).",
    ),
    field("scheduler.pinned_percent_of_one", count(0, 100), "25", "The same of one organisation."),
    field(
        "scheduler.keep_aborted",
        Kind::Flag,
        "false",
        "Whether what a call had computed when its client went away stays in the prefix cache.",
    ),
    field(
        "scheduler.weights",
        Kind::Tables,
        "",
        "Tables with `org` and `weight` (1 to 1000): an organisation's share of an engine relative to others, which have 1.",
    ),
    field(
        "prices",
        Kind::Tables,
        "",
        "Tables with `model`, `input`, `output` and, optionally, `cached_input`, `cache_write` (OpenAI's, and Anthropic's for 5 minutes), `cache_write_1h`, `reasoning` (dollars, `\"0.10\"`; where one is absent its tokens cost what `input` or `output` does, those of `cache_write_1h` what `cache_write` does), `per` (`\"million\"` tokens, the default, or `\"thousand\"`) and `from` (a UTC date, `\"2026-11-05\"`). Further tables of a model may have `above = 272000` (all tokens of calls of more prompt tokens than that) and `tier` (`flex`, `batch`, `priority`: the class of service that the upstream says it billed, or else the caller asked for); where none fits, the table without them applies. A hold covers the dearest that could apply.",
    ),
    field(
        "costs",
        Kind::Tables,
        "",
        "Tables with `upstream`, `model` (its name there) and whatever else `[[prices]]` takes. Each try of a call is costed by the usage that its upstream reports, or by the estimate where it reports none, also when it came to nothing. Shown to operators by `headrace trace` and `headrace margin`, to no caller.",
    ),
    field("aliases", Kind::Names, "", "A table of names: alias to the name of a served model."),
    field(
        "routes",
        Kind::Tables,
        "",
        "Tables with `name`, `to` (models with their shares: `{ model = \"a\", weight = 95 }`, or a name alone; with `canary`, `true` or a table, the model gets no more calls once it is worse than those without: where the part of its calls that fail is greater by more than `errors` (0.01), or that of calls whose content is refused by more than `refusals` (0.02), or the 95th percentile of its times to the first token more than `first_token` (1.5) times as long, over a `window` (`\"30m\"`) with at least `min_calls` (40) of its own), and, optionally, `sticky` (what stays with a model: `none`, `key` (the default), `user` or `conversation`), `seed` (another number makes every choice anew) and `fallbacks`: lists of models that answer instead, before anything of an answer has gone out, where one fails with `context_too_long`, `overloaded` (a 429 of its server, too), `failed` or `content_refused`. `shadow`, and `retires` with what belongs to it, as of `models`, come before those of the model that answers.",
    ),
    field("limits.key.requests_per_minute", RATE, "", "Requests a minute of a new key."),
    field(
        "limits.key.tokens_per_minute",
        LONG_RATE,
        "",
        "Tokens a minute of a new key, input and output together.",
    ),
    field("limits.key.concurrency", RATE, "", "Requests in flight of a new key."),
    field("limits.project.requests_per_minute", RATE, "", "Requests a minute of a new project."),
    field("limits.project.tokens_per_minute", LONG_RATE, "", "Tokens a minute of a new project."),
    field("limits.project.concurrency", RATE, "", "Requests in flight of a new project."),
    field("limits.org.requests_per_minute", RATE, "", "Requests a minute of a new organisation."),
    field("limits.org.tokens_per_minute", LONG_RATE, "", "Tokens a minute of a new organisation."),
    field("limits.org.concurrency", RATE, "", "Requests in flight of a new organisation."),
    field(
        "moderation.rules",
        Kind::Tables,
        "",
        "Tables with `name`, `kind` (`\"words\"` or `\"regex\"`), `words` or `pattern`, `action` (`\"block\"` or `\"flag\"`) and, optionally, `whole_word`, `message`. What they see and what not: [content_policy](errors.md#content_policy).",
    ),
    field(
        "gateway.default_max_tokens",
        count(1, 1 << 20),
        "1024",
        "Length of an answer whose caller names none. A model's `default_max_tokens`, or else the `max_new_tokens` of its generation_config.json, comes first; `config check` shows which it is.",
    ),
    field(
        "gateway.hold_lifetime",
        seconds(1, DAY),
        "\"1h\"",
        "How long a hold lives if nobody settles it. A call, waiting included, is ended up to a minute before.",
    ),
    field(
        "gateway.stall_timeout",
        seconds(1, HOUR),
        "\"30s\"",
        "How long a reader may take nothing while something waits for it, until the last byte of its answer.",
    ),
    field(
        "gateway.delivery_buffer",
        bytes(4 * KIB, 64 * MIB),
        "\"256KiB\"",
        "Bytes of an answer that wait for a slow reader, and as many again in the engine; then the call stands still until it \
         reads.",
    ),
    field(
        "gateway.first_event_wait",
        seconds(0, HOUR),
        "\"10s\"",
        "How long a stream's status line waits for its first event.",
    ),
    field(
        "gateway.keep_alive",
        seconds(1, HOUR),
        "\"15s\"",
        "How often a silent stream gets a sign of life.",
    ),
    field(
        "gateway.render_inline",
        bytes(0, MIB),
        "\"32KiB\"",
        "Requests longer than this are read and rendered off the event loop; those that only pass through, from 16 times as much.",
    ),
    field(
        "gateway.max_render_bytes_at_once",
        bytes(MIB, TIB),
        "\"16MiB\"",
        "Bytes of such requests that are read and rendered at once; half of them for one key.",
    ),
    field(
        "gateway.max_call_memory",
        bytes(MIB, TIB),
        "\"64MiB\"",
        "Memory that one call may take for its prompt and answer, by an upper estimate.",
    ),
    field(
        "gateway.max_key_memory",
        bytes(MIB, TIB),
        "\"256MiB\"",
        "Memory that all calls of one key may take at once, until their last bytes are read.",
    ),
    field("gateway.max_memory", bytes(MIB, TIB), "\"2GiB\"", "The same for all calls together."),
    field(
        "gateway.alias_header",
        Kind::Flag,
        "true",
        "Answers to calls by an alias or a route say where it led: `x-headrace-alias: NAME -> MODEL`.",
    ),
    field("wire.max_json_depth", count(1, 512), "64", "Objects and arrays inside each other."),
    field("wire.max_messages", ITEMS, "4096", "Messages of a conversation."),
    field("wire.max_content_parts", ITEMS, "1024", "Parts of one message."),
    field("wire.max_tool_calls", ITEMS, "128", "Tool calls of one assistant message."),
    field("wire.max_tools", ITEMS, "128", "Tools of a call."),
    field(
        "wire.max_free_form_values",
        ITEMS,
        "50000",
        "Values of all tool schemas and arguments of a request together.",
    ),
    field("wire.max_prompts", ITEMS, "128", "Prompts of one completions call."),
    field(
        "wire.max_prompt_ids",
        count(1, 1 << 24),
        "131072",
        "Token ids of one prompt that is given as ids.",
    ),
    field(
        "wire.max_form_text_bytes",
        ITEMS,
        "131072",
        "Bytes of one text that an answer is held to: a pattern, a grammar, a choice.",
    ),
    field(
        "wire.max_form_choices",
        ITEMS,
        "4096",
        "Texts of which an answer must be one, and triggers of structural tags.",
    ),
    field("wire.max_form_tags", ITEMS, "128", "Structural tags."),
    field(
        "wire.max_stop_strings",
        ITEMS_OR_NONE,
        "16",
        "Stop strings; OpenAI's dialect takes no more than 4 whatever this says.",
    ),
    field("wire.max_stop_bytes", ITEMS, "1024", "Bytes of one stop string."),
    field("wire.max_stop_token_ids", ITEMS_OR_NONE, "256", "Stop token ids."),
    field("wire.max_n", ITEMS, "128", "Answers to one prompt."),
    field("wire.max_choices", ITEMS, "128", "Prompts times `n`."),
    field("wire.max_logit_bias", ITEMS_OR_NONE, "1024", "Tokens with a bias."),
    field(
        "wire.max_logprobs",
        Kind::Count { least: 0, most: 20 },
        "20",
        "Alternatives with each token's log-probability.",
    ),
    field("wire.max_output_tokens_per_request", count(1, 1 << 24), "1048576", "Largest `max_tokens`."),
    field("wire.max_label_bytes", ITEMS, "256", "Bytes of a short string: a model's name, a user's, an id."),
    field("wire.max_metadata_pairs", ITEMS_OR_NONE, "16", "Pairs of `metadata`."),
    field(
        "responses.skip_hosted_tools",
        Kind::Flag,
        "true",
        "Whether tools that run at OpenAI's (web search, files, MCP, ...) are left out of a Responses call and named in its answer; otherwise they are refused.",
    ),
    field(
        "objects.retention",
        seconds(60, 3650 * DAY),
        "\"30d\"",
        "How long responses, and conversations to which nothing is added, are kept.",
    ),
    field("objects.max_object", bytes(KIB, GIB), "\"16MiB\"", "The most that one stored response may take."),
    field(
        "objects.max_responses_per_project",
        count(1, 1 << 40),
        "100000",
        "Stored responses of a project; the oldest go first.",
    ),
    field("objects.max_response_bytes_per_project", bytes(KIB, TIB), "\"1GiB\"", "The same in bytes."),
    field(
        "objects.max_conversations_per_project",
        count(1, 1 << 40),
        "10000",
        "Conversations of a project; further ones are refused.",
    ),
    field(
        "objects.max_items_per_conversation",
        count(1, 1 << 20),
        "10000",
        "Items of a conversation; further ones are refused.",
    ),
    field(
        "objects.max_turns",
        count(1, 1 << 20),
        "1000",
        "Responses that one may go on from, one after the other.",
    ),
    field("objects.max_history", bytes(KIB, GIB), "\"32MiB\"", "Bytes of the responses, or of the conversation, that one call continues."),
    field("objects.max_file", bytes(KIB, TIB), "\"512MiB\"", "The most that one file may have."),
    field("objects.max_files_per_project", count(1, 1 << 40), "10000", "Files and parts of a project."),
    field("objects.max_file_bytes_per_project", bytes(KIB, TIB), "\"10GiB\"", "The same in bytes."),
    field("objects.max_open_batches_per_project", count(1, 1 << 20), "100", "Batches that have not ended."),
    field("objects.max_requests_per_batch", count(1, 1 << 20), "50000", "Requests of a batch."),
    field(
        "traces.max_records",
        count(1, 1 << 40),
        "1000000",
        "Most traces kept (about 2 kB each); the oldest go first. Refusals have a quarter of it.",
    ),
    field(
        "traces.max_age",
        seconds(0, 3650 * DAY),
        "\"30d\"",
        "Older traces are removed; `\"0s\"`: whatever their age, only `traces.max_records` counts.",
    ),
    field(
        "traces.queue_records",
        count(1, 1 << 20),
        "8192",
        "Traces of calls that ran that may wait to be stored; more are dropped and counted.",
    ),
    field(
        "traces.recent_records",
        count(0, 1 << 20),
        "1024",
        "Traces kept in memory for reading right after the answer.",
    ),
    field(
        "traces.strangers_per_second",
        count(0, 1 << 20),
        "10",
        "Refusals of callers without a good key that are stored in a second; all are counted.",
    ),
    field(
        "first_start.credit",
        Kind::Dollars,
        "\"10\"",
        "Promotional credit of organisation `default`, in dollars.",
    ),
    field(
        "first_start.key_file",
        Kind::Path,
        "",
        "A file with the first API key (`sk-…`). `HEADRACE_BOOTSTRAP_KEY` gives it too. By default one is made: `up` shows it once, `serve` leaves it in the file `first-key` in the data directory.",
    ),
    field(
        "worker.secret_file",
        Kind::Path,
        "",
        "A file with 32 or more characters that nobody can guess. Whoever signs with the same ones may send jobs; such an upstream has them in its `secret_file`.",
    ),
    field(
        "secrets.key_hash_file",
        Kind::Path,
        "",
        "A file with 64 hexadecimal digits: what key hashes are made with. By default `secrets/key-hash` in the data directory, made at the first start. Without it no key works.",
    ),
    field(
        "secrets.cache_salt_file",
        Kind::Path,
        "",
        "The same for what separates the prefix caches of tenants; by default `secrets/cache-salt`.",
    ),
    field(
        "reload.watch",
        seconds(0, HOUR),
        "\"2s\"",
        "How often the configuration file and the certificate's files are looked at for changes; `\"0s\"`: never.",
    ),
    field(
        "log.filter",
        Kind::Text,
        "\"warn\"",
        "What is logged: a level (off, error, warn, info, debug, trace), or directives by room such as `warn,headrace_edge=debug`. `headrace_calls=info` logs a line for each call and each refusal when it is over. `HEADRACE_LOG` sets it too.",
    ),
    field(
        "log.format",
        Kind::Choice(&["text", "json"]),
        "\"text\"",
        "`json`: each line is an object. Colours are for terminals alone.",
    ),
];

/// The setting of that name.
pub(crate) fn find(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.path == path)
}
