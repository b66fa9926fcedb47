//! `reasoning_details`: the signatures and encrypted sections of reasoning in answers of OpenAI's dialect. The dialect
//! itself has no place for them, so the shape is OpenRouter's. A client sends the list back unchanged with the message
//! in the next turn.
//!
//! Source: <https://openrouter.ai/docs/use-cases/reasoning-tokens>.

use bytes::BytesMut;

use crate::json::writer::{list, raw, value};

/// One entry of the list.
pub(super) enum ReasoningDetail {
    /// The whole text of a section, and its signature.
    Signed {
        /// The text, which `reasoning_content` contains as well.
        text: String,
        /// The signature.
        signature: String,
    },
    /// A section that only the model's own server can read.
    Encrypted {
        /// The encrypted section.
        data: String,
    },
}

/// Writes `"reasoning_details":[…]`. The first entry has the index `from`.
pub(super) fn write_details(out: &mut BytesMut, from: usize, details: &[ReasoningDetail]) {
    raw(out, "\"reasoning_details\":[");
    list(out, details.iter().enumerate(), |out, (at, detail)| {
        match detail {
            ReasoningDetail::Signed { text, signature } => {
                raw(out, "{\"type\":\"reasoning.text\",\"text\":");
                value(out, text);
                raw(out, ",\"signature\":");
                value(out, signature);
            }
            ReasoningDetail::Encrypted { data } => {
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
