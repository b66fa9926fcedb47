//! The limits on the content of one request, in one place, with units in the names.
//! Knows no callers: the limits of tenants are elsewhere.

use serde::{Deserialize, Serialize};

/// Limits on the content of a request. A request beyond a limit is refused with the parameter's name before more of it
/// is read. Memory and time therefore depend on the limits, and never on a number in the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WireLimits {
    /// Nesting depth of objects and arrays, including the body itself. Never more than 512.
    pub max_json_depth: usize,
    /// Messages of a conversation.
    pub max_messages: usize,
    /// Parts (or blocks) of one message.
    pub max_content_parts: usize,
    /// Tool calls of one assistant message.
    pub max_tool_calls: usize,
    /// Tools of a call.
    pub max_tools: usize,
    /// Values of all tool schemas and tool-call arguments of a request together: objects, arrays and scalars.
    pub max_free_form_values: usize,
    /// Prompts of one completions call.
    pub max_prompts: usize,
    /// Texts of one embeddings call, and documents of one reranking.
    pub max_encode_texts: usize,
    /// Tokens of all texts of one such call together.
    pub max_encode_tokens: u32,
    /// Token ids of one prompt that is given as ids.
    pub max_prompt_ids: usize,
    /// Bytes of one text that constrains an answer: a pattern, a grammar, a choice.
    pub max_form_text_bytes: usize,
    /// Alternatives that an answer must choose from, and the triggers of structural tags.
    pub max_form_choices: usize,
    /// Structural tags.
    pub max_form_tags: usize,
    /// Stop strings. OpenAI's dialect accepts at most 4 even if this limit is higher.
    pub max_stop_strings: usize,
    /// Bytes of one stop string.
    pub max_stop_bytes: usize,
    /// Stop token ids.
    pub max_stop_token_ids: usize,
    /// Answers per prompt.
    pub max_n: u32,
    /// Prompts × n.
    pub max_choices: u32,
    /// Tokens with a bias.
    pub max_logit_bias: usize,
    /// Alternatives with each token's log-probability.
    pub max_logprobs: u8,
    /// Largest `max_tokens`. The model's context window is checked later.
    pub max_output_tokens_per_request: u32,
    /// Bytes of a short string: the name of a model or a user, an id, a salt.
    pub max_label_bytes: usize,
    /// Pairs of `metadata`.
    pub max_metadata_pairs: usize,
    /// Whether tools that run at OpenAI are left out of a Responses call and named in its answer. Otherwise they are
    /// refused.
    pub skip_hosted_tools: bool,
}

impl Default for WireLimits {
    fn default() -> Self {
        Self {
            max_json_depth: 64,
            max_messages: 4_096,
            max_content_parts: 1_024,
            max_tool_calls: 128,
            max_tools: 128,
            max_free_form_values: 50_000,
            max_prompts: 128,
            max_encode_texts: 2_048,
            max_encode_tokens: 300_000,
            max_prompt_ids: 131_072,
            max_form_text_bytes: 131_072,
            max_form_choices: 4_096,
            max_form_tags: 128,
            max_stop_strings: 16,
            max_stop_bytes: 1_024,
            max_stop_token_ids: 256,
            max_n: 128,
            max_choices: 128,
            max_logit_bias: 1_024,
            max_logprobs: 20,
            max_output_tokens_per_request: 1_048_576,
            max_label_bytes: 256,
            max_metadata_pairs: 16,
            skip_hosted_tools: true,
        }
    }
}
