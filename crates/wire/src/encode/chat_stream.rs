//! OpenAI's stream of chat completion chunks. The text of an event is escaped straight into the output.
//!
//! Source: <https://platform.openai.com/docs/api-reference/chat-streaming>.

use bytes::BytesMut;
use headrace_domain::{Call, ReplyEvent, TokenLogprob, Usage};

use super::frame::{Frame, write_finish_reason, write_prompt, write_token_ids};
use super::{EVENT_STREAM, ReplyEncoder, ReplyMeta, Wanted};
use crate::ErrorFacts;
use crate::json_out::{chat_logprobs, raw, value};

pub(super) struct ChatStream {
    frame: Frame,
    wanted: Wanted,
    /// Choices whose role was sent.
    opened: Vec<u32>,
    prompt_sent: bool,
}

impl ChatStream {
    pub(super) fn new(call: &Call, meta: &ReplyMeta) -> Self {
        Self {
            frame: Frame::new(call, meta, "chat.completion.chunk"),
            wanted: Wanted::of(call),
            opened: Vec::new(),
            prompt_sent: false,
        }
    }

    /// The chunk with the role comes with a choice's first event, whatever that is: also where the first token is
    /// but part of a character. All choices share one prompt, which the first such chunk carries.
    fn open(&mut self, choice: u32, prompt: Option<(&[u32], &[TokenLogprob])>, out: &mut BytesMut) {
        if self.opened.contains(&choice) {
            return;
        }
        self.opened.push(choice);
        self.frame.open(out, choice);
        raw(
            out,
            ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null",
        );
        let prompt = prompt.filter(|_| !std::mem::replace(&mut self.prompt_sent, true));
        self.frame.close_with(out, |out| {
            if let Some((ids, logprobs)) = prompt {
                write_prompt(out, self.wanted, ids, logprobs);
            }
        });
    }

    /// A chunk of text under `key`, with what came beside it.
    fn text(
        &mut self,
        choice: u32,
        (key, text): (&str, &str),
        ids: &[u32],
        logprobs: &[TokenLogprob],
        out: &mut BytesMut,
    ) {
        self.open(choice, None, out);
        let ids = if self.wanted.token_ids { ids } else { &[] };
        let logprobs = if self.wanted.logprobs { logprobs } else { &[] };
        if text.is_empty() && ids.is_empty() && logprobs.is_empty() {
            return;
        }
        self.frame.open(out, choice);
        raw(out, ",\"delta\":{\"");
        raw(out, key);
        raw(out, "\":");
        value(out, text);
        if logprobs.is_empty() {
            raw(out, "},\"logprobs\":null,\"finish_reason\":null");
        } else {
            raw(out, "},\"logprobs\":{\"content\":[");
            chat_logprobs(out, logprobs);
            raw(out, "],\"refusal\":null},\"finish_reason\":null");
        }
        write_token_ids(out, self.wanted, ids);
        self.frame.close(out);
    }

    /// A chunk with a piece of a tool call.
    fn tool(&mut self, choice: u32, index: u32, out: &mut BytesMut, rest: impl FnOnce(&mut BytesMut)) {
        self.open(choice, None, out);
        self.frame.open(out, choice);
        raw(out, ",\"delta\":{\"tool_calls\":[{\"index\":");
        value(out, &index);
        rest(out);
        raw(out, "}]},\"logprobs\":null,\"finish_reason\":null");
        self.frame.close(out);
    }
}

impl ReplyEncoder for ChatStream {
    fn begin(&mut self, _prompt_usage: &Usage, _out: &mut BytesMut) {}

    fn event(&mut self, event: &ReplyEvent, out: &mut BytesMut) {
        if self.frame.over {
            return;
        }
        match event {
            ReplyEvent::Prompt { choice, prompt } => {
                self.open(*choice, Some((&prompt.ids, &prompt.logprobs)), out);
            }
            ReplyEvent::Text { choice, text, ids, logprobs } => {
                self.text(*choice, ("content", text), ids, logprobs, out);
            }
            ReplyEvent::Reasoning { choice, text, ids, logprobs } => {
                self.text(*choice, ("reasoning_content", text), ids, logprobs, out);
            }
            ReplyEvent::ToolCallStart { choice, index, id, name } => {
                self.tool(*choice, *index, out, |out| {
                    raw(out, ",\"id\":");
                    value(out, id);
                    raw(out, ",\"type\":\"function\",\"function\":{\"name\":");
                    value(out, name);
                    raw(out, ",\"arguments\":\"\"}");
                });
            }
            ReplyEvent::ToolCallArguments { choice, index, fragment } => {
                self.tool(*choice, *index, out, |out| {
                    raw(out, ",\"function\":{\"arguments\":");
                    value(out, fragment);
                    raw(out, "}");
                });
            }
            ReplyEvent::Finish { choice, reason } => {
                self.open(*choice, None, out);
                self.frame.open(out, *choice);
                raw(out, ",\"delta\":{},\"logprobs\":null");
                write_finish_reason(out, Some(reason));
                self.frame.close(out);
            }
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
