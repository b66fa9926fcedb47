//! Finds parts that are not text in a relayed body. Knows no receiver.

use headrace_domain::MediaKind;
use serde_json::Value;

/// Types of parts and their kinds of media.
const KINDS: &[(&str, MediaKind)] = &[
    ("audio", MediaKind::Audio),
    ("audio_url", MediaKind::Audio),
    ("input_audio", MediaKind::Audio),
    ("document", MediaKind::Document),
    ("file", MediaKind::Document),
    ("input_file", MediaKind::Document),
    ("image", MediaKind::Image),
    ("image_url", MediaKind::Image),
    ("input_image", MediaKind::Image),
    ("video", MediaKind::Video),
    ("video_url", MediaKind::Video),
];

/// Types of document sources that are text.
const TEXTS: &[&str] = &["text", "content"];

/// Returns the first part in the body's messages or items that is not text and that `taken` rejects, with its kind. The
/// part is named by its path, such as `messages[2].content[1]`. The body was read before, so it is JSON within the
/// limits.
pub fn first_media(body: &[u8], taken: impl Fn(MediaKind) -> bool) -> Option<(String, MediaKind)> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let (list, messages) =
        ["messages", "input"].into_iter().find_map(|list| Some((list, body.get(list)?.as_array()?)))?;
    messages.iter().enumerate().find_map(|(at, message)| {
        let content = ["content", "output"].into_iter().find_map(|name| message.get(name))?;
        let (place, kind) = in_content(content, &taken)?;
        Some((format!("{list}[{at}].{place}"), kind))
    })
}

fn in_content(content: &Value, taken: &impl Fn(MediaKind) -> bool) -> Option<(String, MediaKind)> {
    content.as_array()?.iter().enumerate().find_map(|(at, part)| {
        let name = part.get("type")?.as_str()?;
        if name == "tool_result" {
            let (place, kind) = in_content(part.get("content")?, taken)?;
            return Some((format!("content[{at}].{place}"), kind));
        }
        let (_, kind) = KINDS.iter().find(|(known, _)| *known == name)?;
        let source = part.pointer("/source/type").and_then(Value::as_str);
        let is_text = *kind == MediaKind::Document && source.is_some_and(|source| TEXTS.contains(&source));
        (!is_text && !taken(*kind)).then(|| (format!("content[{at}]"), *kind))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_taken_is_found_by_its_place() {
        let found = |content: Value, taken: MediaKind| {
            let body = json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": content}]});
            first_media(body.to_string().as_bytes(), |kind| kind == taken)
        };
        let (text, image) = (
            json!({"type": "text", "text": "image"}),
            json!({"type": "image_url", "image_url": {"url": "u"}}),
        );
        let at = |place: &str, kind| Some((format!("messages[1].{place}"), kind));
        assert_eq!(found(json!([text, image]), MediaKind::Audio), at("content[1]", MediaKind::Image));
        assert_eq!(found(json!([text, image]), MediaKind::Image), None);
        let result = json!([{"type": "tool_result", "tool_use_id": "t", "content": [text, {"type": "image", "source": {}}]}]);
        assert_eq!(found(result, MediaKind::Audio), at("content[0].content[1]", MediaKind::Image));
        let papers = json!([
            {"type": "document", "source": {"type": "text", "data": "d"}},
            {"type": "document", "source": {"type": "base64", "data": "d"}}]);
        assert_eq!(found(papers, MediaKind::Image), at("content[1]", MediaKind::Document));
        assert_eq!(found(json!("image_url"), MediaKind::Audio), None);
    }
}
