//! An answer as it is assembled from the chunks of a stream, and how long it took. Time is an argument.
//! Knows no connection.

use std::collections::BTreeMap;
use std::time::Duration;

use headrace_wire::client::{ChatChunk, ToolCallDelta, UsageBody};

use crate::{ConnectTimes, Explain};

/// Everything that a stream brought, as far as it got.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// The text of the reasoning section.
    pub reasoning: String,
    /// Tool calls in order.
    pub tool_calls: Vec<AssembledToolCall>,
    /// Why it ended, such as `stop` or `length`; `None` while it runs and when it was cut off.
    pub finish_reason: Option<String>,
    /// Tokens, in the last chunk.
    pub usage: Option<UsageBody>,
    /// Cost and stage timings, where asked for.
    pub explain: Option<Explain>,
    /// The model that answered.
    pub model: String,
    /// The answer's own id.
    pub id: String,
    /// The request, by which its trace is found.
    pub request_id: Option<String>,
    /// The trace that the call is in at both ends, where one was sent along: 32 hex digits.
    pub trace_id: Option<String>,
    /// How long it took.
    pub timing: Timing,
    /// When each piece of text, reasoning or tool call came, since the request was sent; those of the first [`MAX_ARRIVALS`].
    pub arrivals: Vec<Duration>,
}

/// Pieces whose times are kept.
pub const MAX_ARRIVALS: usize = 1 << 16;

/// Something new in an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatEvent {
    /// Text to show.
    Text(String),
    /// Text of the reasoning section.
    Reasoning(String),
    /// A piece of a tool call; [`Answer::tool_calls`] has them joined.
    ToolCall(ToolCallDelta),
    /// Why the answer ended.
    Finish(String),
}

/// A tool call, its pieces joined.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AssembledToolCall {
    /// Its id, to be named in the result.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON text; whole only once the answer has a finish reason.
    pub arguments: String,
}

/// Times of one answer as the client saw them, from the sending of the try that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// Making a connection, before anything else; `None`: there was one from before, or the transport does not say.
    pub connect: Option<ConnectTimes>,
    /// Until the transport had taken the whole request.
    pub sent: Option<Duration>,
    /// Until the response's headers: its first byte.
    pub headers: Duration,
    /// Until the first text, reasoning or tool call (TTFT).
    pub first_token: Option<Duration>,
    /// Until the last of them.
    pub last_token: Option<Duration>,
    /// Until the stream's end; until now while it runs.
    pub total: Duration,
    /// Tries that failed before.
    pub retries: u32,
}

impl Answer {
    /// Generated tokens per second; `None` below two tokens or without usage. By the server's own clock where it told how
    /// long it decoded: tokens after the first one. Otherwise all tokens over the whole time until the last one came, which is
    /// never too fast: when chunks arrive says little, since many may come at once.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let tokens = self.usage?.completion_tokens;
        let after_first = tokens.checked_sub(1).filter(|&tokens| tokens > 0)?;
        let decode = self.explain.as_ref().and_then(|explain| explain.stage("decode"));
        let (tokens, seconds) = match decode {
            Some(stage) => (after_first, stage.duration_us / 1e6),
            None => (tokens, self.timing.last_token?.as_secs_f64()),
        };
        (seconds > 0.0).then(|| tokens as f64 / seconds)
    }

    /// The longest time between two pieces, and how many pieces there were; `None` below two. It says how evenly an answer came,
    /// not how fast it was made: many tokens may come in one piece.
    pub fn longest_gap(&self) -> Option<(Duration, usize)> {
        let gaps = self.arrivals.iter().zip(self.arrivals.iter().skip(1));
        let longest = gaps.map(|(from, to)| to.saturating_sub(*from)).max()?;
        Some((longest, self.arrivals.len()))
    }

    /// Takes in a chunk that came `at` after the request was sent, and gives what is new in it. Only the first
    /// choice is assembled: a conversation continues from one.
    pub(crate) fn take(&mut self, chunk: ChatChunk, at: Duration, calls: &mut CallSlots) -> Vec<ChatEvent> {
        self.timing.total = at;
        if self.id.is_empty() {
            self.id = chunk.id;
        }
        if self.model.is_empty() {
            self.model = chunk.model;
        }
        self.usage = chunk.usage.or(self.usage);
        if let Some(block) = chunk.headrace {
            self.explain = Some(Explain::from_value(block));
        }
        let mut events = Vec::new();
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            let text = |piece: Option<String>| piece.filter(|piece| !piece.is_empty());
            if let Some(piece) = text(choice.delta.reasoning_content) {
                self.reasoning.push_str(&piece);
                events.push(ChatEvent::Reasoning(piece));
            }
            if let Some(piece) = text(choice.delta.content) {
                self.text.push_str(&piece);
                events.push(ChatEvent::Text(piece));
            }
            for delta in choice.delta.tool_calls.unwrap_or_default() {
                calls.take(&mut self.tool_calls, &delta);
                events.push(ChatEvent::ToolCall(delta));
            }
            if !events.is_empty() {
                self.timing.first_token.get_or_insert(at);
                self.timing.last_token = Some(at);
                if self.arrivals.len() < MAX_ARRIVALS {
                    self.arrivals.push(at);
                }
            }
            if let Some(reason) = choice.finish_reason {
                self.finish_reason = Some(reason.clone());
                events.push(ChatEvent::Finish(reason));
            }
        }
        events
    }
}

