//! Calls as tags in free text, for servers that enforce tags but no equivalent grammar.

use headrace_domain::{Conversation, FormTag, TaggedForm};
use serde_json::Value;

use super::{CallConstraints, TEXT_GRAMMAR, TEXT_PATTERN};
use crate::family::{CallLayout, ObjectLayout, ReplyFamily};

impl ReplyFamily {
    /// Expresses [`ReplyFamily::calls_as_grammar`] as free text in which each call is between tags. Returns `None` if
    /// no constraint is needed or tags cannot express it. Tags cannot express a required call, a limit of one call, or
    /// arguments that are a text with its own grammar. Nor can they express calls of families that use another notation
    /// or special tokens.
    pub fn calls_as_tags(
        self,
        conversation: &Conversation,
        special: &dyn Fn(&str) -> Option<u32>,
    ) -> Option<TaggedForm> {
        let asked = CallConstraints::of(conversation).filter(|asked| !asked.required && !asked.one)?;
        let row = self.row()?;
        let CallLayout::Object(ObjectLayout { name, arguments, number: "", array: false }) = row.body else {
            return None;
        };
        let (open, close) = row.written.each;
        let trigger = row.open.first().copied().filter(|mark| open.starts_with(mark))?;
        let marks = row.open.iter().chain(row.close);
        if row.written.all != ("", "") || marks.copied().any(|mark| special(mark).is_some()) {
            return None;
        }
        let tag = |tool: &&headrace_domain::Tool| {
            let mut schema = asked.schema(tool);
            let fields = schema.as_object_mut()?;
            fields.shift_remove("x-guidance");
            if [TEXT_GRAMMAR, TEXT_PATTERN].iter().any(|key| fields.contains_key(*key)) {
                return None;
            }
            let tool = Value::from(tool.name.as_str());
            let begin = format!("{open}{{\"{name}\": {tool}, \"{arguments}\": ");
            Some(FormTag { begin, schema, end: format!("}}{close}") })
        };
        let tags = asked.tools.iter().map(tag).collect::<Option<Vec<_>>>()?;
        Some(TaggedForm { tags, triggers: vec![trigger.to_owned()] })
    }
}
