//! The cache report: hit rates, why prompts missed, where they diverged, and what another order could save at most.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use headrace_domain::{
    CacheMiss, EngineTrace, MissReason, OrgId, PromptPlace, RequestId, TraceRecord, UnixNanos, Usage,
};
use headrace_trace::{
    CacheBy, CacheQuery, CacheReport, MAX_CACHE_CALLS, MemoryTraces, TraceReader, TraceStore, decode_record,
};

fn call(
    n: u64,
    org: &str,
    prompt: u64,
    cached: u64,
    miss: Option<(MissReason, u32, PromptPlace)>,
) -> TraceRecord {
    let mut record = decode_record(include_str!("data/completed.json")).unwrap();
    record.request_id = RequestId::from_bits(n.into());
    record.started = UnixNanos::new(n * 1_000_000_000);
    record.org = Some(OrgId::new(org).unwrap());
    record.usage = Usage { input: prompt - cached, cached_input: cached, output: 5, ..Usage::default() };
    let miss = miss.map(|(reason, token, place)| CacheMiss {
        reason,
        token,
        elsewhere: false,
        place: Some(place),
        other: None,
    });
    record.engine =
        Some(EngineTrace { miss, prefill_ns: (prompt - cached) * 1_000, steps: 1, ..EngineTrace::default() });
    record
}

fn system(character: u32) -> PromptPlace {
    PromptPlace::System { character }
}

#[test]
fn a_date_at_the_top_of_a_prompt_is_named_with_what_it_costs() {
    let mut traces = MemoryTraces::new();
    // Four calls whose system prompts differ at token 20 of about a thousand, and one call whose whole prompt was seen
    // before.
    let calls = [
        call(1, "acme", 1_000, 0, Some((MissReason::NeverSeen, 0, system(0)))),
        call(2, "acme", 1_000, 16, Some((MissReason::Differs, 20, system(77)))),
        call(3, "acme", 900, 16, Some((MissReason::Differs, 20, system(79)))),
        call(4, "acme", 1_100, 16, Some((MissReason::Differs, 20, system(77)))),
        call(5, "acme", 1_000, 992, None),
        call(
            6,
            "other",
            500,
            400,
            Some((MissReason::Evicted, 400, PromptPlace::Message { index: 2, block: None, character: 3 })),
        ),
    ];
    traces.append(&calls).unwrap();
    let report = traces.cache(&CacheQuery { by: vec![CacheBy::Org], ..CacheQuery::default() }).unwrap();
    let json = report.json();
    assert_eq!((json["calls"].as_u64(), json["whole"].as_bool()), (Some(6), Some(true)));
    let acme = &json["rows"][0];
    assert_eq!((acme["org"].as_str(), acme["calls"].as_u64()), (Some("acme"), Some(5)));
    assert_eq!((acme["prompt_tokens"].as_u64(), acme["cached_tokens"].as_u64()), (Some(5_000), Some(1_040)));
    assert_eq!(acme["hit_rate"].as_f64(), Some(0.208));
    let differs = &acme["places"][0];
    assert_eq!(
        (differs["reason"].as_str(), differs["place"].as_str()),
        (Some("differs"), Some("the system prompt"))
    );
    assert_eq!((differs["calls"].as_u64(), differs["computed_tokens"].as_u64()), (Some(3), Some(2_952)));
    // The prompt's tokens but the first 20 follow the place, and a block of 16 is computed anyway. The longest call computes
    // its own, and the others could find theirs in the cache.
    assert_eq!(differs["could_save_tokens"].as_u64(), Some((900 - 20 - 16) + (1_000 - 20 - 16)));
    assert_eq!(differs["could_save_prefill_us"].as_f64(), Some(1_828.0));
    assert_eq!(differs["example"].as_str(), Some(calls[3].request_id.to_string().as_str()));
    let evicted = &json["rows"][1]["places"][0];
    assert_eq!((evicted["place"].as_str(), evicted["could_save_tokens"].as_u64()), (Some("message 2"), None));
    let table = report.table();
    assert!(table.contains("3 calls differ from the nearest cached prompt in the system prompt"), "{table}");
    assert!(table.contains("at most 1,828 tokens less to compute, 1.83 ms of prefill"), "{table}");
    assert!(table.contains("1 call found the cached prompt evicted, from message 2"), "{table}");
    assert!(table.contains("1 call has text that was never cached, from the system prompt"), "{table}");
    assert!(
        table.contains("raise `engine.kv_memory`") && table.contains("no gain: text is computed once"),
        "{table}"
    );
    assert!(table.contains("3 differ, 1 never cached"), "{table}");
    let by_prefix =
        traces.cache(&CacheQuery { by: vec![CacheBy::Prefix], ..CacheQuery::default() }).unwrap().json();
    let names: Vec<_> =
        by_prefix["rows"].as_array().unwrap().iter().map(|row| row["prefix"].as_str().unwrap()).collect();
    assert_eq!(names, ["message 2", "the system prompt", "the whole prompt"]);
}

#[test]
fn a_report_is_of_the_newest_calls_of_its_time() {
    let mut traces = MemoryTraces::new();
    let calls: Vec<_> = (0..50).map(|n| call(n, "acme", 100, if n < 30 { 0 } else { 50 }, None)).collect();
    traces.append(&calls).unwrap();
    let mut query = CacheQuery::default();
    query.set("from", "1970-01-01T00:00:30Z", UnixNanos::new(0)).unwrap();
    let json = traces.cache(&query).unwrap().json();
    assert_eq!((json["calls"].as_u64(), json["rows"][0]["hit_rate"].as_f64()), (Some(20), Some(0.5)));
    assert_eq!(json["since"], "1970-01-01T00:00:30Z");
    let mut report = CacheReport::new(Vec::new());
    let more = traces
        .newest(UnixNanos::new(0), UnixNanos::new(u64::MAX), 7, &mut |record| report.add(record))
        .unwrap();
    assert!(more && MAX_CACHE_CALLS > 7);
    assert_eq!(report.json()["calls"], 7);
    assert!(query.set("by", "org,colour", UnixNanos::new(0)).unwrap_err().contains("org, model, prefix"));
}

/// A clock in front of every prompt, and among the calls one that ends right behind it.
#[test]
fn one_short_call_does_not_hide_the_gain_of_the_others() {
    let mut traces = MemoryTraces::new();
    let differs = |prompt: u64, n: u64| call(n, "acme", prompt, 0, Some((MissReason::Differs, 2, system(5))));
    let calls: Vec<_> = (0..399).map(|n| differs(118, n)).chain([differs(10, 399)]).collect();
    traces.append(&calls).unwrap();
    let table = traces.cache(&CacheQuery::default()).unwrap().table();
    assert!(table.contains("400 calls differ"), "{table}");
    assert!(table.contains("at most 39,800 tokens less to compute"), "{table}");
    let mut short = MemoryTraces::new();
    short.append(&[differs(10, 1), differs(10, 2)]).unwrap();
    let table = short.cache(&CacheQuery::default()).unwrap().table();
    assert!(table.contains("no gain: too little of the prompt follows what differs"), "{table}");
}
