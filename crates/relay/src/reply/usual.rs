//! Weighs a common answer whose content is not needed: one pass over its bytes, and no values are built. Unusual
//! answers are left to the readers of the dialects, which detect every fault.

use super::lenient::{LenientCount, MOST_ITEMS};
use super::strict::StrictCursor;
use super::usage_body::{AnswerDetails, PromptDetails, UsageBody};

/// The relevant facts of an answer, or of a chunk.
#[derive(Default)]
pub(super) struct UsualAnswer<'a> {
    pub(super) model: Option<&'a str>,
    pub(super) id: Option<&'a str>,
    pub(super) tier: Option<&'a str>,
    pub(super) usage: Option<UsageBody<'a>>,
    pub(super) choice: Option<WeighedChoice<'a>>,
}

/// The relevant facts of a choice.
#[derive(Default)]
pub(super) struct WeighedChoice<'a> {
    pub(super) index: u32,
    /// Bytes of the reasoning, the content and the completion text. Empty texts count as absent.
    pub(super) texts: [usize; 3],
    /// Bytes of the name and arguments of each call.
    pub(super) calls: Vec<usize>,
    /// The number of generated ids, if the server sends them.
    pub(super) ids: Option<u64>,
    pub(super) finish: Option<&'a str>,
    /// The stop string that matched.
    pub(super) stop: Option<&'a str>,
}

/// Weighs a whole body of OpenAI's dialect with exactly one choice.
pub(super) fn whole(data: &[u8]) -> Option<UsualAnswer<'_>> {
    weigh(data, "message").filter(|seen| seen.choice.is_some())
}

/// Weighs a chunk of OpenAI's dialect with at most one choice.
pub(super) fn chunk(data: &[u8]) -> Option<UsualAnswer<'_>> {
    weigh(data, "delta").filter(|seen| seen.choice.is_some() || seen.usage.is_some())
}

/// Fails if a field occurs twice. `bit` identifies the field.
pub(super) fn once(seen: &mut u32, bit: u32) -> Option<()> {
    let mark = 1 << bit;
    let is_first = *seen & mark == 0;
    *seen |= mark;
    is_first.then_some(())
}

fn nothing(cursor: &mut StrictCursor<'_>) -> Option<()> {
    cursor.is_null().then_some(())
}

fn weigh<'a>(data: &'a [u8], said: &str) -> Option<UsualAnswer<'a>> {
    let (mut weighed, mut seen) = (UsualAnswer::default(), 0);
    let mut cursor = StrictCursor::new(data)?;
    cursor.members(|cursor, key| match key {
        "id" => {
            once(&mut seen, 0)?;
            weighed.id = cursor.given()?;
            Some(())
        }
        "model" => {
            once(&mut seen, 1)?;
            weighed.model = cursor.given()?;
            Some(())
        }
        "choices" => {
            once(&mut seen, 2)?;
            cursor.items(|cursor| {
                let is_first = weighed.choice.is_none();
                weighed.choice = Some(choice(cursor, said)?);
                is_first.then_some(())
            })
        }
        "usage" => {
            once(&mut seen, 3)?;
            if !cursor.is_null() {
                weighed.usage = Some(usage(cursor)?);
            }
            Some(())
        }
        "service_tier" => {
            once(&mut seen, 4)?;
            weighed.tier = cursor.given()?;
            Some(())
        }
        "error" => {
            once(&mut seen, 5)?;
            nothing(cursor)
        }
        "object" => {
            once(&mut seen, 6)?;
            (cursor.given()? != Some("error")).then_some(())
        }
        _ => cursor.skip(),
    })?;
    cursor.end()?;
    Some(weighed)
}

