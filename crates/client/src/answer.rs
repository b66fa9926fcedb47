//! An answer that is assembled from the chunks of a stream, with its timing. Time is an argument. Knows no connection.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::chat_bodies::{ChatChunk, ToolCallDelta, UsageBody};

use crate::{ConnectTimes, Explain};

/// Everything that a stream has delivered so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The text of the answer.
    pub text: String,
    /// The text of the reasoning section.
    pub reasoning: String,
    /// Tool calls, in order.
    pub tool_calls: Vec<AssembledToolCall>,
    /// The finish reason, such as `stop` or `length`. `None` while the stream runs, and if it was cut off.
    pub finish_reason: Option<String>,
    /// Token usage, from the last chunk that has it.
    pub usage: Option<UsageBody>,
    /// Cost and stage timings, if the request asked for them.
    pub explain: Option<Explain>,
    /// The model that answered.
    pub model: String,
    /// The id of the answer.
    pub id: String,
    /// The request id, by which the call's trace is found.
    pub request_id: Option<String>,
    /// The trace id that the client sent with the request, as 32 hex digits. The server's spans have it too.
    pub trace_id: Option<String>,
    /// The timing of the answer.
    pub timing: Timing,
    /// Arrival times of each piece of text, reasoning or tool call since the request was sent. At most [`MAX_ARRIVALS`]
    /// entries.
    pub arrivals: Vec<Duration>,
}

/// Maximum number of arrival times that are kept.
pub const MAX_ARRIVALS: usize = 1 << 16;

/// A new part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatEvent {
    /// Text to show.
    Text(String),
    /// Text of the reasoning section.
    Reasoning(String),
    /// A piece of a tool call. [`Answer::tool_calls`] has the joined calls.
    ToolCall(ToolCallDelta),
    /// The finish reason of the answer.
    Finish(String),
}

/// A tool call, joined from its pieces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AssembledToolCall {
    /// The call's id. The tool's result must name it.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as JSON text. Complete only once the answer has a finish reason.
    pub arguments: String,
}

/// Times of one answer as the client measured them, from the sending of the attempt that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// Time to connect, before the request. `None` if a connection was reused, or if the transport does not report it.
    pub connect: Option<ConnectTimes>,
    /// Time until the transport had taken the whole request.
    pub sent: Option<Duration>,
    /// Time until the response's headers, which is its first byte.
    pub headers: Duration,
    /// Time until the first text, reasoning or tool call (TTFT).
    pub first_token: Option<Duration>,
    /// Time until the last text, reasoning or tool call.
    pub last_token: Option<Duration>,
    /// Time until the end of the stream, or until the latest chunk while it runs.
    pub total: Duration,
    /// Number of failed attempts before this one.
    pub retries: u32,
}

impl Answer {
    /// Generated tokens per second. `None` for fewer than two tokens, or without usage. If the server reported its
    /// decode time, this counts the tokens after the first one over that time. Otherwise it counts all tokens over the
    /// time until the last one arrived, which is never too high. Chunk arrival times say little, since many tokens may
    /// arrive at once.
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

    /// The longest time between two pieces, and the number of pieces. `None` for fewer than two pieces. This shows how
    /// evenly an answer arrived, not how fast it was generated, since one piece may contain many tokens.
    pub fn longest_gap(&self) -> Option<(Duration, usize)> {
        let gaps = self.arrivals.iter().zip(self.arrivals.iter().skip(1));
        let longest = gaps.map(|(from, to)| to.saturating_sub(*from)).max()?;
        Some((longest, self.arrivals.len()))
    }

    /// Adds a chunk that arrived `at` after the request was sent, and returns its new parts. Only the first choice is
    /// assembled, since a conversation continues from one choice.
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

/// Maps a tool call's index on the wire to its position in the answer. The server chooses the wire's numbers, so a list
/// must not grow up to such a number.
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
