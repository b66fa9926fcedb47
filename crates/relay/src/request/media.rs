//! Finds parts that are not text in a relayed body. Knows no receiver.

use headrace_domain::MediaKind;
use headrace_wire::WireLimits;
use headrace_wire::fault::Read;
use headrace_wire::json::JsonReader;
use serde_json::Value;

use super::body_fields::BodyField;
use super::look::{self, BodyVisitor};
use super::walk;

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

/// Returns the first part in the body's messages or items that is not text and that `taken` rejects, with its kind. The
/// part is named by its path, such as `messages[2].content[1]`. The body must be one that [`super::skim`] accepted.
pub fn first_media(body: &[u8], taken: impl Fn(MediaKind) -> bool) -> Option<(String, MediaKind)> {
    let mut reader = JsonReader::new(body, usize::MAX, usize::MAX).ok()?;
    let mut media = MediaVisitor {
        taken,
        list: BodyField::Messages,
        has_messages: false,
        of_messages: None,
        of_input: None,
        message: OpenMessage::default(),
        parts: Vec::new(),
    };
    walk::body(&mut media, &mut reader, None, &walk::no_limits(), |_, r, _, _| r.skip()).ok()?;
    let found = if media.has_messages { media.of_messages } else { media.of_input };
    // A body with numbers or a depth that `serde_json` does not take is left to its receiver.
    found.filter(|_| serde_json::from_slice::<Value>(body).is_ok())
}

/// A part by its path, and its kind.
type FoundMedia = (String, MediaKind);

/// Finds the first part that is not taken: in `messages` if that is a list, else in `input`.
struct MediaVisitor<F> {
    taken: F,
    /// The list that is being read.
    list: BodyField,
    /// Whether `messages` is a list.
    has_messages: bool,
    of_messages: Option<FoundMedia>,
    of_input: Option<FoundMedia>,
    message: OpenMessage,
    /// The open parts, outermost first.
    parts: Vec<OpenPart>,
}

/// The current message or item. Only its `content` counts, or its `output` if it has no `content`.
#[derive(Default)]
struct OpenMessage {
    index: usize,
    has_content: bool,
    is_in_output: bool,
    in_content: Option<FoundMedia>,
    in_output: Option<FoundMedia>,
}

/// A part that is being read.
struct OpenPart {
    index: usize,
    kind: PartKind,
    /// Whether its `source` holds text.
    is_text: bool,
    /// The first part in its own content that is not taken.
    inside: Option<FoundMedia>,
}

/// What the type of a part says of it.
enum PartKind {
    /// It is not media.
    Other,
    /// It is the result of a tool, whose content has parts.
    ToolResult,
    /// It is of this kind, unless it is a document of text.
    Media(MediaKind),
}

impl<F: Fn(MediaKind) -> bool> MediaVisitor<F> {
    /// The part that is not taken: this one, or the first one in a tool's result.
    fn not_taken(&self, part: OpenPart) -> Option<FoundMedia> {
        let at = part.index;
        match part.kind {
            PartKind::Other => None,
            PartKind::ToolResult => part.inside.map(|(path, kind)| (format!("content[{at}].{path}"), kind)),
            PartKind::Media(MediaKind::Document) if part.is_text => None,
            PartKind::Media(kind) => (!(self.taken)(kind)).then(|| (format!("content[{at}]"), kind)),
        }
    }
}

impl<F: Fn(MediaKind) -> bool> BodyVisitor for MediaVisitor<F> {
    fn checks(&self) -> bool {
        false
    }

    fn wants(&self, field: BodyField) -> bool {
        matches!(field, BodyField::Messages | BodyField::Input)
    }

    fn field_begin(&mut self, field: BodyField) {
        self.list = field;
    }

    fn messages_end(&mut self, is_list: bool) -> Read<()> {
        self.has_messages = is_list;
        Ok(())
    }

    fn message_begin(&mut self, index: usize) {
        self.message = OpenMessage { index, ..OpenMessage::default() };
    }

    fn message_end(&mut self) -> Read<()> {
        let OpenMessage { index, has_content, in_content, in_output, .. } = std::mem::take(&mut self.message);
        let (name, found) = match self.list {
            BodyField::Messages => ("messages", &mut self.of_messages),
            _ => ("input", &mut self.of_input),
        };
        let inside = if has_content { in_content } else { in_output };
        if found.is_none()
            && let Some((path, kind)) = inside
        {
            *found = Some((format!("{name}[{index}].{path}"), kind));
        }
        Ok(())
    }

    fn said(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        self.message.has_content = true;
        self.text(r)
    }

