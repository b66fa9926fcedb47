//! `encrypted_content`: reasoning and compacted turns for a caller for whom nothing is stored. The encoding lets
//! clients pass them on unread. It hides nothing from the caller, who has seen the content. Knows no items.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// The content of the field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SealedReasoning {
    /// Text of this server.
    Text(String),
    /// Data that only the server that made it can read.
    Foreign(String),
}

const TEXT: &str = "hr1t.";
const FOREIGN: &str = "hr1f.";

impl SealedReasoning {
    /// Encodes the content for an answer.
    pub(super) fn to_field(&self) -> String {
        let (mark, text) = match self {
            Self::Text(text) => (TEXT, text),
            Self::Foreign(text) => (FOREIGN, text),
        };
        let mut field = mark.to_owned();
        STANDARD_NO_PAD.encode_string(text, &mut field);
        field
    }

    /// Decodes a field that a client sent back. `None` if this server did not make it.
    pub(super) fn of_field(field: &str) -> Option<Self> {
        let open = |text: &str| String::from_utf8(STANDARD_NO_PAD.decode(text).ok()?).ok();
        match (field.strip_prefix(TEXT), field.strip_prefix(FOREIGN)) {
            (Some(text), _) => open(text).map(Self::Text),
            (_, Some(text)) => open(text).map(Self::Foreign),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_comes_back_and_nothing_else_does() {
        for sealed in
            [SealedReasoning::Text("Größe \u{0} 😀".to_owned()), SealedReasoning::Foreign("gAAA".to_owned())]
        {
            assert_eq!(SealedReasoning::of_field(&sealed.to_field()), Some(sealed));
        }
        for foreign in ["", "gAAAAABpM0Yj", "hr1t.%%%", "hr1t.gA=", "hr1t._w"] {
            assert_eq!(SealedReasoning::of_field(foreign), None, "{foreign}");
        }
    }
}
