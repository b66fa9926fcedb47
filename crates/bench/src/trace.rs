//! Recorded traces with one call per line, which `--record` writes and `--replay` reads. Also reads published traces
//! with the fields `timestamp`, `input_length`, `output_length` and `hash_ids` (Mooncake's format, FAST 2025). Knows no
//! plan.

use std::fmt;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::MAX_TOKENS;

/// Maximum bytes of a line. A call with a million tokens of messages fits.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Tokens in the block of each entry of `hash_ids`.
pub(crate) const HASH_BLOCK_TOKENS: u32 = 512;

/// A recorded call.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TraceCall {
    /// When the call was due, in milliseconds since the start of the trace.
    #[serde(alias = "timestamp")]
    pub at_ms: f64,
    /// Tokens of the whole prompt. Without `messages`, a replay generates a prompt of this length.
    #[serde(alias = "input_length", default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    /// Tokens of the answer. A replay uses them as the limit.
    #[serde(alias = "output_length", default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u32>,
    /// Calls with the same session form a conversation: a call is sent when it is due and the previous call has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Prompts with the same number start with the same text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_group: Option<u64>,
    /// Tokens of that shared text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_tokens: Option<u32>,
    /// The prompt's blocks of 512 tokens. Equal numbers mean equal text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_ids: Option<Vec<u64>>,
    /// The messages, sent unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Box<RawValue>>>,
    /// The measurements of the recording. A replay does not read them.
    #[serde(default, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub measured: Option<RecordedCall>,
}

/// The measurements of a recorded call.
#[derive(Debug, Clone, Serialize)]
pub struct RecordedCall {
    /// `ok`, or the class of the failure.
    pub outcome: String,
    /// Milliseconds from due to sent.
    pub lag_ms: f64,
    /// Milliseconds from due to the first token.
    pub ttft_ms: Option<f64>,
    /// Milliseconds from due to the end.
    pub e2e_ms: f64,
    /// Prompt tokens from the server's cache.
    pub cached_tokens: Option<u64>,
}

/// Why a trace cannot be used.
#[derive(Debug)]
pub enum TraceFault {
    /// The trace cannot be read.
    Io(io::Error),
    /// A line is not a valid call.
    Line {
        /// The line number, from 1.
        number: u64,
        /// What is wrong with the line.
        why: String,
    },
}

impl fmt::Display for TraceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Line { number, why } => {
                write!(
                    f,
                    "line {number}: {why}; a call is a line such as {{\"at_ms\":1250,\"prompt_tokens\":512,\"output_tokens\":64}}"
                )
            }
        }
    }
}

impl std::error::Error for TraceFault {}

/// Reads a trace and skips empty lines. Calls need not be in the order of their times.
///
/// # Errors
/// [`TraceFault`], with the number of the first invalid line.
pub fn read_trace(mut from: impl BufRead) -> Result<Vec<TraceCall>, TraceFault> {
    let mut calls = Vec::new();
    let mut line = String::new();
    let mut number = 0_u64;
    loop {
        line.clear();
        number = number.saturating_add(1);
        let read = io::Read::take(&mut from, MAX_LINE_BYTES).read_line(&mut line).map_err(TraceFault::Io)?;
        let fault = |why: String| TraceFault::Line { number, why };
        if read == 0 {
            return Ok(calls);
        }
        if u64::try_from(read).unwrap_or(u64::MAX) >= MAX_LINE_BYTES {
            return Err(fault(format!("it is longer than {MAX_LINE_BYTES} bytes")));
        }
        if line.trim().is_empty() {
            continue;
        }
        let call: TraceCall = serde_json::from_str(&line).map_err(|error| fault(error.to_string()))?;
        check(&call).map_err(|why| fault(why.to_owned()))?;
        calls.push(call);
    }
}

fn check(call: &TraceCall) -> Result<(), &'static str> {
    // About a hundred years. Below that, milliseconds in a float are exact to the microsecond.
    if !(0.0..=3.2e12).contains(&call.at_ms) {
        return Err("`at_ms` must be a time since the beginning, not before it");
    }
    if call.prompt_tokens.is_none() && call.messages.is_none() {
        return Err("it has neither `prompt_tokens` nor `messages`");
    }
    let too_long = |tokens: Option<u32>| tokens.is_some_and(|tokens| tokens > MAX_TOKENS);
    if too_long(call.prompt_tokens) || too_long(call.output_tokens) || too_long(call.prefix_tokens) {
        return Err("it has more tokens than a call may have (1048576)");
    }
    if call.prefix_group.is_some() != call.prefix_tokens.is_some() {
        return Err("`prefix_group` and `prefix_tokens` go together");
    }
    Ok(())
}

/// Writes a trace.
///
/// # Errors
/// Any error of the writer.
pub fn write_trace(to: &mut impl Write, calls: &[TraceCall]) -> io::Result<()> {
    for call in calls {
        serde_json::to_writer(&mut *to, call)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_reads_back_as_it_was_written() {
        let messages = vec![RawValue::from_string(r#"{"role":"user","content":"Hi"}"#.into()).unwrap()];
        let calls = [
            TraceCall { at_ms: 0.0, prompt_tokens: Some(5), ..TraceCall::default() },
            TraceCall {
                at_ms: 12.5,
                prompt_tokens: Some(512),
                output_tokens: Some(64),
                session: Some("s1".into()),
                prefix_group: Some(3),
                prefix_tokens: Some(448),
                hash_ids: Some(vec![1, 2]),
                messages: Some(messages),
                measured: None,
            },
        ];
        let mut text = Vec::new();
        write_trace(&mut text, &calls).unwrap();
        let read = read_trace(text.as_slice()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{calls:?}"));
    }

    #[test]
    fn published_traces_are_understood() {
        let line =
            r#"{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2366]}"#;
        let calls = read_trace(format!("\n{line}\n\n").as_bytes()).unwrap();
        let [call] = calls.as_slice() else { panic!("{calls:?}") };
        assert_eq!((call.at_ms, call.prompt_tokens, call.output_tokens), (27_482.0, Some(6_955), Some(52)));
        assert_eq!(call.hash_ids.as_deref(), Some(&[46, 47, 2366][..]));
    }

    #[test]
    fn a_line_that_is_no_call_is_named() {
        for (line, part) in [
            ("nonsense", "line 2: expected"),
            ("{}", "missing field `at_ms`"),
            (r#"{"at_ms":0}"#, "neither"),
            (r#"{"at_ms":-1,"prompt_tokens":1}"#, "not before"),
            (r#"{"at_ms":0,"prompt_tokens":2000000}"#, "more tokens"),
            (r#"{"at_ms":0,"prompt_tokens":9,"prefix_group":1}"#, "go together"),
            (r#"{"at_ms":0,"prompt_tokens":-9}"#, "invalid value"),
        ] {
            let text = format!("{{\"at_ms\":0,\"prompt_tokens\":1}}\n{line}\n");
            let why = read_trace(text.as_bytes()).unwrap_err().to_string();
            assert!(why.contains(part) && why.contains("a call is a line such as"), "{line}: {why}");
        }
    }
}
