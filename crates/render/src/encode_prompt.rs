//! From a conversation's text to the model's ids: whether it could fit, the ids themselves, and how each failure is
//! rejected. Must not know who computes.

use std::borrow::Cow;

use headrace_call_state::{NotEncoded, Rejection, TokenizerMemory};
use headrace_catalog::{Backend, ServedModel, TokenBackend, ToolsOrder};
use headrace_domain::{Call, Code, Conversation, Endpoint, Prompt, PromptItem, Stage, ToolChoice};
use headrace_engine_api::Capabilities;
use headrace_prompt::RenderOptions;

use crate::tool_call_form::keeps_forbidden_tools;

/// Rejects a prompt that cannot fit the window under any tokenization. It is not rendered, so no time and memory are
/// wasted on it.
///
/// # Errors
/// The prompt is too long. Names the parameter.
pub fn could_fit(model: &ServedModel, call: &Call) -> Result<(), Rejection> {
    let Some(backend) = model.backend.tokens() else { return Ok(()) };
    let window = backend.capabilities.context_window;
    let too_long = |has: String| Err(window_exceeded(prompt_param(call), &has, model));
    let bytes = match (&call.prompt, &backend.template) {
        (Prompt::Conversation(conversation), Some(template)) => template.least_bytes(conversation),
        (Prompt::Conversation(_), None) | (Prompt::Encode(_) | Prompt::Relayed(_), _) => 0,
        (Prompt::Raw(items), _) => {
            let ids =
                items.iter().map(|item| if let PromptItem::Ids(ids) = item { ids.len() } else { 0 }).max();
            if let Some(ids) = ids.filter(|ids| *ids > window as usize) {
                return too_long(format!("{ids} tokens"));
            }
            let text =
                |item: &PromptItem| if let PromptItem::Text(text) = item { text.trim().len() } else { 0 };
            items.iter().map(text).max().unwrap_or(0).saturating_add(suffix_bytes(call))
        }
    };
    let Some(each) = backend.tokenizer.most_bytes_per_token() else { return Ok(()) };
    if bytes <= (window as usize).saturating_mul(each) {
        return Ok(());
    }
    too_long(format!(
        "{bytes} bytes of text, which is more than {} tokens (of {each} bytes at most)",
        bytes / each
    ))
}

/// Rejects parts that a token model cannot see or hear. Names the first one's place.
///
/// # Errors
/// There is such a part.
pub fn text_alone(model: &ServedModel, call: &Call) -> Result<(), Rejection> {
    let (Prompt::Conversation(conversation), Backend::Tokens(_)) = (&call.prompt, &model.backend) else {
        return Ok(());
    };
    let mut parts = conversation.messages.iter().enumerate().filter_map(|(at, message)| {
        let part = message.media.first()?;
        Some((call.place(at, part), part.kind.name()))
    });
    let Some((place, kind)) = parts.next() else { return Ok(()) };
    let message = format!(
        "`{place}`: {kind}. The model `{}` takes text alone. Say what it shows as text, or ask a model that takes such parts.",
        model.name
    );
    Err(Rejection::new(Code::UnsupportedContent, message).at(Stage::Render).with_param(&place))
}