/// Which call of the answer a wire index stands for: the wire's numbers are the server's to choose, and a list must
/// not grow by one of them.
#[derive(Debug, Default)]
pub(crate) struct CallSlots(BTreeMap<u32, usize>);

impl CallSlots {
    fn take(&mut self, calls: &mut Vec<AssembledToolCall>, delta: &ToolCallDelta) {
        let slot = *self.0.entry(delta.index).or_insert(calls.len());
        if slot == calls.len() {
            calls.push(AssembledToolCall::default());
        }
        let Some(call) = calls.get_mut(slot) else { return };
        if let Some(id) = &delta.id {
            call.id.clone_from(id);
        }
        if let Some(name) = &delta.function.name {
            call.name.push_str(name);
        }
        if let Some(piece) = &delta.function.arguments {
            call.arguments.push_str(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn assembled(chunks: &[(u64, Value)]) -> (Answer, Vec<ChatEvent>) {
        let (mut answer, mut calls, mut events) = (Answer::default(), CallSlots::default(), Vec::new());
        for (at, chunk) in chunks {
            events.extend(answer.take(serde_json::from_value(chunk.clone()).unwrap(), ms(*at), &mut calls));
        }
        (answer, events)
    }

    fn delta(delta: &Value) -> Value {
        json!({"id": "a", "model": "m", "choices": [{"index": 0, "delta": delta}]})
    }

    #[test]
    fn text_usage_and_speed() {
        let (answer, events) = assembled(&[
            (5, delta(&json!({"role": "assistant", "content": ""}))),
            (10, delta(&json!({"reasoning_content": "hm"}))),
            (20, delta(&json!({"content": "a"}))),
            (30, json!({"choices": [{"index": 1, "delta": {"content": "other"}}]})),
            (60, delta(&json!({"content": "b"}))),
            (61, json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})),
            (
                70,
                json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 6,
                    "prompt_tokens_details": {"cached_tokens": 4}}, "headrace": {"cost": {"charged_nano_dollars": 3}}}),
            ),
        ]);
        assert_eq!((answer.text.as_str(), answer.reasoning.as_str()), ("ab", "hm"));
        assert_eq!(events.len(), 4);
        assert_eq!((answer.id.as_str(), answer.model.as_str()), ("a", "m"));
        assert_eq!(answer.finish_reason.as_deref(), Some("stop"));
        assert_eq!(answer.usage.unwrap().cached_tokens(), 4);
        assert_eq!(answer.explain.as_ref().unwrap().cost.unwrap().get(), 3);
        assert_eq!((answer.timing.first_token, answer.timing.last_token), (Some(ms(10)), Some(ms(60))));
        assert_eq!(answer.timing.total, ms(70));
        assert_eq!(answer.tokens_per_second(), Some(100.0), "six tokens in the 60 ms until the last one");
    }

    #[test]
    fn speed_is_the_server_s_where_it_told_it() {
        let (answer, _) = assembled(&[
            (60, delta(&json!({"content": "a"}))),
            (60, delta(&json!({"content": "b"}))),
            (
                61,
                json!({"choices": [], "usage": {"completion_tokens": 11}, "headrace":
                    {"stages": [{"stage": "decode", "start_us": 1.0, "duration_us": 20_000.0}]}}),
            ),
        ]);
        assert_eq!(answer.tokens_per_second(), Some(500.0), "though both chunks came at once");
    }

    #[test]
    fn speed_needs_two_tokens_and_time() {
        for tokens in [0, 1] {
            let usage = json!({"choices": [], "usage": {"completion_tokens": tokens}});
            let (answer, _) = assembled(&[(1, delta(&json!({"content": "a"}))), (2, usage)]);
            assert_eq!(answer.tokens_per_second(), None);
        }
        let usage = json!({"choices": [], "usage": {"completion_tokens": 9}});
        let (answer, _) = assembled(&[(0, delta(&json!({"content": "a"}))), (0, usage)]);
        assert_eq!(answer.tokens_per_second(), None, "no time went by");
    }

    #[test]
    fn tool_calls_are_joined_whatever_the_indices() {
        let call = |index: u32, more: Value| {
            let mut call = json!({"index": index});
            call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            delta(&json!({"tool_calls": [call]}))
        };
        let (answer, _) = assembled(&[
            (1, call(u32::MAX, json!({"id": "x", "function": {"name": "f", "arguments": ""}}))),
            (2, call(7, json!({"id": "y", "function": {"name": "g"}}))),
            (3, call(u32::MAX, json!({"function": {"arguments": "{\"a\":"}}))),
            (4, call(u32::MAX, json!({"function": {"arguments": "1}"}}))),
            (5, call(7, json!({"function": {"arguments": "{}"}}))),
        ]);
        let call = |id: &str, name: &str, arguments: &str| AssembledToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        assert_eq!(answer.tool_calls, [call("x", "f", "{\"a\":1}"), call("y", "g", "{}")]);
    }
}
