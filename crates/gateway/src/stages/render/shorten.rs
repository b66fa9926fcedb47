//! Shortens long conversations if their caller asks for it: clears the results of old tool calls, and removes the
//! oldest turns. Turns are removed as whole messages, and a call is never separated from its result. Must not know who
//! computes.

use headrace_call_state::{Rejection, TokenizerMemory};
use headrace_catalog::{Backend, ServedModel, TokenBackend};
use headrace_domain::{
    Call, ClearTools, ClearTrigger, ClearedContext, Conversation, DialectExtras, Prompt, Role, UnixNanos,
};
use headrace_prompt::RenderOptions;
use headrace_relay::as_chat;
use headrace_render::{could_fit, encode_conversation};
use headrace_wire::WireLimits;

use super::messages;

/// Replaces the result of a tool call.
const CLEARED: &str = "[This result was cleared to save room. Call the tool again if it is needed.]";

/// Whether a call asks to be shortened.
pub(super) fn is_asked(call: &Call) -> bool {
    call.dialect.clears().is_some() || cuts(call)
}

fn cuts(call: &Call) -> bool {
    call.dialect.response().is_some_and(|ask| ask.cuts)
}

/// The call with as much of its conversation as fits, if it asks for that. A call that fits is unchanged. `limits` are
/// those that the call was read within.
///
/// # Errors
/// The conversation cannot be rendered or counted. Returns the call too.
pub(crate) fn shortened(
    model: &ServedModel,
    mut call: Box<Call>,
    (now, room): (UnixNanos, TokenizerMemory<'_>),
    limits: &WireLimits,
) -> Result<Box<Call>, (Box<Call>, Rejection)> {
    if !is_asked(&call) {
        return Ok(call);
    }
    let done =
        cleared(model, &mut call, (now, room)).and_then(|()| cut(model, &mut call, (now, room), limits));
    match done {
        Ok(()) => Ok(call),
        Err(rejection) => Err((call, rejection)),
    }
}

/// Counts the tokens of a conversation.
fn tokens(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
    conversation: &Conversation,
    (now, room): (UnixNanos, TokenizerMemory<'_>),
) -> Result<usize, Rejection> {
    let options = RenderOptions { add_generation_prompt: true, now, reasoning: Some(&call.reasoning) };
    encode_conversation(model, backend, conversation, &options, room).map(|(ids, _)| ids.len())
}

fn cleared(
    model: &ServedModel,
    call: &mut Call,
    means: (UnixNanos, TokenizerMemory<'_>),
) -> Result<(), Rejection> {
    let (Some(clears), Some(backend)) = (call.dialect.clears(), model.backend.tokens()) else {
        return Ok(());
    };
    let Prompt::Conversation(conversation) = &call.prompt else { return Ok(()) };
    let before = tokens(model, backend, call, conversation, means)?;
    let uses = conversation.messages.iter().filter(|message| message.role == Role::Tool).count();
    let triggered = match clears.trigger {
        ClearTrigger::InputTokens(most) => before as u64 > most,
        ClearTrigger::ToolUses(most) => uses as u64 > u64::from(most),
    };
    if !triggered {
        return Ok(());
    }
    let mut shorter = conversation.clone();
    let tool_uses = clear(&mut shorter, clears);
    let after = tokens(model, backend, call, &shorter, means)?;
    let input_tokens = before.saturating_sub(after) as u64;
    // A saving below the requested minimum is not worth the loss of the cached prefix.
    if tool_uses > 0 && input_tokens >= clears.at_least_tokens {
        if let DialectExtras::Messages(extras) = &mut call.dialect {
            extras.cleared = Some(ClearedContext { tool_uses, input_tokens });
        }
        call.prompt = Prompt::Conversation(shorter);
    }
    Ok(())
}

/// Clears tool results, except the last `keep` ones and those of excluded tools. Returns how many were cleared.
fn clear(conversation: &mut Conversation, clears: &ClearTools) -> u32 {
    let excluded = |name: &str| clears.exclude.iter().any(|excluded| excluded == name);
    let kept: Vec<String> = conversation
        .messages
        .iter()
        .flat_map(|message| &message.tool_calls)
        .filter(|call| excluded(&call.name))
        .map(|call| call.id.clone())
        .collect();
    let is_kept = |id: Option<&str>| id.is_some_and(|id| kept.iter().any(|kept| kept == id));
    let results = conversation.messages.iter_mut().rev().filter(|message| message.role == Role::Tool);
    let old = results
        .filter(|message| !is_kept(message.tool_call_id.as_deref()))
        .skip(usize::try_from(clears.keep).unwrap_or(usize::MAX));
    let mut gone = Vec::new();
    for message in old {
        if message.content.as_deref() != Some(CLEARED) {
            message.content = Some(CLEARED.to_owned());
            message.joints.clear();
            message.media.clear();
            gone.extend(message.tool_call_id.clone());
        }
    }
    if clears.inputs {
        let calls = conversation.messages.iter_mut().flat_map(|message| &mut message.tool_calls);
        for call in calls.filter(|call| gone.contains(&call.id)) {
            "{}".clone_into(&mut call.arguments);
        }
    }
    u32::try_from(gone.len()).unwrap_or(u32::MAX)
}

/// Removes the oldest turns, until the rest fits the window together with the answer.
fn cut(
    model: &ServedModel,
    call: &mut Call,
    means: (UnixNanos, TokenizerMemory<'_>),
    limits: &WireLimits,
) -> Result<(), Rejection> {
    let Some(window) = model.backend.context_window().filter(|_| cuts(call)) else { return Ok(()) };
    let Prompt::Conversation(conversation) = &call.prompt else { return Ok(()) };
    let room = u64::from(window).saturating_sub(u64::from(call.sampling.max_tokens.unwrap_or(1)));
    let fits = |kept: &[usize]| -> Result<bool, Rejection> {
        let shorter = only(call, conversation, kept);
        match &model.backend {
            Backend::Tokens(backend) => {
                let Prompt::Conversation(conversation) = &shorter.prompt else { return Ok(true) };
                let counted = || tokens(model, backend, &shorter, conversation, means);
                Ok(could_fit(model, &shorter).is_ok() && counted()? as u64 <= room)
            }
            Backend::Messages(_) => {
                let chat = as_chat(&shorter, limits)?;
                let Prompt::Relayed(relayed) = &chat.prompt else { return Ok(true) };
                Ok(messages::likely_tokens(relayed) <= room)
            }
            Backend::Vectors(_) => Ok(true),
        }
    };
    let all: Vec<usize> = (0..conversation.messages.len()).collect();
    if fits(&all)? {
        return Ok(());
    }
    let choices = choices(conversation);
    // The longest choice that fits. Each later choice is shorter, so a binary search finds it.
    let (mut low, mut high) = (0, choices.len());
    while low < high {
        let middle = low.midpoint(high);
        if fits(choices.get(middle).map_or(&all, Vec::as_slice))? { high = middle } else { low = middle + 1 }
    }
    if let Some(kept) = choices.get(low) {
        *call = only(call, conversation, kept);
    }
    Ok(())
}

/// The message sets that may be kept, from longest to shortest. First whole user turns are removed, then the calls and
/// replies since the last user turn. Leading instructions always stay.
fn choices(conversation: &Conversation) -> Vec<Vec<usize>> {
    let messages = &conversation.messages;
    let first = messages.iter().take_while(|message| message.role == Role::System).count();
    let is_turn = |at: &usize| messages.get(*at).is_some_and(|message| message.role == Role::User);
    let kept = |head: usize, asks: Option<usize>, from: usize| {
        (0..head).chain(asks).chain(from..messages.len()).collect::<Vec<_>>()
    };
    let mut choices: Vec<Vec<usize>> =
        (first + 1..messages.len()).filter(is_turn).map(|from| kept(first, None, from)).collect();
    let last = (first..messages.len()).rev().find(is_turn);
    let begins = |at: &usize| messages.get(*at).is_some_and(|message| message.role == Role::Assistant);
    if let Some(last) = last {
        choices.extend((last + 2..messages.len()).filter(begins).map(|from| kept(first, Some(last), from)));
    }
    choices
}

/// The call with only these messages.
fn only(call: &Call, conversation: &Conversation, kept: &[usize]) -> Call {
    let messages = kept.iter().filter_map(|at| conversation.messages.get(*at).cloned()).collect();
    let origins = kept.iter().map(|at| call.origin(*at)).collect();
    let conversation = Conversation { messages, ..conversation.clone() };
    Call { prompt: Prompt::Conversation(conversation), origins, ..call.clone() }
}

#[cfg(test)]
mod tests {
    use headrace_domain::{Message, ToolCall};

    use super::*;

    fn agent() -> Conversation {
        let called = |id: &str| Message {
            content: None,
            tool_calls: vec![ToolCall {
                id: id.into(),
                name: format!("f{id}"),
                arguments: "{\"a\":1}".into(),
            }],
            ..Message::text(Role::Assistant, "")
        };
        let result =
            |id: &str| Message { tool_call_id: Some(id.into()), ..Message::text(Role::Tool, "long") };
        let say = Message::text;
        let messages = vec![
            say(Role::System, "s"),
            say(Role::User, "one"),
            say(Role::Assistant, "1"),
            say(Role::User, "two"),
            called("a"),
            result("a"),
            called("b"),
            result("b"),
            called("c"),
            result("c"),
        ];
        Conversation { messages, ..Conversation::default() }
    }

    #[test]
    fn pairs_of_call_and_result_stay_together_and_instructions_stay() {
        assert_eq!(
            choices(&agent()),
            [vec![0, 3, 4, 5, 6, 7, 8, 9], vec![0, 3, 6, 7, 8, 9], vec![0, 3, 8, 9]]
        );
        assert!(choices(&Conversation::default()).is_empty());
    }

    #[test]
    fn old_results_are_cleared_and_the_last_and_the_excluded_stay() {
        let clears = |keep, exclude: &[&str], inputs| ClearTools {
            trigger: ClearTrigger::ToolUses(0),
            keep,
            at_least_tokens: 0,
            exclude: exclude.iter().map(|name| (*name).to_owned()).collect(),
            inputs,
        };
        let results = |conversation: &Conversation| {
            let results = conversation.messages.iter().filter(|message| message.role == Role::Tool);
            results.map(|message| message.content.as_deref() == Some("long")).collect::<Vec<_>>()
        };
        let mut all = agent();
        assert_eq!(clear(&mut all, &clears(1, &[], false)), 2);
        assert_eq!(results(&all), [false, false, true]);
        assert_eq!(all.messages[4].tool_calls[0].arguments, "{\"a\":1}");
        // Results that were already cleared do not count again.
        assert_eq!(clear(&mut all, &clears(1, &[], false)), 0);
        let mut some = agent();
        assert_eq!(clear(&mut some, &clears(1, &["fb"], true)), 1);
        assert_eq!(results(&some), [false, true, true]);
        let arguments = |at: usize| some.messages[at].tool_calls[0].arguments.as_str();
        assert_eq!((arguments(4), arguments(6)), ("{}", "{\"a\":1}"));
    }
}
