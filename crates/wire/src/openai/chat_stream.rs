//! OpenAI's stream of chat completion chunks. The text of an event is escaped directly into the output.
//!
//! Source: <https://platform.openai.com/docs/api-reference/chat-streaming>.

use std::collections::BTreeMap;

use bytes::BytesMut;
use headrace_domain::{Call, ReplyEvent, TokenLogprob};

use crate::common::custom::CustomInputReader;
use crate::common::encoder::ReplyMeta;
use crate::json::writer;
use crate::json::writer::{chat_logprobs, raw, value};
use crate::openai::called::CalledTools;
use crate::openai::frame::WantedFields;
use crate::openai::frame::{ChunkFrame, write_finish_reason, write_prompt, write_token_ids};
use crate::openai::reasoning_details::{ReasoningDetail, write_details};
use crate::openai::stream::{ChunkWriter, OpenAiStream};

/// The start of the delta of a text, and of the delta of a reasoning text.
const CONTENT: &str = ",\"delta\":{\"content\":";
const REASONING: &str = ",\"delta\":{\"reasoning_content\":";
/// The bytes after a delta without log-probabilities.
const NO_LOGPROBS: &str = "},\"logprobs\":null,\"finish_reason\":null";

pub(super) struct ChatStream {
    wanted: WantedFields,
    called: CalledTools,
    /// Calls of custom tools, by choice and call index. Each `CustomInputReader` extracts the text from the arguments.
    texts: BTreeMap<(u32, u32), CustomInputReader>,
    /// Choices whose role was sent.
    opened: Vec<u32>,
    prompt_sent: bool,
    /// By choice, once the choice has reasoning.
    reasoning: BTreeMap<u32, StreamedReasoning>,
    /// The bytes around the texts of the first choice that had text, for its current kind of delta.
    around: Option<ChunkTemplate>,
}

/// The bytes around the text of a chunk that has nothing else. They are the same for every such chunk of a choice, so
/// they are built once.
struct ChunkTemplate {
    choice: u32,
    delta: &'static str,
    /// Up to the text, including its opening quote.
    before: BytesMut,
    /// From the closing quote on.
    after: BytesMut,
}

impl ChunkTemplate {
    fn new(frame: &ChunkFrame, choice: u32, delta: &'static str) -> Self {
        let (mut before, mut after) = (BytesMut::with_capacity(320), BytesMut::with_capacity(80));
        frame.open(&mut before, choice);
        raw(&mut before, delta);
        raw(&mut before, "\"");
        raw(&mut after, "\"");
        raw(&mut after, NO_LOGPROBS);
        frame.close(&mut after);
        Self { choice, delta, before, after }
    }

    fn write(&self, text: &str, out: &mut BytesMut) {
        out.reserve(self.before.len() + text.len() + self.after.len());
        if writer::is_plain(text) {
            out.extend_from_slice(&self.before);
            raw(out, text);
            return out.extend_from_slice(&self.after);
        }
        let (before, after) = (self.before.split_last(), self.after.split_first());
        out.extend_from_slice(before.map_or(&[], |(_, before)| before));
        value(out, text);
        out.extend_from_slice(after.map_or(&[], |(_, after)| after));
    }
}

/// The reasoning of a choice.
#[derive(Default)]
struct StreamedReasoning {
    /// The text of the current section. The detail at the end of the section contains all of it.
    text: String,
    /// The number of details written.
    details: usize,
}

impl ChatStream {
    /// Creates the encoder of a call's answer.
    pub(super) fn encoder(call: &Call, meta: &ReplyMeta) -> OpenAiStream<Self> {
        let choices = Self {
            wanted: WantedFields::of(call),
            called: CalledTools::of(call),
            texts: BTreeMap::new(),
            opened: Vec::new(),
            prompt_sent: false,
            reasoning: BTreeMap::new(),
            around: None,
        };
        OpenAiStream::new(call, meta, "chat.completion.chunk", choices)
    }

    /// Writes the chunk with the role. It comes with a choice's first event of any kind, even if the first token is
    /// only a part of a character. All choices share one prompt, which only the first such chunk carries.
    fn open(
        &mut self,
        frame: &ChunkFrame,
        choice: u32,
        prompt: Option<(&[u32], &[TokenLogprob])>,
        out: &mut BytesMut,
    ) {
        if self.opened.contains(&choice) {
            return;
        }
        self.opened.push(choice);
        frame.open(out, choice);
        raw(
            out,
            ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null",
        );
        let prompt = prompt.filter(|_| !std::mem::replace(&mut self.prompt_sent, true));
        frame.close_with(out, |out| {
            if let Some((ids, logprobs)) = prompt {
                write_prompt(out, self.wanted, ids, logprobs);
            }
        });
    }

