//! What a call asks of its answer and models that take tokens do not keep to yet: refused by name, as nothing is dropped in silence.
//! Must not know how it will be kept to.

use headrace_domain::{Call, Code, Conversation, CustomInput, Prompt, ReasoningWish, Stage, ToolChoice};

use crate::catalog::ServedModel;
use crate::refused::Why;

/// Refuses the first parameter that would go unheeded.
pub(super) fn check(model: &ServedModel, call: &Call) -> Result<(), Why> {
    let conversation = match &call.prompt {
        Prompt::Conversation(conversation) => Some(conversation),
        Prompt::Raw(_) | Prompt::Relayed(_) => None,
    };
    match unheeded(call, conversation) {
        None => Ok(()),
        Some((param, what)) => {
            let message = format!("`{param}`: the model `{}` {what}. Leave it out.", model.name);
            Err(Why::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param(param))
        }
    }
}

fn unheeded(call: &Call, conversation: Option<&Conversation>) -> Option<(&'static str, &'static str)> {
    // Not to think is what happens where a template knows no thinking; how much of it is shown is decided elsewhere.
    let asked = ReasoningWish { hidden: false, enabled: None, ..call.reasoning.clone() };
    if asked != ReasoningWish::default() || call.reasoning.enabled == Some(true) {
        return Some(("reasoning_effort", "cannot be told how much to think yet"));
    }
    let conversation = conversation?;
    if !conversation.template.is_empty() {
        return Some(("chat_template_kwargs", "has a template that takes no further variables yet"));
    }
    if !matches!(conversation.tool_choice, ToolChoice::Auto | ToolChoice::None) {
        return Some(("tool_choice", "cannot be made to call tools yet"));
    }
    if conversation.tools.is_empty() || conversation.tool_choice == ToolChoice::None {
        return None;
    }
    if conversation.one_call {
        return Some(("parallel_tool_calls", "decides how many tools it calls"));
    }
    let held = |input: &CustomInput| matches!(input, CustomInput::Form(_));
    let strict = conversation.tools.iter().any(|tool| tool.strict || tool.custom.as_ref().is_some_and(held));
    strict.then_some(("tools", "cannot be held to a tool's schema or grammar yet"))
}
