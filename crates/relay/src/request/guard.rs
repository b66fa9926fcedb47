//! Tables of fields in relayed bodies that cost extra, that hand work to another party, or that a server would fetch.
//! Also the rule against second spellings of a field. Knows no server and no price.

use headrace_domain::{Code, ConcernKind, Endpoint, FieldConcern};

use headrace_wire::common::refused::AcceptedValue;
use headrace_wire::common::refused::AcceptedValue::{Bool, Empty, Nothing, Number, Only, Words};
use headrace_wire::fault::{FieldFault, Read};

/// Parameters of some servers that would override decisions of the gateway. They concern the model and its price, the
/// answer's length, the priority, the source of cached prefixes, code and templates. They are refused unless their
/// value requests nothing.
pub(crate) const DECIDED_HERE: &[(&str, AcceptedValue, &str)] = &[
    ("fallbacks", Empty, ONE_MODEL),
    ("models", Empty, ONE_MODEL),
    ("max_new_tokens", Nothing, ONE_BOUND),
    ("n_predict", Nothing, ONE_BOUND),
    ("n_cmpl", Nothing, "use `n`"),
    ("priority", Number(0.0), "a call's priority comes from its key; leave it out"),
    ("kv_transfer_params", Nothing, INSIDE),
    ("ec_transfer_params", Nothing, INSIDE),
    ("bootstrap_host", Nothing, INSIDE),
    ("bootstrap_port", Nothing, INSIDE),
    ("bootstrap_room", Nothing, INSIDE),
    ("logits_processors", Nothing, CODE),
    ("custom_logit_processor", Nothing, CODE),
    ("custom_params", Nothing, CODE),
    ("vllm_xargs", Nothing, CODE),
    ("chat_template", Nothing, TEMPLATE),
    ("chat_template_content_format", Nothing, TEMPLATE),
    ("mm_processor_kwargs", Nothing, MEDIA),
    ("media_io_kwargs", Nothing, MEDIA),
    ("request_id", Nothing, ONE_ID),
    ("rid", Nothing, ONE_ID),
    ("lora", Nothing, ADAPTER),
    ("lora_path", Nothing, ADAPTER),
    ("lora_request", Nothing, ADAPTER),
    ("data_parallel_rank", Nothing, INSIDE),
    ("routed_dp_rank", Nothing, INSIDE),
    ("id_slot", Nothing, INSIDE),
    ("slot_id", Nothing, INSIDE),
    ("session_params", Nothing, INSIDE),
    ("return_hidden_states", Bool(false), "hidden states are not given out; leave it out"),
    ("input_embeds", Nothing, TENSORS_UNREAD),
    ("prompt_embeds", Nothing, TENSORS_UNREAD),
];

const ONE_MODEL: &str =
    "a call asks for one model; which others may answer in its place is up to the operator";
const ONE_BOUND: &str = "use `max_tokens`: a second bound would undo it";
const INSIDE: &str = "where a server's cached prefixes come from is up to the operator; leave it out";

const CODE: &str = "code and its arguments are not taken from a request; use `logit_bias`";
const TEMPLATE: &str = "templates come from the model alone; leave it out";
const MEDIA: &str = "how media are read is up to the operator; leave it out";
const ONE_ID: &str = "the gateway gives a call its id; send `traceparent` to find it by yours";
const ADAPTER: &str = "ask for the adapter by its model name";
const TENSORS_UNREAD: &str =
    "tensors are not taken from a request, as servers unpickle them; send text or token ids";

/// A field, its endpoint (if only one has the field), the values that request nothing, and the extra that all other
/// values request.
type Row = (&'static str, Option<Endpoint>, AcceptedValue, &'static str);

/// Top-level fields that may cost more than tokens, or that hand work to another party.
const EXTRAS: &[Row] = &[
    ("anthropic_beta", None, Empty, "extra_body"),
    ("audio", None, Nothing, "audio"),
    ("background", None, Bool(false), "background"),
    ("betas", None, Empty, "extra_body"),
    ("billing_policy", None, Nothing, "billing_policy"),
    ("compaction", None, Nothing, "compaction"),
    ("container", None, Nothing, "container"),
    ("enable_search", None, Bool(false), "web_search"),
    ("extra_body", None, Nothing, "extra_body"),
    ("fallback_credit_token", None, Nothing, "billing_policy"),
    ("inference_geo", None, Nothing, GEO),
    ("mcp_servers", None, Empty, "mcp"),
    ("modalities", None, Only("text"), "audio"),
    ("plugins", None, Empty, "plugins"),
    ("prediction", None, Nothing, "prediction"),
    ("prompt", Some(Endpoint::Responses), Nothing, "prompt"),
    ("provider", None, Nothing, "provider"),
    ("search_parameters", None, Nothing, "web_search"),
    ("service_tier", None, Words(&["auto", "default", "standard", "standard_only", "flex"]), TIER),
    ("speed", None, Words(&["standard"]), "speed"),
    ("store", Some(Endpoint::ChatCompletions), Bool(false), "store"),
    ("thread", None, Nothing, "thread"),
    ("web_search", None, Bool(false), "web_search"),
    ("web_search_options", None, Nothing, "web_search"),
];