    /// Writes a chunk of text, with its ids and log-probabilities. `delta` is the start of its delta.
    fn text(
        &mut self,
        frame: &ChunkFrame,
        choice: u32,
        (delta, text): (&'static str, &str),
        (ids, logprobs): (&[u32], &[TokenLogprob]),
        out: &mut BytesMut,
    ) {
        self.open(frame, choice, None, out);
        let (ids, logprobs) = self.wanted.of_text(ids, logprobs);
        if text.is_empty() && ids.is_empty() && logprobs.is_empty() {
            return;
        }
        if logprobs.is_empty() && !self.wanted.token_ids {
            let around = self.around.get_or_insert_with(|| ChunkTemplate::new(frame, choice, delta));
            if around.choice == choice {
                if around.delta != delta {
                    *around = ChunkTemplate::new(frame, choice, delta);
                }
                return around.write(text, out);
            }
        }
        frame.open(out, choice);
        raw(out, delta);
        writer::text(out, text);
        if logprobs.is_empty() {
            raw(out, NO_LOGPROBS);
        } else {
            raw(out, "},\"logprobs\":{\"content\":[");
            chat_logprobs(out, logprobs);
            raw(out, "],\"refusal\":null},\"finish_reason\":null");
        }
        write_token_ids(out, self.wanted, ids);
        frame.close(out);
    }

    /// Writes a chunk with a reasoning detail: the end of a section, or a section that is encrypted.
    fn detail(
        &mut self,
        frame: &ChunkFrame,
        choice: u32,
        detail: impl FnOnce(String) -> ReasoningDetail,
        out: &mut BytesMut,
    ) {
        self.open(frame, choice, None, out);
        let reasoning = self.reasoning.entry(choice).or_default();
        let detail = detail(std::mem::take(&mut reasoning.text));
        frame.open(out, choice);
        raw(out, ",\"delta\":{");
        write_details(out, reasoning.details, std::slice::from_ref(&detail));
        raw(out, NO_LOGPROBS);
        frame.close(out);
        reasoning.details += 1;
    }

    /// Writes a chunk with a piece of a tool call.
    fn tool(
        &mut self,
        frame: &ChunkFrame,
        (choice, index): (u32, u32),
        out: &mut BytesMut,
        rest: impl FnOnce(&mut BytesMut),
    ) {
        self.open(frame, choice, None, out);
        frame.open(out, choice);
        raw(out, ",\"delta\":{\"tool_calls\":[{\"index\":");
        value(out, &index);
        rest(out);
        raw(out, "}]},\"logprobs\":null,\"finish_reason\":null");
        frame.close(out);
    }

    /// Writes a chunk with more of the text for a custom tool.
    fn input(&mut self, frame: &ChunkFrame, call: (u32, u32), text: &str, out: &mut BytesMut) {
        if !text.is_empty() {
            self.tool(frame, call, out, |out| {
                raw(out, ",\"custom\":{\"input\":");
                value(out, text);
                raw(out, "}");
            });
        }
    }

    /// Writes the text that the calls of a choice held back until their end.
    fn end_inputs(&mut self, frame: &ChunkFrame, choice: u32, out: &mut BytesMut) {
        let calls: Vec<_> =
            self.texts.range((choice, 0)..=(choice, u32::MAX)).map(|(call, _)| *call).collect();
        for call in calls {
            let text = self.texts.remove(&call).map(|mut text| text.finish());
            self.input(frame, call, &text.unwrap_or_default(), out);
        }
    }
}

impl ChunkWriter for ChatStream {
    fn event(&mut self, frame: &ChunkFrame, event: &ReplyEvent, out: &mut BytesMut) {
        match event {
            ReplyEvent::Prompt { choice, prompt } => {
                self.open(frame, *choice, Some((&prompt.ids, &prompt.logprobs)), out);
            }
            ReplyEvent::Text { choice, text, ids, logprobs } => {
                self.text(frame, *choice, (CONTENT, text), (ids, logprobs), out);
            }
            ReplyEvent::Reasoning { choice, .. } if self.wanted.no_reasoning => {
                self.open(frame, *choice, None, out);
            }
            ReplyEvent::Reasoning { choice, text, ids, logprobs } => {
                self.reasoning.entry(*choice).or_default().text.push_str(text);
                self.text(frame, *choice, (REASONING, text), (ids, logprobs), out);
            }
            ReplyEvent::ReasoningSignature { choice, signature } => {
                let signature = signature.clone();
                self.detail(frame, *choice, |text| ReasoningDetail::Signed { text, signature }, out);
            }
            ReplyEvent::RedactedReasoning { choice, data } => {
                let data = data.clone();
                self.detail(frame, *choice, |_| ReasoningDetail::Encrypted { data }, out);
            }
            ReplyEvent::ToolCallStart { choice, index, id, name } if self.called.is_custom(name) => {
                self.texts.insert((*choice, *index), CustomInputReader::default());
                self.tool(frame, (*choice, *index), out, |out| {
                    raw(out, ",\"id\":");
                    value(out, id);
                    raw(out, ",\"type\":\"custom\",\"custom\":{\"name\":");
                    value(out, name);
                    raw(out, ",\"input\":\"\"}");
                });
            }
            ReplyEvent::ToolCallStart { choice, index, id, name } => {
                self.tool(frame, (*choice, *index), out, |out| {
                    raw(out, ",\"id\":");
                    value(out, id);
                    raw(out, ",\"type\":\"function\",\"function\":{\"name\":");
                    value(out, name);
                    raw(out, ",\"arguments\":\"\"}");
                });
            }
            ReplyEvent::ToolCallArguments { choice, index, fragment }
                if self.texts.contains_key(&(*choice, *index)) =>
            {
                let text = self.texts.get_mut(&(*choice, *index)).map(|text| text.push(fragment));
                self.input(frame, (*choice, *index), &text.unwrap_or_default(), out);
            }
            ReplyEvent::ToolCallArguments { choice, index, fragment } => {
                self.tool(frame, (*choice, *index), out, |out| {
                    raw(out, ",\"function\":{\"arguments\":");
                    value(out, fragment);
                    raw(out, "}");
                });
            }
            // A generated answer has no such events.
            ReplyEvent::Encoded { .. } => {}
            ReplyEvent::Finish { choice, reason } => {
                self.open(frame, *choice, None, out);
                self.end_inputs(frame, *choice, out);
                frame.open(out, *choice);
                raw(out, ",\"delta\":{},\"logprobs\":null");
                write_finish_reason(out, Some(self.called.reason(reason)));
                frame.close(out);
            }
        }
    }
}
