//! Weighs a common message of Anthropic's dialect whose content is not needed, in one pass. [`super::usual`] does the
//! same for the other dialect.

use super::lenient::LenientText;
use super::strict::StrictCursor;
use super::usage_body::{AnswerDetails, CacheCreation, ServerTools, UsageBody};
use super::usual::{count, once};

/// The relevant facts of a whole message.
#[derive(Default)]
pub(super) struct WeighedMessage<'a> {
    pub(super) model: Option<&'a str>,
    pub(super) id: Option<&'a str>,
    pub(super) usage: Option<UsageBody<'a>>,
    /// Bytes of each text. Empty texts count as absent.
    pub(super) texts: Vec<usize>,
    /// Bytes of each call's name and input, as separate entries.
    pub(super) calls: Vec<usize>,
    /// Whether a block has a signature. A signature begins the answer, as a text does.
    pub(super) has_signature: bool,
    pub(super) stop_reason: Option<&'a str>,
    pub(super) stop_sequence: Option<&'a str>,
}

/// Weighs a whole message of text, thinking and tool calls.
pub(super) fn message(data: &[u8]) -> Option<WeighedMessage<'_>> {
    let (mut message, mut seen, mut has_content) = (WeighedMessage::default(), 0, false);
    let mut cursor = StrictCursor::new(data)?;
    cursor.members(|cursor, key| match key {
        "type" => {
            once(&mut seen, 0)?;
            (cursor.given()? != Some("error")).then_some(())
        }
        "id" => {
            once(&mut seen, 1)?;
            message.id = cursor.given()?;
            Some(())
        }
        "model" => {
            once(&mut seen, 2)?;
            message.model = cursor.given()?;
            Some(())
        }
        "content" => {
            once(&mut seen, 3)?;
            has_content = true;
            cursor.items(|cursor| block(cursor, &mut message))
        }
        "stop_reason" => {
            once(&mut seen, 4)?;
            message.stop_reason = cursor.given()?;
            Some(())
        }
        "stop_sequence" => {
            once(&mut seen, 5)?;
            message.stop_sequence = cursor.given()?;
            Some(())
        }
        "usage" => {
            once(&mut seen, 6)?;
            if !cursor.is_null() {
                message.usage = Some(usage(cursor)?);
            }
            Some(())
        }
        "error" => {
            once(&mut seen, 7)?;
            cursor.is_null().then_some(())
        }
        _ => cursor.skip(),
    })?;
    cursor.end()?;
    has_content.then_some(message)
}

fn block(cursor: &mut StrictCursor<'_>, message: &mut WeighedMessage<'_>) -> Option<()> {
    let (mut seen, mut kind) = (0, None);
    let (mut said, mut thought, mut name, mut input, mut signature) = (0, 0, 0, 0, 0);
    cursor.members(|cursor, key| {
        let (bit, slot) = match key {
            "type" => {
                once(&mut seen, 0)?;
                kind = cursor.given()?;
                return Some(());
            }
            "input" => {
                once(&mut seen, 1)?;
                if !cursor.is_null() {
                    input = cursor.raw_length()?;
                }
                return Some(());
            }
            "text" => (2, &mut said),
            "thinking" => (3, &mut thought),
            "name" => (4, &mut name),
            "signature" => (5, &mut signature),
            "data" => (6, &mut 0),
            "id" => (7, &mut 0),
            _ => return cursor.skip(),
        };
        once(&mut seen, bit)?;
        *slot = cursor.text()?.length;
        Some(())
    })?;
    message.has_signature |= signature > 0;
    match kind? {
        "text" => message.texts.push(said),
        "thinking" => message.texts.push(thought),
        "tool_use" => {
            message.calls.push(name);
            if input > 0 {
                message.calls.push(input);
            }
        }
        // Blocks of other types need more than a count of their bytes.
        _ => return None,
    }
    Some(())
}

fn usage<'a>(cursor: &mut StrictCursor<'a>) -> Option<UsageBody<'a>> {
    let (mut usage, mut seen) = (UsageBody::default(), 0);
    cursor.members(|cursor, key| match key {
        "input_tokens" => count(cursor, &mut seen, 0, &mut usage.input_tokens),
        "output_tokens" => count(cursor, &mut seen, 1, &mut usage.output_tokens),
        "cache_read_input_tokens" => count(cursor, &mut seen, 2, &mut usage.cache_read_input_tokens),
        "cache_creation_input_tokens" => count(cursor, &mut seen, 3, &mut usage.cache_creation_input_tokens),
        "service_tier" => {
            once(&mut seen, 4)?;
            usage.service_tier = LenientText(cursor.text()?.plain()?.into());
            Some(())
        }
        "cache_creation" => {
            once(&mut seen, 5)?;
            if cursor.is_null() { Some(()) } else { creation(cursor, &mut usage.cache_creation) }
        }
        "output_tokens_details" => {
            once(&mut seen, 6)?;
            if cursor.is_null() { Some(()) } else { of_output(cursor, &mut usage.output_tokens_details) }
        }
        "server_tool_use" => {
            once(&mut seen, 7)?;
            if cursor.is_null() { Some(()) } else { of_server(cursor, &mut usage.server_tool_use) }
        }
        // Names of other dialects.
        "prompt_tokens" | "completion_tokens" | "prompt_tokens_details" | "completion_tokens_details" => None,
        "total_tokens" | "cached_tokens" | "reasoning_tokens" | "input_tokens_details" => None,
        "prompt_cache_hit_tokens" | "prompt_cache_miss_tokens" => None,
        _ => cursor.skip(),
    })?;
    Some(usage)
}

fn creation(cursor: &mut StrictCursor<'_>, counts: &mut CacheCreation) -> Option<()> {
    let mut seen = 0;
    cursor.members(|cursor, key| match key {
        "ephemeral_5m_input_tokens" => count(cursor, &mut seen, 0, &mut counts.ephemeral_5m_input_tokens),
        "ephemeral_1h_input_tokens" => count(cursor, &mut seen, 1, &mut counts.ephemeral_1h_input_tokens),
        _ => cursor.skip(),
    })
}

fn of_output(cursor: &mut StrictCursor<'_>, counts: &mut AnswerDetails) -> Option<()> {
    let mut seen = 0;
    cursor.members(|cursor, key| match key {
        "thinking_tokens" => count(cursor, &mut seen, 0, &mut counts.thinking_tokens),
        "reasoning_tokens" => count(cursor, &mut seen, 1, &mut counts.reasoning_tokens),
        "audio_tokens" => count(cursor, &mut seen, 2, &mut counts.audio_tokens),
        _ => cursor.skip(),
    })
}

fn of_server(cursor: &mut StrictCursor<'_>, counts: &mut ServerTools) -> Option<()> {
    let mut seen = 0;
    cursor.members(|cursor, key| match key {
        "web_search_requests" => count(cursor, &mut seen, 0, &mut counts.web_search_requests),
        "web_fetch_requests" => count(cursor, &mut seen, 1, &mut counts.web_fetch_requests),
        _ => cursor.skip(),
    })
}
