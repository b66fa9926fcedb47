//! Refuses texts and messages without a visible character before anything is charged. Knows no dialect.
//!
//! OpenAI refuses an empty list of messages and an empty text to embed. Anthropic refuses messages and text blocks that
//! are empty or white space. Input that both accept stays valid: an empty tool result, an empty system message beside
//! others, and an empty answer. An answer may be empty if it contains only reasoning, for example.

use headrace_domain::{Code, Message, Role, is_blank};

use crate::fault::{FieldFault, Read};

/// The description of a blank text in error messages.
const SEEN: &str = "it is empty, or holds only white space and characters that are not visible";

/// The fault for a blank message of the user.
pub fn message() -> FieldFault {
    FieldFault::new(
        Code::EmptyString,
        format!("{SEEN}; write what the model is to read, or leave the message out (nothing was charged)"),
    )
}

/// The fault for a blank text block.
pub fn block() -> FieldFault {
    FieldFault::new(Code::EmptyString, format!("{SEEN}; leave the block out (nothing was charged)"))
}

/// The fault for a conversation in which all messages are blank.
pub fn conversation() -> FieldFault {
    let message = "no message says anything: each is empty, or holds only white space and characters that are not visible; add a \
                   message of role `user` with text (nothing was charged)";
    FieldFault::new(Code::EmptyString, message)
}

/// The fault for a blank prompt, or for a blank text to encode or to moderate.
pub fn text() -> FieldFault {
    FieldFault::new(
        Code::EmptyPrompt,
        format!(
            "{SEEN}; send a text with at least one visible character, or leave it out (nothing was charged)"
        ),
    )
}

/// Checks that a list of texts is not empty.
///
/// # Errors
/// A list has no texts.
pub fn not_empty(texts: usize) -> Read<()> {
    if texts == 0 { Err(FieldFault::new(Code::EmptyArray, "it must not be empty")) } else { Ok(()) }
}

/// Returns `text` if it has a visible character.
///
/// # Errors
/// Fails if the text is blank.
pub(crate) fn visible<T: AsRef<str>>(text: T) -> Read<T> {
    if is_blank(text.as_ref()) { Err(self::text()) } else { Ok(text) }
}

/// The index of the first blank message of the user.
pub(crate) fn first_blank(messages: &[Message]) -> Option<usize> {
    let blank = |message: &Message| message.role == Role::User && !says_something(message);
    messages.iter().position(blank)
}

/// Whether any message has a visible character, has media, calls a tool or is a tool's result.
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