/// The extra whose value is a region.
pub const GEO: &str = "inference_geo";
/// The extra whose value is a class of service.
pub const TIER: &str = "service_tier";
/// The extra for tools that are in no table.
const UNKNOWN_TOOLS: &str = "unknown_tools";

/// Values of the header `anthropic-beta` that change prices, by their prefix.
const BETAS: &[(&str, &str)] = &[("context-1m", "context_1m")];

/// Every name that `allow_unpriced` may list.
pub const ALLOWABLE: &[&str] = &[
    "audio",
    "background",
    "billing_policy",
    "code_execution",
    "compaction",
    "computer_use",
    "container",
    "context_1m",
    "extra_body",
    "file_search",
    "image_generation",
    GEO,
    "mcp",
    "plugins",
    "prediction",
    "prompt",
    "provider",
    TIER,
    "shell",
    "speed",
    "store",
    "thread",
    "tool_search",
    UNKNOWN_TOOLS,
    "web_fetch",
    "web_search",
];

/// Types of tools that the caller runs.
const CLIENT_TOOLS: &[&str] = &["apply_patch", "custom", "function", "local_shell", "namespace"];
/// Prefixes of dated tool types that the caller runs (Anthropic).
const DATED_CLIENT_TOOLS: &[&str] = &["bash_2", "computer_2", "memory_2", "text_editor_2"];
/// Prefixes of tool types that the provider runs, each with its extra.
const HOSTED_TOOLS: &[(&str, &str)] = &[
    ("code_execution", "code_execution"),
    ("code_interpreter", "code_execution"),
    ("computer", "computer_use"),
    ("file_search", "file_search"),
    ("image_generation", "image_generation"),
    ("mcp", "mcp"),
    ("shell", "shell"),
    ("tool_search", "tool_search"),
    ("web_fetch", "web_fetch"),
    ("web_search", "web_search"),
];

/// The row of a top-level field that may cost extra.
pub(super) fn extra(endpoint: Endpoint, key: &str) -> Option<(&'static AcceptedValue, &'static str)> {
    let row = EXTRAS.iter().find(|(name, only, ..)| *name == key && only.is_none_or(|only| only == endpoint));
    row.map(|(_, _, accept, name)| (accept, *name))
}

/// Returns the concern for a tool. `None` if the caller runs the tool.
pub(super) fn tool(at: usize, kind: &str, most: Option<u32>) -> Option<FieldConcern> {
    if CLIENT_TOOLS.contains(&kind) || DATED_CLIENT_TOOLS.iter().any(|dated| kind.starts_with(dated)) {
        return None;
    }
    let hosted = HOSTED_TOOLS.iter().find(|(beginning, _)| kind.starts_with(beginning));
    let name = hosted.map_or(UNKNOWN_TOOLS, |(_, name)| name);
    // Anthropic's type has a date of eight digits, and Anthropic reports the searches. OpenAI reports none, so its tool
    // has no price.
    let date = kind.strip_prefix("web_search_").filter(|date| date.len() == 8);
    let is_counted = date.is_some_and(|date| date.bytes().all(|byte| byte.is_ascii_digit()));
    let ask =
        if is_counted { ConcernKind::WebSearch { most } } else { ConcernKind::Extra { name, value: None } };
    Some(FieldConcern { at, ask })
}

/// Returns the extras that values of the header `anthropic-beta` request.
pub fn extras_of_betas(value: &str) -> impl Iterator<Item = &'static str> {
    let asks = |beta: &str, beginning: &str| {
        beta.get(..beginning.len()).is_some_and(|head| head.eq_ignore_ascii_case(beginning))
    };
    let betas = value.split(',').map(str::trim);
    betas.filter_map(move |beta| Some(BETAS.iter().find(|(beginning, _)| asks(beta, beginning))?.1))
}

/// Types of parts that carry tensors, which servers unpickle.
pub(super) const TENSORS: &[&str] = &["audio_embeds", "image_embeds", "prompt_embeds", "video_embeds"];

/// Whether a field with this name holds an address that a server would fetch.
pub(super) fn is_address(key: &str) -> bool {
    const NAMES: &[&str] =
        &["audio", "audios", "image", "images", "uri", "uris", "url", "urls", "video", "videos"];
    const ENDS: &[&str] = &["_uri", "_uris", "_url", "_urls"];
    NAMES.contains(&key) || ENDS.iter().any(|end| key.ends_with(end))
}

