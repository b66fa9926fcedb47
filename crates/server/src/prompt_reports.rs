//! What a model sees of a call, and what that costs, for the command line and for operators over HTTP. Must not know
//! who asks, nor where the tokenizer assets come from.

use std::borrow::Cow;

use headrace_catalog::ToolsOrder;
use headrace_domain::{
    Call, Clock, Conversation, Endpoint, PriceTier, Prompt, SystemClock, ToolChoice, Usage,
};
use headrace_inspect::{PromptReport, TokenList, Words, prompt_report};
use headrace_ledger::prices::Quote;
use headrace_prompt::RenderOptions;
use headrace_wire::WireLimits;
use serde::Serialize;
use serde_json::{Value, json};

/// Replaces the model's name in a body that has none.
pub const NO_NAME: &str = "unnamed";

/// What a model sees of a call.
#[derive(Serialize)]
pub struct RenderReport {
    /// The model's name.
    pub model: String,
    /// Maximum context, in positions.
    pub context: Option<usize>,
    /// The cost of the prompt. `None` if there is no price.
    pub cost: Option<PromptCost>,
    /// The prompt, token by token.
    #[serde(flatten)]
    pub prompt_report: PromptReport,
}

/// The cost of a prompt, in nano-dollars.
#[derive(Clone, Copy, Serialize)]
pub struct PromptCost {
    /// Cost if no token comes from a cache.
    pub uncached_nano_dollars: i64,
    /// Cost if every token that can be cached comes from a cache.
    pub cached_nano_dollars: i64,
}

/// Parses a body as a server with these limits would: an object, or only its list of messages. Adds required fields
/// that are missing.
///
/// # Errors
/// Returns why the body would be refused.
pub fn read(endpoint: Endpoint, parsed: Value, limits: &WireLimits) -> Result<Call, String> {
    let list = if endpoint == Endpoint::Responses { "input" } else { "messages" };
    let mut whole = match parsed {
        Value::Array(_) => json!({ list: parsed }),
        whole => whole,
    };
    if let Some(members) = whole.as_object_mut() {
        members.entry("model").or_insert_with(|| json!(NO_NAME));
        if endpoint == Endpoint::Messages {
            members.entry("max_tokens").or_insert_with(|| json!(1));
        }
    }
    let call = headrace_wire::parse(endpoint, whole.to_string().as_bytes(), limits);
    call.map_err(|refused| format!("the body would be refused: {refused}"))
}

/// The conversation of a call.
///
/// # Errors
/// Returns an error if the call has no conversation.
pub(crate) fn conversation(call: &Call) -> Result<&Conversation, String> {
    match &call.prompt {
        Prompt::Conversation(conversation) => Ok(conversation),
        _ => Err("there is no conversation in it".to_owned()),
    }
}

/// What a model with these tokenizer assets sees of a call, rendered as a server would render it. `before` is the
/// prompt of an earlier call, which a cache is assumed to hold.
///
/// # Errors
/// Returns why such a call would be refused.
pub fn seen(
    words: &Words,
    order: ToolsOrder,
    call: &Call,
    before: Option<&PromptReport>,
) -> Result<PromptReport, String> {
    let conversation = shown(words, order, conversation(call)?);
    let now = SystemClock::new().now();
    let options = RenderOptions { add_generation_prompt: true, now, reasoning: Some(&call.reasoning) };
    prompt_report(words, &conversation, &options, before).map_err(|error| error.to_string())
}

/// The conversation as the server passes it to the template. Its own engine forbids calls by a grammar, so tools that the
/// caller forbids stay in the prompt if the model marks its calls.
fn shown<'c>(words: &Words, order: ToolsOrder, conversation: &'c Conversation) -> Cow<'c, Conversation> {
    let has_tools = !conversation.tools.is_empty();
    let keeps =
        has_tools && conversation.tool_choice == ToolChoice::None && words.replies.family.marks_calls();
    let sorts = has_tools && order != ToolsOrder::AsSent;
    if !keeps && !sorts {
        return Cow::Borrowed(conversation);
    }
    let mut shown = conversation.clone();
    if keeps {
        shown.tool_choice = ToolChoice::Auto;
    }
    if sorts {
        for tool in &mut shown.tools {
            tool.parameters = tool.parameters.take().map(headrace_wire::json::canonical::value);
        }
    }
    Cow::Owned(shown)
}

/// The cost of a prompt at these prices. `None` without a quote, or if the arithmetic overflows.
pub fn cost(quote: Option<&Quote>, prompt_report: &PromptReport) -> Option<PromptCost> {
    let all = u64::try_from(prompt_report.count).ok()?;
    let cached = u64::try_from(prompt_report.cached_tokens.unwrap_or(prompt_report.cacheable_tokens)).ok()?;
    let rates = quote?.rates(PriceTier::Standard, all);
    let whole = rates.cost(&Usage { input: all, ..Usage::default() }).ok()?;
    let usage = Usage { input: all.saturating_sub(cached), cached_input: cached, ..Usage::default() };
    let cached = rates.cost(&usage).ok()?;
    Some(PromptCost { uncached_nano_dollars: whole.get(), cached_nano_dollars: cached.get() })
}

/// The text of token ids, and each token.
///
/// # Errors
/// Returns the first id that is not in the vocabulary.
pub fn of_ids(words: &Words, ids: &[u32]) -> Result<TokenList, String> {
    if let Some(id) = ids.iter().find(|id| words.tokenizer.token_bytes(**id).is_none()) {
        let last = words.tokenizer.vocab_size().saturating_sub(1);
        return Err(format!("there is no token {id}: the last id is {last}"));
    }
    Ok(TokenList::of_ids(&words.tokenizer, ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_within_the_servers_limits() {
        let usual = WireLimits::default().max_tools;
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let messages = json!([{"role": "user", "content": "hi"}]);
        for (max_tools, count, is_read) in
            [(usual + 1, usual + 1, true), (usual, usual + 1, false), (2, 2, true), (2, 3, false)]
        {
            let limits = WireLimits { max_tools, ..WireLimits::default() };
            let tools: Vec<Value> = (0..count)
                .map(|at| {
                    let mut tool = tool.clone();
                    tool["function"]["name"] = json!(format!("f{at}"));
                    tool
                })
                .collect();
            let body = json!({"messages": messages, "tools": tools});
            let call = read(Endpoint::ChatCompletions, body, &limits);
            assert_eq!(call.is_ok(), is_read, "{count} of {max_tools} tools");
        }
    }
}