/// A conversation as ids, and as the template wrote it.
///
/// # Errors
/// The model has no template for it, the template does not take it, or there is too little memory.
pub fn encode_conversation(
    model: &ServedModel,
    backend: &TokenBackend,
    conversation: &Conversation,
    options: &RenderOptions<'_>,
    room: TokenizerMemory<'_>,
) -> Result<(Vec<u32>, String), Rejection> {
    let Some(template) = &backend.template else {
        let message = format!("The model `{}` has no chat template. Use /v1/completions.", model.name);
        return Err(Rejection::new(Code::NoChatTemplate, message).with_param("messages"));
    };
    if !conversation.tools.is_empty()
        && conversation.tool_choice != ToolChoice::None
        && !template.shows_tools()
    {
        return Err(no_tools(model));
    }
    let conversation = &*shown_conversation(model, conversation);
    let rendered = match conversation.continues {
        true => template.render_to_continue(conversation, options),
        false => template.render(conversation, options),
    };
    let rendered = rendered.map_err(|error| {
        let rejection = Rejection::new(Code::TemplateError, error.to_string()).with_param("messages");
        // The template's message may repeat the caller's messages.
        rejection.keeping(format!("The chat template of `{}` did not take the messages.", model.name))
    })?;
    let ids = room.encode(usize::MAX, |bounds| {
        backend.tokenizer.encode_segments_within(&rendered.segments(), false, bounds)
    });
    Ok((ids.map_err(not_encoded)?, rendered.into_text()))
}

/// The conversation as the model's template receives it. Tools that the caller forbids to call are offered all the same
/// if a grammar forbids the calls.
pub fn shown_conversation<'c>(model: &ServedModel, conversation: &'c Conversation) -> Cow<'c, Conversation> {
    let sorts = model.policy.tools_order != ToolsOrder::AsSent && !conversation.tools.is_empty();
    let keeps = model.backend.tokens().is_some_and(|backend| keeps_forbidden_tools(backend, conversation));
    if !sorts && !keeps {
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

fn no_tools(model: &ServedModel) -> Rejection {
    let message = format!(
        "`tools`: the chat template of `{}` shows a model no tools, so it would never learn of them. Leave them out, or \
         use a model that was taught to call tools.",
        model.name
    );
    Rejection::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param("tools")
}

/// The parameter that carries the prompt of a call.
pub fn prompt_param(call: &Call) -> &'static str {
    match (&call.prompt, call.endpoint) {
        (_, Endpoint::Responses) => "input",
        (Prompt::Conversation(_), _) => "messages",
        _ => "prompt",
    }
}

/// The rejection of a prompt that is longer than the model's context window. `has` is its length, in words.
pub fn window_exceeded(param: &str, has: &str, model: &ServedModel) -> Rejection {
    let (name, window) = (&model.name, model.backend.context_window().unwrap_or(0));
    let message = format!(
        "The prompt has {has} and the context window of `{name}` is {window} tokens, prompt and answer together. \
         Shorten the prompt."
    );
    Rejection::new(Code::ContextLengthExceeded, message).with_param(param)
}

/// The rejection of a token id that is not in the model's vocabulary.
pub fn out_of_vocabulary(
    param: &str,
    id: u32,
    model: &ServedModel,
    capabilities: &Capabilities,
) -> Rejection {
    let last = capabilities.vocab.saturating_sub(1);
    let message =
        format!("Token id {id} is not in the vocabulary of `{}`, whose last id is {last}.", model.name);
    Rejection::new(Code::InvalidValue, message).at(Stage::Render).with_param(param)
}

/// The rejection of a call whose prompt could not be rendered, by no fault of the caller.
pub fn rendering_failed(detail: &str) -> Rejection {
    Rejection::new(
        Code::RenderFailed,
        format!("The prompt could not be rendered: {detail}. Nothing was charged."),
    )
    .keeping("The prompt could not be rendered.")
}

/// The rejection of a prompt that could not be encoded.
pub fn not_encoded(error: NotEncoded) -> Rejection {
    match error {
        NotEncoded::NoMemory(full) => full.at(Stage::Render),
        NotEncoded::TooMany => rendering_failed("it has too many tokens"),
        NotEncoded::Failed(error) => rendering_failed(&error.to_string()),
    }
}

/// Bytes of the text after the gap.
fn suffix_bytes(call: &Call) -> usize {
    match &call.prompt {
        Prompt::Raw(_) => call.dialect.suffix().map_or(0, str::len),
        Prompt::Conversation(_) | Prompt::Encode(_) | Prompt::Relayed(_) => 0,
    }
}
