//! `reasoning_details`: where answers of OpenAI's dialect keep what vouches for reasoning. The dialect itself has no place for it;
//! the shape is OpenRouter's. A client gives the list back unchanged with the message, in the next turn.
//!
//! Source: <https://openrouter.ai/docs/use-cases/reasoning-tokens>.

use bytes::BytesMut;

use crate::json_out::{list, raw, value};

/// One entry.
pub(super) enum Detail {
    /// A section's whole text, and its signature.
    Signed {
        /// The text; it stands in `reasoning_content` too.
        text: String,
        /// The signature.
        signature: String,
    },
    /// A section that only the model's own server can read.
    Encrypted {
        /// The section.
        data: String,
    },
}

/// `"reasoning_details":[…]`, the first entry with the index `from`.
pub(super) fn write_details(out: &mut BytesMut, from: usize, details: &[Detail]) {
    raw(out, "\"reasoning_details\":[");
    list(out, details.iter().enumerate(), |out, (at, detail)| {
        match detail {
            Detail::Signed { text, signature } => {
                raw(out, "{\"type\":\"reasoning.text\",\"text\":");
                value(out, text);
                raw(out, ",\"signature\":");
                value(out, signature);
            }
            Detail::Encrypted { data } => {
                raw(out, "{\"type\":\"reasoning.encrypted\",\"data\":");
                value(out, data);
            }
        }
        raw(out, ",\"format\":\"anthropic-claude-v1\",\"index\":");
        value(out, &(from + at));
        raw(out, "}");
    });
    raw(out, "]");
}