fn choice<'a>(cursor: &mut StrictCursor<'a>, said: &str) -> Option<WeighedChoice<'a>> {
    let (mut choice, mut seen) = (WeighedChoice::default(), 0);
    let mut stops = [None; 2];
    cursor.members(|cursor, key| match key {
        "index" => {
            once(&mut seen, 0)?;
            choice.index = match cursor.count()? {
                LenientCount::Is(index) => u32::try_from(index).ok()?,
                LenientCount::Absent | LenientCount::Absurd => 0,
            };
            Some(())
        }
        "message" | "delta" => {
            once(&mut seen, if key == "message" { 1 } else { 2 })?;
            if cursor.is_null() {
                return Some(());
            }
            // The other field has no effect, but only the full reader checks its content.
            (key == said).then_some(())?;
            message(cursor, &mut choice)
        }
        "text" => {
            once(&mut seen, 3)?;
            choice.texts[2] = cursor.text()?.length;
            Some(())
        }
        "finish_reason" => {
            once(&mut seen, 4)?;
            choice.finish = cursor.given()?;
            Some(())
        }
        "stop_reason" => {
            once(&mut seen, 5)?;
            stops[0] = stop(cursor)?;
            Some(())
        }
        "matched_stop" => {
            once(&mut seen, 6)?;
            stops[1] = stop(cursor)?;
            Some(())
        }
        "token_ids" => {
            once(&mut seen, 7)?;
            if !cursor.is_null() {
                let mut ids = 0;
                cursor.items(|cursor| {
                    ids += 1;
                    cursor.skip()
                })?;
                choice.ids = Some(ids);
            }
            Some(())
        }
        _ => cursor.skip(),
    })?;
    choice.stop = stops[0].or(stops[1]);
    Some(choice)
}

/// Reads a stop string. Any other value is a token id and reads as the inner `None`.
fn stop<'a>(cursor: &mut StrictCursor<'a>) -> Option<Option<&'a str>> {
    if cursor.is_string() { Some(Some(cursor.string()?.plain()?)) } else { cursor.skip().map(|()| None) }
}

fn message(cursor: &mut StrictCursor<'_>, choice: &mut WeighedChoice<'_>) -> Option<()> {
    let mut seen = 0;
    let (mut reasoning, mut older) = (0, 0);
    cursor.members(|cursor, key| match key {
        "content" => {
            once(&mut seen, 0)?;
            choice.texts[1] = cursor.text()?.length;
            Some(())
        }
        "reasoning_content" => {
            once(&mut seen, 1)?;
            reasoning = cursor.text()?.length;
            Some(())
        }
        "reasoning" => {
            once(&mut seen, 2)?;
            older = cursor.text()?.length;
            Some(())
        }
        "refusal" => {
            once(&mut seen, 3)?;
            nothing(cursor)
        }
        "reasoning_details" => {
            once(&mut seen, 4)?;
            if cursor.is_null() { Some(()) } else { cursor.items(|_| None) }
        }
        "function_call" => {
            once(&mut seen, 5)?;
            nothing(cursor)
        }
        "tool_calls" => {
            once(&mut seen, 6)?;
            if cursor.is_null() {
                return Some(());
            }
            cursor.items(|cursor| {
                choice.calls.push(call(cursor)?);
                (choice.calls.len() < MOST_ITEMS as usize).then_some(())
            })
        }
        _ => cursor.skip(),
    })?;
    // If a server sends both names, their values are the same.
    choice.texts[0] = if reasoning > 0 { reasoning } else { older };
    Some(())
}

/// Reads a call. Returns the bytes of its name and arguments.
fn call(cursor: &mut StrictCursor<'_>) -> Option<usize> {
    let (mut seen, mut bytes) = (0, 0);
    cursor.members(|cursor, key| match key {
        "index" => count(cursor, &mut seen, 0, &mut LenientCount::Absent),
        "id" => {
            once(&mut seen, 1)?;
            cursor.text().map(drop)
        }
        "function" => {
            once(&mut seen, 2)?;
            if !cursor.is_null() {
                bytes = function(cursor)?;
            }
            Some(())
        }
        _ => cursor.skip(),
    })?;
    Some(bytes)
}

