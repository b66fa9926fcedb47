//! OpenAI's stream of text completions. The text of an event is escaped directly into the output.
//!
//! Source: <https://platform.openai.com/docs/api-reference/completions/create>.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use headrace_domain::{Call, ReplyEvent, ShownPrompt, TokenLogprob};

use crate::common::encoder::ReplyMeta;
use crate::json::writer;
use crate::json::writer::{raw, value};
use crate::openai::completion_logprobs;
use crate::openai::completion_logprobs::TextOffsets;
use crate::openai::frame::WantedFields;
use crate::openai::frame::{ChunkFrame, PromptFields, write_finish_reason, write_token_ids};
use crate::openai::stream::{ChunkWriter, OpenAiStream};

pub(super) struct CompletionsStream {
    wanted: WantedFields,
    /// By choice. Used only if log-probabilities are requested.
    offsets: BTreeMap<u32, TextOffsets>,
    prompts: PromptFields,
}

impl CompletionsStream {
    /// Creates the encoder of a call's answer.
    pub(super) fn encoder(call: &Call, meta: &ReplyMeta) -> OpenAiStream<Self> {
        let (offsets, prompts) = (BTreeMap::new(), PromptFields::default());
        OpenAiStream::new(
            call,
            meta,
            "text_completion",
            Self { wanted: WantedFields::of(call), offsets, prompts },
        )
    }

    fn prompt(&mut self, frame: &ChunkFrame, choice: u32, prompt: &Arc<ShownPrompt>, out: &mut BytesMut) {
        let wanted = self.wanted;
        if !wanted.echo && !wanted.token_ids && !wanted.prompt_logprobs {
            return;
        }
        frame.open(out, choice);
        raw(out, ",\"text\":");
        value(out, if wanted.echo { prompt.text.as_str() } else { "" });
        raw(out, ",\"logprobs\":");
        if wanted.echo && wanted.logprobs {
            let places = self.offsets.entry(choice).or_default().echoed(&prompt.text, &prompt.logprobs);
            completion_logprobs::write(out, [prompt.logprobs.as_slice(), &[]], &places);
        } else {
            raw(out, "null");
        }
        raw(out, ",\"finish_reason\":null");
        self.prompts.write(out, wanted, prompt);
        frame.close(out);
    }

    fn text(
        &mut self,
        frame: &ChunkFrame,
        choice: u32,
        text: &str,
        (ids, logprobs): (&[u32], &[TokenLogprob]),
        out: &mut BytesMut,
    ) {
        let (ids, logprobs) = self.wanted.of_text(ids, logprobs);
        if text.is_empty() && ids.is_empty() && logprobs.is_empty() {
            return;
        }
        frame.open(out, choice);
        raw(out, ",\"text\":");
        writer::text(out, text);
        raw(out, ",\"logprobs\":");
        if logprobs.is_empty() {
            raw(out, "null");
        } else {
            let places = self.offsets.entry(choice).or_default().generated(logprobs);
            completion_logprobs::write(out, [logprobs, &[]], &places);
        }
        raw(out, ",\"finish_reason\":null");
        write_token_ids(out, self.wanted, ids);
        frame.close(out);
    }
}

impl ChunkWriter for CompletionsStream {
    fn event(&mut self, frame: &ChunkFrame, event: &ReplyEvent, out: &mut BytesMut) {
        match event {
            ReplyEvent::Prompt { choice, prompt } => self.prompt(frame, *choice, prompt, out),
            ReplyEvent::Text { choice, text, ids, logprobs }
            | ReplyEvent::Reasoning { choice, text, ids, logprobs } => {
                self.text(frame, *choice, text, (ids, logprobs), out);
            }
            // A raw completion is not parsed, so its producer finds no tool calls in it.
            ReplyEvent::ToolCallStart { .. } | ReplyEvent::ToolCallArguments { .. } => {}
            // The dialect has no place for reasoning signatures either.
            ReplyEvent::ReasoningSignature { .. }
            | ReplyEvent::RedactedReasoning { .. }
            | ReplyEvent::Encoded { .. } => {}
            ReplyEvent::Finish { choice, reason } => {
                frame.open(out, *choice);
                raw(out, ",\"text\":\"\",\"logprobs\":null");
                write_finish_reason(out, Some(reason));
                frame.close(out);
            }
        }
    }
}
