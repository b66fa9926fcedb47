//! A stream of OpenAI's chunks, for either endpoint: the frame around the events of an answer. Knows nothing about the
//! content of a choice.

use bytes::BytesMut;
use headrace_domain::{Call, ReplyEvent, Usage};

use crate::common::encoder::{EVENT_STREAM, ReplyEncoder, ReplyMeta};
use crate::common::error::ErrorFacts;
use crate::openai::frame::ChunkFrame;

/// Writes the chunks of an endpoint's choices.
pub(super) trait ChunkWriter: Send {
    /// Writes the chunks for one event, each within the frame.
    fn event(&mut self, frame: &ChunkFrame, event: &ReplyEvent, out: &mut BytesMut);
}

/// The stream of an endpoint. `C` writes its choices.
pub(super) struct OpenAiStream<C> {
    frame: ChunkFrame,
    choices: C,
}

impl<C: ChunkWriter> OpenAiStream<C> {
    /// Creates a stream of chunks with this `object`.
    pub(super) fn new(call: &Call, meta: &ReplyMeta, object: &str, choices: C) -> Self {
        Self { frame: ChunkFrame::new(call, meta, object), choices }
    }
}

impl<C: ChunkWriter> ReplyEncoder for OpenAiStream<C> {
    fn begin(&mut self, _prompt_usage: &Usage, _out: &mut BytesMut) {}

    fn event(&mut self, event: &ReplyEvent, out: &mut BytesMut) {
        if !self.frame.over {
            self.choices.event(&self.frame, event, out);
        }
    }

    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut) {
        self.frame.finish(usage, explain, out);
    }

    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut) {
        self.frame.fail(facts, out);
    }

    fn keep_alive(&mut self, out: &mut BytesMut) {
        self.frame.keep_alive(out);
    }

    fn content_type(&self) -> &'static str {
        EVENT_STREAM
    }
}
