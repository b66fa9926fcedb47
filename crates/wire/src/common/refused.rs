//! Parameters that are known but not honoured. Harmless ones are accepted. The others are refused unless they request
//! the default behaviour. The parameters are in tables, so that the accepted values can be read at a glance.

use headrace_domain::{CacheLife, Code};

use crate::common::params::short;
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The values that are accepted for a parameter.
pub enum AcceptedValue {
    /// Any short string. It labels the call and changes nothing in the answer.
    Label,
    /// A small object of strings. It labels the call, too.
    Labels,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A list that holds this one word.
    Only(&'static str),
    /// This boolean.
    Bool(bool),
    /// This number.
    Number(f64),
    /// The empty string, list or object.
    Empty,
    /// Any value. It may help the server that answers, and changes no answer.
    Hint,
    /// Only null.
    Nothing,
}

use AcceptedValue::{Bool, Empty, Hint, Label, Labels, Nothing, Number, Only, Words};

/// A parameter, the values that request nothing, and the reason why all other values are refused.
pub type Row = (&'static str, AcceptedValue, &'static str);

const GUIDED: &str = "use `structured_outputs`";
const TEMPLATE: &str =
    "templates and their switches come from the model alone and cannot be set by a request; leave it out";
const MEDIA: &str = "only text is supported; leave it out";
const LATER: &str = "it is not supported; leave it out";
const CHAT_ALONE: &str = "a raw prompt has no template; use `POST /v1/chat/completions`";
const TOOLS: &str = "use `tools` and `tool_choice` instead";

/// Parameters by which a request could bring its own template. Chat, completions and messages refuse them by name.
const TEMPLATES: &[Row] = &[
    ("chat_template", Nothing, TEMPLATE),
    ("chat_template_content_format", Nothing, TEMPLATE),
    ("template", Nothing, TEMPLATE),
    ("documents", Nothing, TEMPLATE),
    ("add_special_tokens", Nothing, TEMPLATE),
];

/// OpenAI's chat and completions.
const OPENAI: &[Row] = &[
    // Prompts are cached by content within a tenant. These parameters have no effect on that.
    ("prompt_cache_key", Label, "it is a hint"),
    ("prompt_cache_options", Hint, "it is a hint"),
    ("metadata", Labels, "it labels the call"),
    ("store", Bool(false), "answers are not stored; leave it out or send false"),
    (
        "prompt_cache_retention",
        Words(&["in_memory", "in-memory", "24h"]),
        "cached prompts stay in memory, no longer than there is room; leave it out",
    ),
    ("reasoning", Nothing, "use `reasoning_effort`"),
    // vLLM's parameters.
    ("guided_json", Nothing, GUIDED),
    ("guided_regex", Nothing, GUIDED),
    ("guided_choice", Nothing, GUIDED),
    ("guided_grammar", Nothing, GUIDED),
    ("guided_decoding_backend", Nothing, "there is one; leave it out"),
    ("guided_whitespace_pattern", Nothing, GUIDED),
    ("structural_tag", Nothing, GUIDED),
    ("logits_processors", Nothing, "code is not taken from a request; use `logit_bias`"),
    ("use_beam_search", Bool(false), LATER),
    ("length_penalty", Number(1.0), LATER),
    ("early_stopping", Bool(false), LATER),
    (
        "include_stop_str_in_output",
        Bool(false),
        "the text from a stop string on is never delivered; leave it out",
    ),
    ("skip_special_tokens", Bool(true), "special tokens are never delivered as text; use `return_token_ids`"),
    ("spaces_between_special_tokens", Bool(true), LATER),
    ("truncate_prompt_tokens", Nothing, "a prompt is never cut; shorten it"),
    ("allowed_token_ids", Nothing, "use `logit_bias`"),
    ("bad_words", Empty, "use `logit_bias`"),
    ("return_tokens_as_token_ids", Bool(false), "use `return_token_ids`"),
    ("priority", Number(0.0), "a call's priority comes from its key; leave it out"),
    ("mm_processor_kwargs", Nothing, MEDIA),
    ("kv_transfer_params", Nothing, LATER),
    ("vllm_xargs", Nothing, LATER),
    ("request_id", Nothing, "a call's id is given here; send `traceparent` to find it by yours"),
    ("max_repetition_pattern_size", Number(0.0), LATER),
    ("min_repetition_pattern_size", Number(0.0), LATER),
    ("repetition_min_count", Number(0.0), LATER),
    ("lora_path", Nothing, "ask for the adapter by its model name"),
];

/// Endpoints of encoders.
const ENCODE: &[Row] = &[
    ("metadata", Labels, "it labels the call"),
    ("stream", Bool(false), "these answers come whole; leave it out"),
    ("add_special_tokens", Bool(true), "texts have the model's usual special tokens around them; send ids"),
    ("truncate_prompt_tokens", Nothing, "a text is never cut; shorten it"),
    ("truncate", Words(&["NONE", "none"]), "a text is never cut; shorten it"),
    ("max_tokens_per_doc", Nothing, "a text is never cut; shorten it"),
    ("max_chunks_per_doc", Nothing, "a text is never cut; shorten it"),
    ("rank_fields", Nothing, "a document is one text; leave it out"),
    ("priority", Number(0.0), "a call's priority comes from its key; leave it out"),
];

/// Parameters of OpenAI's chat alone.
const CHAT: &[Row] = &[
    ("modalities", Only("text"), MEDIA),
    ("audio", Nothing, MEDIA),
    ("functions", Nothing, TOOLS),
    ("function_call", Nothing, TOOLS),
    // It may speed up an answer, but never changes one. This server makes no use of it.
    ("prediction", Hint, "it is a hint"),
    ("web_search_options", Nothing, "there is no web search; pass results in the messages"),
    ("moderation", Nothing, LATER),
    ("echo", Bool(false), "use `POST /v1/completions`"),
];

/// Parameters of OpenAI's completions alone.
const COMPLETIONS: &[Row] = &[
    ("prompt_embeds", Nothing, "send the prompt as text or token ids"),
    ("tools", Empty, CHAT_ALONE),
    ("verbosity", Words(&["medium"]), CHAT_ALONE),
    ("reasoning_effort", Nothing, CHAT_ALONE),
    ("include_reasoning", Bool(true), CHAT_ALONE),
    ("enable_thinking", Nothing, CHAT_ALONE),
    ("thinking_token_budget", Nothing, CHAT_ALONE),
    ("chat_template_kwargs", Nothing, CHAT_ALONE),
];

/// Anthropic's messages.
const MESSAGES: &[Row] = &[
    ("enable_thinking", Nothing, "use `thinking`"),
    ("service_tier", Words(&["auto", "standard_only"]), "there is one tier; leave it out"),
    ("container", Nothing, "there is no code execution; leave it out"),
    ("mcp_servers", Empty, "call tools on your side and send their results"),
    ("compaction", Nothing, "the conversation is taken as sent; shorten it on your side"),
    ("thread", Nothing, "the conversation is taken as sent; send it whole"),
    ("fallbacks", Empty, "which models may answer in a model's place is up to the operator"),
    ("fallback_credit_token", Nothing, LATER),
    ("billing_policy", Nothing, "who pays comes from the key; leave it out"),
    ("user_profile_id", Nothing, "who asks comes from the key; leave it out"),
    ("workspace_id", Nothing, "which project pays comes from the key; leave it out"),
    ("inference_geo", Nothing, LATER),
    ("speed", Words(&["standard"]), LATER),
    ("betas", Empty, LATER),
];

/// OpenAI's responses.
const RESPONSES: &[Row] = &[
    (
        "prompt_cache_retention",
        Words(&["in_memory", "in-memory", "24h"]),
        "cached prompts stay in memory, no longer than there is room; leave it out",
    ),
    ("prompt", Nothing, "prompts are not kept here; send the text"),
    ("context_management", Empty, "turns are compacted when asked to: `POST /v1/responses/compact`"),
    ("moderation", Nothing, "it is not supported; leave it out"),
    ("background_options", Nothing, "it is not supported; leave it out"),
    ("access_programs", Nothing, "it is not supported; leave it out"),
    ("verbosity", Nothing, "use `text.verbosity`"),
    ("response_format", Nothing, "use `text.format`"),
    ("reasoning_effort", Nothing, "use `reasoning.effort`"),
    ("max_tokens", Nothing, "use `max_output_tokens`"),
    ("max_completion_tokens", Nothing, "use `max_output_tokens`"),
    ("messages", Nothing, "use `input`, or `POST /v1/chat/completions`"),
    ("n", Nothing, "an answer is one; send several requests"),
];

/// The endpoints, by the parameters that they know beside the honoured ones.
#[derive(Clone, Copy)]
pub enum KnownParameters {
    /// Chat completions.
    Chat,
    /// Completions of raw prompts.
    Completions,
    /// Anthropic's messages.
    Messages,
    /// The Responses API.
    Responses,
    /// Embeddings, rerankings and scorings.
    Encode,
}

/// Every row of an endpoint.
pub fn rows(known: KnownParameters) -> impl Iterator<Item = &'static Row> {
    let tables: [&[Row]; 3] = match known {
        KnownParameters::Chat => [TEMPLATES, OPENAI, CHAT],
        KnownParameters::Completions => [TEMPLATES, OPENAI, COMPLETIONS],
        KnownParameters::Messages => [TEMPLATES, MESSAGES, &[]],
        KnownParameters::Responses => [RESPONSES, &[], &[]],
        KnownParameters::Encode => [ENCODE, &[], &[]],
    };
    tables.into_iter().flatten()
}

