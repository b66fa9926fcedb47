//! The calls of a dataset, as a load test replays them. Must not know how a server is measured.

use headrace_bench::TraceCall;
use headrace_domain::{Clock, SystemClock, UnixNanos};
use headrace_terminal::output;
use headrace_trace::moment;
use serde_json::Value;

use crate::arguments::ServerArgs;
use crate::arguments::bench::BenchArgs;
use crate::commands::{CommandError, contents};

/// The calls of the dataset that the arguments name. Requests of other dialects than chat completions are left out.
///
/// # Errors
/// A message if the dataset cannot be read or has no such request.
pub(super) fn read(args: &BenchArgs) -> Result<Vec<TraceCall>, String> {
    let Some(name) = &args.dataset else { return Err("--dataset: name a dataset".to_owned()) };
    let at = ServerArgs { data_dir: args.data_dir.clone(), config: None, json: false };
    let now = SystemClock::new().now();
    let (mut calls, mut left_out, mut first) = (Vec::new(), 0_u64, None);
    let read = contents::each_item(&at, name, &mut |item| {
        match call(&item, &mut first, now) {
            Some(call) => calls.push(call),
            None => left_out += 1,
        }
        Ok(())
    });
    read.map_err(|error| match error {
        CommandError::Refused(error) => format!("--dataset: {error}"),
        CommandError::Control(error) => format!("--dataset: {error}"),
        CommandError::DataDir(error) => format!("--dataset: {error}"),
        CommandError::Config(error) => format!("--dataset: {error}"),
        CommandError::Other(why) => format!("--dataset: {why}"),
    })?;
    if calls.is_empty() {
        return Err(format!("--dataset: {name} has no whole request of chat completions"));
    }
    if left_out > 0 {
        output::note(&format!(
            "{left_out} items are left out: they are no whole requests of chat completions"
        ));
    }
    Ok(calls)
}

/// The call of an item. `first` is the time of the first one.
fn call(item: &Value, first: &mut Option<UnixNanos>, now: UnixNanos) -> Option<TraceCall> {
    let is_cut = item.get("request_cut").and_then(Value::as_bool).unwrap_or(false);
    if is_cut || item.get("endpoint").and_then(Value::as_str) != Some("chat.completions") {
        return None;
    }
    let request = item.get("request")?;
    let messages = request.get("messages")?.as_array()?.iter().map(serde_json::value::to_raw_value);
    let messages = messages.collect::<Result<Vec<_>, _>>().ok().filter(|messages| !messages.is_empty())?;
    let started = moment(item.get("started")?.as_str()?, now).ok()?;
    let since = started.get().saturating_sub(first.get_or_insert(started).get());
    let most = ["max_completion_tokens", "max_tokens"].iter().find_map(|name| request.get(*name)?.as_u64());
    Some(TraceCall {
        at_ms: since as f64 / 1e6,
        output_tokens: most.and_then(|most| u32::try_from(most).ok()),
        messages: Some(messages),
        ..TraceCall::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_of_chat_completions_are_replayed_at_their_times() {
        let item = |started: &str, endpoint: &str, is_cut: bool| {
            json!({"endpoint": endpoint, "started": started, "request_cut": is_cut,
                "request": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}})
        };
        let (mut first, now) = (None, UnixNanos::new(0));
        let one = call(&item("2026-11-28T00:00:00Z", "chat.completions", false), &mut first, now).unwrap();
        let two = call(&item("2026-11-28T00:00:02.5Z", "chat.completions", false), &mut first, now).unwrap();
        assert_eq!((one.at_ms, two.at_ms, two.output_tokens), (0.0, 2_500.0, Some(9)));
        assert_eq!(two.messages.unwrap()[0].get(), r#"{"role":"user","content":"Hi"}"#);
        for none in [
            item("2026-11-28T00:00:00Z", "messages", false),
            item("2026-11-28T00:00:00Z", "chat.completions", true),
        ] {
            assert!(call(&none, &mut first, now).is_none());
        }
    }
}
