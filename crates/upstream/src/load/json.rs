//! Loads in JSON: SGLang's `/v1/loads` and `/get_load`, llama.cpp's `/slots`. Must not know a connection.

use serde::Deserialize;

use crate::load_reading::{LoadReading, calls, part, tokens};

/// One rank of SGLang's `/v1/loads`.
#[derive(Deserialize)]
struct RankLoad {
    num_running_reqs: f64,
    num_waiting_reqs: f64,
    #[serde(default)]
    num_waiting_uncached_tokens: f64,
    token_usage: Option<f64>,
    max_total_num_tokens: Option<f64>,
}

#[derive(Deserialize)]
struct RankLoads {
    loads: Vec<RankLoad>,
}

/// Parses SGLang's `/v1/loads`.
///
/// # Errors
/// What is wrong with the body, as text.
pub(super) fn ranks(body: &[u8]) -> Result<LoadReading, String> {
    let RankLoads { loads } = parsed(body)?;
    if loads.iter().any(|rank| rank.max_total_num_tokens == Some(0.0)) {
        return Err("it is not ready: it has room for 0 tokens".to_owned());
    }
    let one = |rank: &RankLoad| {
        Some(LoadReading {
            running: calls(rank.num_running_reqs)?,
            waiting: calls(rank.num_waiting_reqs)?,
            waiting_tokens: tokens(rank.num_waiting_uncached_tokens)?,
            cache_used: rank.token_usage.and_then(part),
        })
    };
    sum(loads.iter().map(one))
}

/// One rank of SGLang's older endpoint `/get_load`. `num_reqs` includes the waiting requests.
#[derive(Deserialize)]
struct OldRank {
    num_reqs: f64,
    num_waiting_reqs: f64,
}

/// Parses SGLang's `/get_load`.
///
/// # Errors
/// What is wrong with the body, as text.
pub(super) fn old_ranks(body: &[u8]) -> Result<LoadReading, String> {
    let loads: Vec<OldRank> = parsed(body)?;
    let one = |rank: &OldRank| {
        let (all, waiting) = (calls(rank.num_reqs)?, calls(rank.num_waiting_reqs)?);
        Some(LoadReading { running: all.checked_sub(waiting)?, waiting, ..LoadReading::default() })
    };
    sum(loads.iter().map(one))
}

#[derive(Deserialize)]
struct LlamaSlot {
    is_processing: bool,
}

/// Parses llama.cpp's `/slots`, which does not report waiting requests.
///
/// # Errors
/// What is wrong with the body, as text.
pub(super) fn slots(body: &[u8]) -> Result<LoadReading, String> {
    let slots: Vec<LlamaSlot> = parsed(body)?;
    let one =
        |slot: &LlamaSlot| Some(LoadReading { running: slot.is_processing.into(), ..LoadReading::default() });
    sum(slots.iter().map(one))
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body)
        .map_err(|error| format!("its load is written otherwise than is known: {error}"))
}

fn sum(readings: impl Iterator<Item = Option<LoadReading>>) -> Result<LoadReading, String> {
    let readings: Option<Vec<LoadReading>> = readings.collect();
    let readings = readings.ok_or_else(|| "its load has numbers that can be none of calls".to_owned())?;
    readings
        .into_iter()
        .reduce(LoadReading::and)
        .ok_or_else(|| "its load names no engine: it is broken".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_added_up_and_what_cannot_be_true_is_told() {
        type Read = fn(&[u8]) -> Result<LoadReading, String>;
        let whole = |running, waiting, waiting_tokens, cache_used| {
            Ok(LoadReading { running, waiting, waiting_tokens, cache_used })
        };
        let rank = |changed: &str| {
            format!(
                r#"{{"timestamp":"2026-08-06T09:15:23Z","version":"0.5","loads":[{{"dp_rank":0,"num_running_reqs":3,
                "num_waiting_reqs":1,"num_waiting_uncached_tokens":512,"num_used_tokens":900,"max_total_num_tokens":9000,
                "token_usage":0.1,"utilization":0.0}},{{"dp_rank":1,"num_running_reqs":2,"num_waiting_reqs":0{changed}}}]}}"#
            )
        };
        for (read, body, expected) in [
            (ranks as Read, rank(""), whole(5, 1, 512, Some(100))),
            (ranks, rank(r#","token_usage":0.9,"max_total_num_tokens":5"#), whole(5, 1, 512, Some(900))),
            (ranks, rank(r#","max_total_num_tokens":0"#), Err("not ready")),
            (ranks, rank(r#","num_waiting_uncached_tokens":-5"#), Err("none of calls")),
            (ranks, rank(r#","num_waiting_uncached_tokens":1e300"#), Err("none of calls")),
            (ranks, r#"{"loads":[]}"#.to_owned(), Err("broken")),
            (ranks, r#"{"load":1}"#.to_owned(), Err("otherwise than is known")),
            (ranks, "[".repeat(100_000), Err("otherwise than is known")),
            (
                old_ranks,
                r#"[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":7}]"#.to_owned(),
                whole(3, 2, 0, None),
            ),
            (old_ranks, r#"[{"num_reqs":1,"num_waiting_reqs":2}]"#.to_owned(), Err("none of calls")),
            (
                slots,
                r#"[{"id":0,"n_ctx":512,"is_processing":true},{"id":1,"is_processing":false}]"#.to_owned(),
                whole(1, 0, 0, None),
            ),
            (slots, r#"[{"id":0,"state":1}]"#.to_owned(), Err("otherwise than is known")),
        ] {
            match (read(body.as_bytes()), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected, "{body}"),
                (Err(error), Err(words)) => assert!(error.contains(words), "{error} should say {words}"),
                (read, _) => panic!("{body}: {read:?}"),
            }
        }
    }
}