/// Reads a parameter that no endpoint honours. Accepts it if it changes nothing, and otherwise refuses it by name.
pub(crate) fn read(
    known: KnownParameters,
    key: &str,
    r: &mut JsonReader<'_>,
    limits: &WireLimits,
) -> Read<()> {
    let row = rows(known).find(|(name, ..)| *name == key);
    let Some((_, accept, why)) = row else { return Err(FieldFault::unknown()) };
    neutral_or(accept, r, limits, why)
}

/// Like [`neutral`], but refuses a value that requests something, with the reason `why`. Null requests nothing.
pub(crate) fn neutral_or(
    accept: &AcceptedValue,
    r: &mut JsonReader<'_>,
    limits: &WireLimits,
    why: &str,
) -> Read<()> {
    match r.optional(|r| neutral(accept, r, limits))? {
        None | Some(true) => Ok(()),
        Some(false) => Err(FieldFault::new(Code::UnsupportedParameter, why)),
    }
}

/// Whether the value requests only the default behaviour.
pub fn neutral(accept: &AcceptedValue, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<bool> {
    let kind = r.kind()?;
    Ok(match (accept, kind) {
        (Label, _) => {
            short(r, limits)?;
            true
        }
        (Labels, _) => {
            metadata(r, limits)?;
            true
        }
        (Words(words), ValueKind::String) => {
            let word = r.string()?;
            words.contains(&word.as_ref())
        }
        (Only(word), ValueKind::Array) => {
            let (mut count, mut others) = (0, false);
            r.array(2, |r, _| {
                count += 1;
                others |= r.string()? != *word;
                Ok(())
            })?;
            count == 1 && !others
        }
        (Hint, _) => {
            r.skip()?;
            true
        }
        (Bool(neutral), ValueKind::Bool) => r.bool()? == *neutral,
        (Number(neutral), ValueKind::Number) => r.number()?.parse() == Ok(*neutral),
        (Empty, ValueKind::String) => r.string()?.is_empty(),
        (Empty, ValueKind::Array) => {
            // One item settles it. The rest is not read.
            let mut empty = true;
            let read = r.array(usize::MAX, |_, _| {
                empty = false;
                Err(FieldFault::unknown())
            });
            if empty {
                read?;
            }
            empty
        }
        (Empty, ValueKind::Object) => {
            let mut empty = true;
            let read = r.object(|_, _| {
                empty = false;
                Err(FieldFault::unknown())
            });
            if empty {
                read?;
            }
            empty
        }
        _ => false,
    })
}

/// OpenAI's shape: up to 16 pairs of short strings.
fn metadata(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    let mut pairs = 0;
    r.object(|r, _| {
        pairs += 1;
        if pairs > limits.max_metadata_pairs {
            let message = format!("it may have at most {} pairs", limits.max_metadata_pairs);
            return Err(FieldFault::new(Code::ObjectAboveMaxProperties, message).of_parent());
        }
        r.string().map(drop)
    })
}

/// Reads `cache_control` of a tool or block: the lifetime of the cached prefix that ends there. `None` if the value is
/// null.
pub(crate) fn cache_control(r: &mut JsonReader<'_>) -> Read<Option<CacheLife>> {
    r.optional(|r| {
        let (mut typed, mut life) = (false, CacheLife::Minutes);
        r.object(|r, key| match key.as_ref() {
            "type" => match r.string()?.as_ref() {
                "ephemeral" => {
                    typed = true;
                    Ok(())
                }
                _ => Err(FieldFault::new(Code::UnsupportedValue, "it must be `ephemeral`")),
            },
            "ttl" => match r.string()?.as_ref() {
                "5m" => Ok(()),
                "1h" => {
                    life = CacheLife::Hour;
                    Ok(())
                }
                _ => Err(FieldFault::new(Code::UnsupportedValue, "it must be `5m` or `1h`")),
            },
            _ => Err(FieldFault::unknown()),
        })?;
        if typed { Ok(life) } else { Err(FieldFault::missing("type")) }
    })
}
