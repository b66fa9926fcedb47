//! What an upstream said of a call, without what the call itself says: a trace keeps no word of a prompt. Must not know why the
//! upstream said it.

use headrace_domain::{Call, Prompt};

/// The longest sentence that is kept, in characters.
const MAX_KEPT_CHARS: usize = 300;
/// More bytes of a call are not searched for the words of a sentence: then no word of it is kept.
const MAX_SEARCHED_BYTES: usize = 256 << 10;
/// What stands for words that the call has, too.
const LEFT_OUT: &str = "…";
/// Short words that say nothing of a prompt.
const COMMON: [&str; 28] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "can", "for", "from", "has", "in", "is", "it",
    "its", "may", "must", "no", "not", "of", "on", "or", "than", "the", "to", "too",
];

/// A sentence without the words that its call has, too. `None` if the call cannot be read or is too long to be searched.
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

/// Whether a word, or a part of it between signs, stands in the call, in whatever case.
fn repeats(word: &str, own: &str) -> bool {
    let parts = word.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty());
    parts.map(str::to_lowercase).any(|part| !COMMON.contains(&part.as_str()) && own.contains(&part))
}

/// Everything that the caller wrote. A body that is passed on is taken without the names of its fields.
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

/// Strings, numbers and names in what the caller sent, each on a line. The name of the model, and fields of the outermost object, are
/// the API's words and no caller's.
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

/// Names of fields that messages and tools have in the API.
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