fn function(cursor: &mut StrictCursor<'_>) -> Option<usize> {
    let (mut seen, mut name, mut arguments) = (0, 0, 0);
    cursor.members(|cursor, key| match key {
        "name" => {
            once(&mut seen, 0)?;
            name = cursor.text()?.length;
            Some(())
        }
        "arguments" => {
            once(&mut seen, 1)?;
            arguments = match cursor.is_string() {
                true => cursor.string()?.length,
                false if cursor.is_null() => 0,
                // Some servers send the JSON itself.
                false => cursor.raw_length()?,
            };
            Some(())
        }
        _ => cursor.skip(),
    })?;
    Some(name + arguments)
}

fn usage<'a>(cursor: &mut StrictCursor<'a>) -> Option<UsageBody<'a>> {
    let (mut usage, mut seen) = (UsageBody::default(), 0);
    cursor.members(|cursor, key| match key {
        "prompt_tokens" => count(cursor, &mut seen, 0, &mut usage.prompt_tokens),
        "completion_tokens" => count(cursor, &mut seen, 1, &mut usage.completion_tokens),
        "total_tokens" => count(cursor, &mut seen, 2, &mut usage.total_tokens),
        "prompt_cache_hit_tokens" => count(cursor, &mut seen, 3, &mut usage.prompt_cache_hit_tokens),
        "prompt_cache_miss_tokens" => count(cursor, &mut seen, 8, &mut usage.prompt_cache_miss_tokens),
        "cached_tokens" => count(cursor, &mut seen, 4, &mut usage.cached_tokens),
        "reasoning_tokens" => count(cursor, &mut seen, 5, &mut usage.reasoning_tokens),
        "prompt_tokens_details" => {
            once(&mut seen, 6)?;
            if cursor.is_null() { Some(()) } else { of_prompt(cursor, &mut usage.prompt_tokens_details) }
        }
        "completion_tokens_details" => {
            once(&mut seen, 7)?;
            if cursor.is_null() { Some(()) } else { of_answer(cursor, &mut usage.completion_tokens_details) }
        }
        // Names of other dialects.
        "input_tokens" | "output_tokens" | "input_tokens_details" | "output_tokens_details" => None,
        "cache_read_input_tokens" | "cache_creation_input_tokens" | "cache_creation" => None,
        "server_tool_use" => None,
        _ => cursor.skip(),
    })?;
    Some(usage)
}

fn of_prompt(cursor: &mut StrictCursor<'_>, details: &mut PromptDetails) -> Option<()> {
    let mut seen = 0;
    cursor.members(|cursor, key| match key {
        "cached_tokens" => count(cursor, &mut seen, 0, &mut details.cached_tokens),
        "cache_write_tokens" => count(cursor, &mut seen, 1, &mut details.cache_write_tokens),
        "audio_tokens" => count(cursor, &mut seen, 2, &mut details.audio_tokens),
        _ => cursor.skip(),
    })
}

fn of_answer(cursor: &mut StrictCursor<'_>, details: &mut AnswerDetails) -> Option<()> {
    let mut seen = 0;
    cursor.members(|cursor, key| match key {
        "reasoning_tokens" => count(cursor, &mut seen, 0, &mut details.reasoning_tokens),
        "audio_tokens" => count(cursor, &mut seen, 1, &mut details.audio_tokens),
        "thinking_tokens" => count(cursor, &mut seen, 2, &mut details.thinking_tokens),
        _ => cursor.skip(),
    })
}

/// Reads a count that may occur only once.
pub(super) fn count(
    cursor: &mut StrictCursor<'_>,
    seen: &mut u32,
    bit: u32,
    slot: &mut LenientCount,
) -> Option<()> {
    once(seen, bit)?;
    *slot = cursor.count()?;
    Some(())
}
