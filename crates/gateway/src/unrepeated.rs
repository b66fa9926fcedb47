//! Removes the words of a call from an upstream's message about it, because a trace keeps no word of a prompt. Must
//! not know why the upstream sent the message.

use headrace_domain::{Call, Prompt};

/// The longest message that is kept, in characters.
const MAX_KEPT_CHARS: usize = 300;
/// A call with more bytes than this is not searched, and no word of the message is kept.
const MAX_SEARCHED_BYTES: usize = 256 << 10;
/// Replaces words that also occur in the call.
const LEFT_OUT: &str = "…";
/// Short words that reveal nothing about a prompt.
const COMMON: [&str; 28] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "can", "for", "from", "has", "in", "is", "it",
    "its", "may", "must", "no", "not", "of", "on", "or", "than", "the", "to", "too",
];

/// The sentence without the words that also occur in the call. `None` if the call cannot be read or is too long to be
/// searched.
pub(crate) fn unrepeated(sentence: &str, call: &Call) -> Option<String> {
    let own = written(call)?.to_lowercase();
    let mut kept = String::new();
    for (at, word) in sentence.split_whitespace().enumerate() {
        let word: String = word.chars().filter(|c| !c.is_control()).collect();
        let shown = if repeats(&word, &own) { LEFT_OUT } else { word.as_str() };
        if shown == LEFT_OUT && kept.ends_with(LEFT_OUT) {
            continue;
        }
        if at > 0 {
            kept.push(' ');
        }
        kept.push_str(shown);
        if let Some((cut, _)) = kept.char_indices().nth(MAX_KEPT_CHARS) {
            kept.truncate(cut);
            kept.push_str(LEFT_OUT);
            break;
        }
    }
    Some(kept)
}

/// Whether a word, or a part of it between punctuation, occurs in the call, regardless of case.
fn repeats(word: &str, own: &str) -> bool {
    let parts = word.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty());
    parts.map(str::to_lowercase).any(|part| !COMMON.contains(&part.as_str()) && own.contains(&part))
}

/// Everything that the caller wrote. For a forwarded body, its values and the caller's own field names.
fn written(call: &Call) -> Option<String> {
    match &call.prompt {
        Prompt::Relayed(relayed) if relayed.body.len() <= MAX_SEARCHED_BYTES => {
            let body = serde_json::from_slice(&relayed.body).ok()?;
            let mut text = String::new();
            add_values(&body, &mut text);
            Some(text)
        }
        Prompt::Conversation(conversation) => {
            let texts = headrace_prompt::texts_of(conversation);
            let bytes: usize = texts.iter().map(|text| text.as_ref().len()).sum();
            (bytes <= MAX_SEARCHED_BYTES).then(|| {
                let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
                texts.join("\n")
            })
        }
        Prompt::Relayed(_) | Prompt::Raw(_) | Prompt::Encode(_) => None,
    }
}

/// Adds the strings and the caller's own field names, one per line. Leaves out the model's name and the field names
/// of the outermost object, which belong to the API.
fn add_values(body: &serde_json::Value, text: &mut String) {
    let serde_json::Value::Object(fields) = body else { return };
    let mut left: Vec<&serde_json::Value> =
        fields.iter().filter(|(name, _)| name.as_str() != "model").map(|(_, value)| value).collect();
    while let Some(value) = left.pop() {
        match value {
            serde_json::Value::String(string) => {
                text.push_str(string);
                text.push('\n');
            }
            serde_json::Value::Array(values) => left.extend(values),
            serde_json::Value::Object(fields) => {
                // Names within a schema or arguments are the caller's own.
                fields.keys().filter(|name| !is_of_the_api(name)).for_each(|name| {
                    text.push_str(name);
                    text.push('\n');
                });
                left.extend(fields.values());
            }
            // Numbers and flags are parameters.
            serde_json::Value::Number(_) | serde_json::Value::Bool(_) | serde_json::Value::Null => {}
        }
    }
}

/// Whether the API defines this field name in messages and tools.
fn is_of_the_api(name: &str) -> bool {
    matches!(
        name,
        "role"
            | "content"
            | "name"
            | "type"
            | "text"
            | "tool_calls"
            | "tool_call_id"
            | "function"
            | "arguments"
            | "parameters"
            | "properties"
            | "description"
            | "required"
            | "image_url"
            | "url"
            | "source"
            | "schema"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_call_are_left_out_and_the_others_stay() {
        let own = "please pay 4111111111111111 to nightingale@example.com, project x17\nuser\n";
        let told = |sentence: &str| {
            let words = sentence.split_whitespace();
            words.map(|word| if repeats(word, own) { LEFT_OUT } else { word }).collect::<Vec<_>>().join(" ")
        };
        for (sentence, kept) in [
            ("temperature 9 is too hot for this kettle", "temperature 9 is too hot for this kettle"),
            ("invalid value: '4111111111111111' is no date", "invalid value: … is no date"),
            ("nobody is called Nightingale here", "nobody is called … here"),
            ("no such project: X17.", "no such … …"),
            ("(example.com) is blocked", "… is blocked"),
        ] {
            assert_eq!(told(sentence), kept);
        }
    }

    #[test]
    fn a_body_is_searched_in_its_values_and_not_in_the_api_s_own_words() {
        let body = serde_json::json!({
            "model": "gpt-kettle", "temperature": 9,
            "messages": [{"role": "user", "content": "Secret Canary"}],
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"properties": {"Zurich": {}}}}}],
        });
        let mut text = String::new();
        add_values(&body, &mut text);
        for there in ["Secret Canary", "weather", "Zurich"] {
            assert!(text.contains(there), "{there}");
        }
        for not_there in ["gpt-kettle", "temperature", "messages", "properties"] {
            assert!(!text.contains(not_there), "{not_there}");
        }
    }
}
