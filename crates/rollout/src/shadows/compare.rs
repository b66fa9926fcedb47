//! Compares two answers to one call. They are read from the bytes that were sent, and only figures and digests are
//! kept. Must not know where an answer came from.

use bytes::Bytes;
use headrace_domain::{Endpoint, ReplyEvent, ShadowComparison};
use headrace_relay::{EventSplitter, ReplyReader};

/// Hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 16;

/// The form of an answer, the same for both answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ComparedShape {
    pub(super) endpoint: Endpoint,
    pub(super) stream: bool,
    pub(super) choices: u32,
}

/// The content of one choice of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ComparedChoice {
    text: String,
    tools: Vec<ComparedToolCall>,
    finish: Option<&'static str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ComparedToolCall {
    name: String,
    /// JSON arguments in canonical form, because spaces and key order are irrelevant.
    arguments: String,
}

/// Compares two answers. `None` if one of them cannot be parsed.
pub(super) fn compare(
    form: ComparedShape,
    real: &Bytes,
    copy: &Bytes,
    secret: &[u8; 32],
) -> Option<ShadowComparison> {
    let (real, copy) = (read(form, real)?, read(form, copy)?);
    let pairs = || real.iter().zip(&copy);
    let names =
        |choice: &ComparedChoice| choice.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    let same_arguments = pairs().all(|(a, b)| a.tools == b.tools);
    let (mut common, mut longest) = (0_u64, 0_u64);
    for (a, b) in pairs() {
        common += count(a.text.chars().zip(b.text.chars()).take_while(|(a, b)| a == b));
        longest += count(a.text.chars()).max(count(b.text.chars()));
    }
    let characters =
        |choices: &[ComparedChoice]| choices.iter().map(|choice| count(choice.text.chars())).sum();
    let calls = |choices: &[ComparedChoice]| {
        choices.iter().map(|choice| u32::try_from(choice.tools.len()).unwrap_or(u32::MAX)).sum()
    };
    let common_permille = (common * 1000).checked_div(longest).unwrap_or(1000);
    Some(ShadowComparison {
        same: same_arguments && pairs().all(|(a, b)| a.text == b.text),
        common_permille: u32::try_from(common_permille).unwrap_or(1000),
        same_finish: pairs().all(|(a, b)| a.finish == b.finish),
        characters: [characters(&real), characters(&copy)],
        tool_calls: [calls(&real), calls(&copy)],
        same_tools: pairs().all(|(a, b)| names(a) == names(b)),
        same_arguments,
        digests: [digest(&real, secret), digest(&copy, secret)],
    })
}

fn count<T>(items: impl Iterator<Item = T>) -> u64 {
    items.fold(0, |count, _| count + 1)
}

fn digest(choices: &[ComparedChoice], secret: &[u8; 32]) -> String {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    let mut part = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    };
    part("headrace shadow");
    for choice in choices {
        part(&choice.text);
        for tool in &choice.tools {
            part(&tool.name);
            part(&tool.arguments);
        }
    }
    hasher.finalize().to_hex().chars().take(DIGEST_DIGITS).collect()
}

fn read(form: ComparedShape, bytes: &Bytes) -> Option<Vec<ComparedChoice>> {
    let ComparedShape { endpoint, stream, choices } = form;
    let mut reader = ReplyReader::new(endpoint, stream, choices);
    let mut events = Vec::new();
    if stream {
        let mut splitter = EventSplitter::new();
        splitter.push(bytes.clone());
        while let Some(event) = splitter.next_event().ok()? {
            reader.event(&event.name, &event.data, Some(&mut events)).ok()?;
        }
    } else {
        reader.whole(bytes, Some(&mut events)).ok()?;
    }
    let mut said = vec![ComparedChoice::default(); choices as usize];
    for event in events {
        match event {
            ReplyEvent::Text { choice, text, .. } => said.get_mut(choice as usize)?.text.push_str(&text),
            ReplyEvent::ToolCallStart { choice, name, .. } => {
                said.get_mut(choice as usize)?
                    .tools
                    .push(ComparedToolCall { name, arguments: String::new() });
            }
            ReplyEvent::ToolCallArguments { choice, index, fragment } => {
                let tool = said.get_mut(choice as usize)?.tools.get_mut(index as usize)?;
                tool.arguments.push_str(&fragment);
            }
            ReplyEvent::Finish { choice, reason } => {
                said.get_mut(choice as usize)?.finish = Some(reason.name());
            }
            _ => {}
        }
    }
    for tool in said.iter_mut().flat_map(|choice| &mut choice.tools) {
        if let Ok(arguments) = headrace_wire::json::canonical::text(&tool.arguments) {
            tool.arguments = arguments;
        }
    }
    Some(said)
}

#[cfg(test)]
mod tests;
