//! Texts and messages that say nothing are refused before anything is charged. Knows no dialect.
//!
//! OpenAI refuses an empty list of messages and an empty text to embed; Anthropic refuses messages and blocks of text that are
//! empty or white space. What both take stays valid: an empty result of a tool, an empty system message beside others, and an
//! answer of the assistant that is empty, such as one that only thought.

use headrace_domain::{Code, Message, Role, is_blank};

use crate::fault::{Fault, Read};

/// What a blank text holds, for messages.
const SEEN: &str = "it is empty, or holds only white space and characters that are not visible";

/// The refusal of a message of the user that says nothing.
pub(crate) fn message() -> Fault {
    Fault::new(
        Code::EmptyString,
        format!("{SEEN}; write what the model is to read, or leave the message out (nothing was charged)"),
    )
}

/// The refusal of a block of text that says nothing.
pub(crate) fn block() -> Fault {
    Fault::new(Code::EmptyString, format!("{SEEN}; leave the block out (nothing was charged)"))
}

/// The refusal of a conversation in which no message says anything.
pub(crate) fn conversation() -> Fault {
    let message = "no message says anything: each is empty, or holds only white space and characters that are not visible; add a \
                   message of role `user` with text (nothing was charged)";
    Fault::new(Code::EmptyString, message)
}

/// The refusal of a prompt, or of a text to encode or to judge, that says nothing.
pub(crate) fn text() -> Fault {
    Fault::new(
        Code::EmptyPrompt,
        format!(
            "{SEEN}; send a text with at least one visible character, or leave it out (nothing was charged)"
        ),
    )
}

/// `text`, which must say something.
///
/// # Errors
/// It is blank.
pub(crate) fn visible<T: AsRef<str>>(text: T) -> Read<T> {
    if is_blank(text.as_ref()) { Err(self::text()) } else { Ok(text) }
}

/// The first message of the user that says nothing, by its index.
pub(crate) fn first_blank(messages: &[Message]) -> Option<usize> {
    let blank = |message: &Message| message.role == Role::User && !says_something(message);
    messages.iter().position(blank)
}

/// Whether any message says something, calls a tool or is a tool's result.
pub(crate) fn any_says_something(messages: &[Message]) -> bool {
    messages.iter().any(|message| message.role == Role::Tool || says_something(message))
}

fn says_something(message: &Message) -> bool {
    let seen = |text: &Option<String>| text.as_deref().is_some_and(|text| !is_blank(text));
    seen(&message.content)
        || !message.media.is_empty()
        || !message.tool_calls.is_empty()
        || seen(&message.reasoning)
}
