//! What travels with a caller for whom nothing is stored (`encrypted_content`): thoughts and compacted turns, in a form that goes
//! through any client unread. It hides nothing from the caller, who was shown it. Knows no items.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// What the seal holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sealed {
    /// Text of ours.
    Text(String),
    /// What only the server that made it can read.
    Foreign(String),
}

const TEXT: &str = "hr1t.";
const FOREIGN: &str = "hr1f.";

impl Sealed {
    /// As it is sent.
    pub(super) fn to_field(&self) -> String {
        let (mark, text) = match self {
            Self::Text(text) => (TEXT, text),
            Self::Foreign(text) => (FOREIGN, text),
        };
        let mut field = mark.to_owned();
        STANDARD_NO_PAD.encode_string(text, &mut field);
        field
    }

    /// What a field that came back holds. `None`: it is not one of ours.
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
        for sealed in [Sealed::Text("Größe \u{0} 😀".to_owned()), Sealed::Foreign("gAAA".to_owned())] {
            assert_eq!(Sealed::of_field(&sealed.to_field()), Some(sealed));
        }
        for foreign in ["", "gAAAAABpM0Yj", "hr1t.%%%", "hr1t.gA=", "hr1t._w"] {
            assert_eq!(Sealed::of_field(foreign), None, "{foreign}");
        }
    }
}