/// Fields of parts that always hold texts, even if the text begins like an address.
pub(super) const TEXTS: &[&str] = &[
    "arguments",
    "content",
    "context",
    "description",
    "name",
    "reasoning",
    "reasoning_content",
    "refusal",
    "summary",
    "text",
    "thinking",
    "title",
];

/// The kinds of strings that an unknown field may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StringsHold {
    /// Texts. Nested fields with the name of an address field hold addresses.
    Texts,
    /// Addresses.
    Addresses,
    /// Texts. A text that looks like an address counts as one.
    Both,
}

impl StringsHold {
    /// The kind of a field, by its name alone.
    pub(super) fn by_name(key: &str) -> Self {
        if is_address(key) { Self::Addresses } else { Self::Texts }
    }

    /// The kind of a field of a part. A server may fetch anything there that looks like an address.
    pub(super) fn in_part(key: &str) -> Self {
        match Self::by_name(key) {
            Self::Texts if !TEXTS.contains(&key) => Self::Both,
            holds => holds,
        }
    }
}

/// Whether a text begins like an address, regardless of its field's name.
pub(super) fn looks_like_address(text: &str) -> bool {
    const SCHEMES: &[&str] = &["file:", "ftp:", "gopher:", "http:", "https:", "s3:", "gs:", "unix:"];
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c.is_control());
    SCHEMES
        .iter()
        .any(|scheme| text.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme)))
}

/// Whether an address carries its own data.
pub(super) fn is_data(url: &str) -> bool {
    url.trim_start().get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
}

/// Top-level fields that endpoints of both dialects have, beside those of the tables.
pub(super) const TOP: &[&str] = &[
    "best_of",
    "cache_control",
    "cache_salt",
    "chat_template_kwargs",
    "context_management",
    "conversation",
    "documents",
    "echo",
    "extra_key",
    "frequency_penalty",
    "function_call",
    "functions",
    "headrace",
    "include",
    "input",
    "instructions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_tool_calls",
    "messages",
    "metadata",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "output_config",
    "parallel_tool_calls",
    "presence_penalty",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "query",
    "reasoning",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "stop",
    "stop_sequences",
    "store",
    "stream",
    "stream_options",
    "structured_outputs",
    "suffix",
    "system",
    "temperature",
    "text",
    "thinking",
    "timeout",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
    "verbosity",
];
/// Fields of messages, items and parts that this side reads.
pub(super) const MESSAGE: &[&str] = &[
    "arguments",
    "audio",
    "audio_url",
    "call_id",
    "content",
    "data",
    "encrypted_content",
    "file",
    "file_data",
    "file_id",
    "file_url",
    "function",
    "function_call",
    "id",
    "image",
    "image_url",
    "input",
    "input_audio",
    "media_type",
    "name",
    "output",
    "reasoning",
    "reasoning_content",
    "refusal",
    "role",
    "source",
    "summary",
    "text",
    "thinking",
    "tool_call_id",
    "tool_calls",
    "tool_use_id",
    "tools",
    "type",
    "url",
    "video",
    "video_url",
];
/// Fields of tools, response formats and tool choices that this side reads.
pub(super) const TOOL: &[&str] = &[
    "custom",
    "description",
    "format",
    "function",
    "input_schema",
    "json_schema",
    "max_uses",
    "name",
    "parameters",
    "schema",
    "server_url",
    "strict",
    "tools",
    "type",
    "url",
];

/// Refuses a second spelling of a known field: a key that differs only in case, because Go's JSON reader folds case.
pub(super) fn spelled_once(key: &str, known: &[&str]) -> Read<()> {
    match folded(key) {
        Some(folded) if known.contains(&folded.as_str()) => Err(second_spelling(&folded)),
        _ => Ok(()),
    }
}

fn second_spelling(name: &str) -> FieldFault {
    let message = format!(
        "it differs from `{name}` in case alone, and some servers read both as one field; write `{name}`"
    );
    FieldFault::new(Code::UnsupportedParameter, message)
}

/// Like [`spelled_once`], for a top-level field.
pub(super) fn spelled_once_at_top(key: &str) -> Read<()> {
    let Some(folded) = folded(key) else { return Ok(()) };
    let tables = EXTRAS.iter().map(|row| row.0).chain(DECIDED_HERE.iter().map(|row| row.0));
    match tables.chain(TOP.iter().copied()).any(|name| name == folded) {
        true => Err(second_spelling(&folded)),
        false => Ok(()),
    }
}

/// Returns the key in lower case. `None` if it is in lower case already. Two letters beyond ASCII fold as well: the
/// long `s` becomes `s`, and the Kelvin sign becomes `k`.
pub(super) fn folded(key: &str) -> Option<String> {
    if key.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        return None;
    }
    let small = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    let folded: String = key.chars().map(small).collect();
    (folded != key).then_some(folded)
}