    fn message_content(&mut self, r: &mut JsonReader<'_>, key: &str, limits: &WireLimits) -> Read<()> {
        match key {
            "content" => (self.message.has_content, self.message.is_in_output) = (true, false),
            "output" => self.message.is_in_output = true,
            _ => return r.skip(),
        }
        look::content(self, r, limits)
    }

    // Servers may read the output of a message as they read that of an item.
    fn unknown_field(&mut self, r: &mut JsonReader<'_>, key: &str, limits: &WireLimits) -> Read<()> {
        if key == "output" { self.message_content(r, key, limits) } else { r.skip() }
    }

    fn part_begin(&mut self, index: usize) {
        self.parts.push(OpenPart { index, kind: PartKind::Other, is_text: false, inside: None });
    }

    fn part_kind(&mut self, kind: &str) {
        let Some(part) = self.parts.last_mut() else { return };
        part.kind = match KINDS.iter().find(|(known, _)| *known == kind) {
            Some((_, kind)) => PartKind::Media(*kind),
            None if kind == "tool_result" => PartKind::ToolResult,
            None => PartKind::Other,
        };
    }

    fn part_payload(&mut self, r: &mut JsonReader<'_>, key: &str, _limits: &WireLimits) -> Read<()> {
        if key != "source" {
            return r.skip();
        }
        let is_text = look::is_text_source(r)?;
        if let Some(part) = self.parts.last_mut() {
            part.is_text = is_text;
        }
        Ok(())
    }

    fn part_end(&mut self) {
        let Some(found) = self.parts.pop().and_then(|part| self.not_taken(part)) else { return };
        let first = match self.parts.last_mut() {
            Some(around) => &mut around.inside,
            None if self.message.is_in_output => &mut self.message.in_output,
            None => &mut self.message.in_content,
        };
        first.get_or_insert(found);
    }

    fn text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        r.skip_string().map(drop)
    }

    fn opaque(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        r.skip_string().map(drop)
    }

    fn found(&mut self, _text: &str) {}

    fn key(&mut self, _key: &str) {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};
    use serde_json::json;

    use super::*;

    /// The same answer from a tree of the whole body.
    fn in_tree(body: &[u8], taken: impl Fn(MediaKind) -> bool) -> Option<FoundMedia> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let (list, messages) =
            ["messages", "input"].into_iter().find_map(|list| Some((list, body.get(list)?.as_array()?)))?;
        messages.iter().enumerate().find_map(|(at, message)| {
            let content = ["content", "output"].into_iter().find_map(|name| message.get(name))?;
            let (place, kind) = in_content(content, &taken)?;
            Some((format!("{list}[{at}].{place}"), kind))
        })
    }

    fn in_content(content: &Value, taken: &impl Fn(MediaKind) -> bool) -> Option<FoundMedia> {
        content.as_array()?.iter().enumerate().find_map(|(at, part)| {
            let name = part.get("type")?.as_str()?;
            if name == "tool_result" {
                let (place, kind) = in_content(part.get("content")?, taken)?;
                return Some((format!("content[{at}].{place}"), kind));
            }
            let (_, kind) = KINDS.iter().find(|(known, _)| *known == name)?;
            let source = part.pointer("/source/type").and_then(Value::as_str);
            let is_text = *kind == MediaKind::Document && matches!(source, Some("text" | "content"));
            (!is_text && !taken(*kind)).then(|| (format!("content[{at}]"), *kind))
        })
    }

    /// An object with some of these fields, in this order or in the opposite one.
    fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
        let count = fields.len();
        let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
        let fields = (subsequence((0..count).collect::<Vec<_>>(), 0..=count), values, any::<bool>());
        let built = fields.prop_map(move |(chosen, values, turned)| {
            let mut fields: Vec<_> =
                chosen.into_iter().map(|at| (names[at].to_owned(), values[at].clone())).collect();
            if turned {
                fields.reverse();
            }
            Value::Object(fields.into_iter().collect())
        });
        built.boxed()
    }

    fn one_of(values: Vec<Value>) -> BoxedStrategy<Value> {
        select(values).boxed()
    }

    fn parts(depth: u32) -> BoxedStrategy<Value> {
        let simple = one_of(vec![json!("t"), json!(null), json!(5), json!([{"type": "image"}]), json!({})]);
        if depth == 0 {
            return simple;
        }
        let kinds = [
            "text",
            "image",
            "image_url",
            "input_image",
            "document",
            "file",
            "input_audio",
            "video_url",
            "container_upload",
            "tool_result",
            "tool_result",
            "later",
        ];
        let mut kinds: Vec<Value> = kinds.map(Value::from).to_vec();
        kinds.push(json!(7));
        let sources = vec![
            json!({"type": "text", "data": "d"}),
            json!({"data": "d", "type": "base64"}),
            json!({"type": "content", "content": [{"type": "image"}]}),
            json!({"content": [{"type": "image"}]}),
            json!({"type": 5}),
            json!("label"),
            json!(["text"]),
        ];
        let part = object(vec![
            ("type", one_of(kinds)),
            ("source", one_of(sources)),
            ("content", parts(depth - 1)),
            ("image_url", one_of(vec![json!("https://x"), json!({"url": "data:,x", "type": "text"})])),
            ("Text", one_of(vec![json!("t"), json!([{"type": "image"}])])),
            ("file_id", one_of(vec![json!("f"), json!(1)])),
            ("image_embeds", one_of(vec![json!("e")])),
        ]);
        prop_oneof![1 => simple.clone(), 4 => prop::collection::vec(prop_oneof![1 => simple, 5 => part], 0..4)
            .prop_map(Value::from)]
        .boxed()
    }

    fn bodies() -> BoxedStrategy<Value> {
        let message = || {
            let fields = object(vec![
                ("role", one_of(vec![json!("user"), json!(1)])),
                ("output", parts(2)),
                ("content", parts(3)),
                ("summary", parts(1)),
                ("tools", one_of(vec![json!([{"Type": "x", "content": [{"type": "image"}]}])])),
            ]);
            prop_oneof![1 => one_of(vec![json!("m"), json!([{"content": [{"type": "image"}]}])]), 5 => fields]
        };
        let list = || {
            let list = prop::collection::vec(message(), 0..4).prop_map(Value::from);
            prop_oneof![1 => one_of(vec![json!("text"), json!({"content": [{"type": "image"}]})]), 5 => list]
                .boxed()
        };
        object(vec![
            ("system", parts(1)),
            ("messages", list()),
            ("input", list()),
            ("tools", parts(1)),
            ("temperature", one_of(vec![json!(1)])),
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_visit_finds_what_a_tree_shows(body in bodies(), taken in prop::option::of(select(vec![
            MediaKind::Audio, MediaKind::Document, MediaKind::Image, MediaKind::Video,
        ]))) {
            let body = body.to_string();
            let takes = |kind| Some(kind) == taken;
            prop_assert_eq!(first_media(body.as_bytes(), takes), in_tree(body.as_bytes(), takes), "{}", body);
        }
    }

    #[test]
    fn one_list_and_one_content_of_a_message_count() {
        let image = json!({"type": "image"});
        let rows = [
            (json!({"input": [{"content": [image]}]}), Some("input[0].content[0]")),
            (json!({"input": [{"content": [image]}], "messages": []}), None),
            (json!({"input": [{"content": [image]}], "messages": "m"}), Some("input[0].content[0]")),
            (json!({"system": [image], "messages": [{"content": "c"}]}), None),
            (json!({"messages": [{"output": [image]}]}), Some("messages[0].content[0]")),
            (json!({"messages": [{"output": [image], "content": null}]}), None),
            (
                json!({"messages": ["m", {"content": ["t", image]}, {"content": [image]}]}),
                Some("messages[1].content[1]"),
            ),
            (json!({"input": [{"summary": [image]}]}), None),
            (
                json!({"messages": [{"content": [{"content": [image], "type": "tool_result"}]}]}),
                Some("messages[0].content[0].content[0]"),
            ),
            (json!({"messages": [{"content": [{"content": [image], "type": "later"}]}]}), None),
            (
                json!({"messages": [{"content": [{"source": {"type": "text"}, "type": "image"}]}]}),
                Some("messages[0].content[0]"),
            ),
        ];
        for (body, expected) in rows {
            let found = first_media(body.to_string().as_bytes(), |_| false);
            let expected = expected.map(|place| (place.to_owned(), MediaKind::Image));
            assert_eq!(found, expected, "{body}");
        }
    }

    /// The receiver judges what `serde_json` does not take.
    #[test]
    fn media_beside_numbers_of_no_double_are_left_to_the_receiver() {
        let (open, close) = ("[".repeat(130), "]".repeat(130));
        for (field, expected) in
            [("1e999".to_owned(), false), (format!("{open}{close}"), false), ("1".to_owned(), true)]
        {
            let body = format!(r#"{{"x":{field},"messages":[{{"content":[{{"type":"image"}}]}}]}}"#);
            assert_eq!(first_media(body.as_bytes(), |_| false).is_some(), expected, "{body}");
            assert_eq!(in_tree(body.as_bytes(), |_| false).is_some(), expected, "{body}");
        }
    }

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
