//! The drawings and JSON of records, compared with files. `NAME.json` is a stored record of format 2, so these are also
//! the golden files of that format. `v1/NAME.json` is the same record in format 1. `NAME.WIDTH.txt` is its drawing, and
//! `NAME.api.json` is the API's JSON. `HEADRACE_BLESS=1` rewrites the expected files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use headrace_domain::{
    Attempt, AttemptOutcome, CacheMiss, ContinuedAnswer, MissReason, NanoDollars, PromptPlace, RoundOutcome,
    Stage, TraceRecord, is_partition,
};
use headrace_trace::{
    WaterfallOptions, answer_json, decode_record, encode_record, operator_json, record_json, table, waterfall,
};

const RECORDS: [&str; 6] = ["completed", "slow-upload", "refused", "refused-early", "cancelled", "failed"];
/// Records with fields that were added to format 2 later.
const LATER: [&str; 2] = ["moved-on", "fell-back"];

/// Records of format 2.
fn names() -> impl Iterator<Item = &'static str> {
    RECORDS.into_iter().chain(LATER)
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn record(name: &str) -> TraceRecord {
    let text = std::fs::read_to_string(data(&format!("{name}.json"))).unwrap();
    decode_record(text.trim_end()).unwrap()
}

fn check(name: &str, actual: &str) {
    let path = data(name);
    if std::env::var_os("HEADRACE_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} differs; now it is:\n{actual}");
}

#[test]
fn a_waterfall_is_drawn_as_expected() {
    for name in names() {
        for width in [80, 120] {
            let drawn = waterfall(&record(name), &WaterfallOptions { width, color: false });
            for line in drawn.lines() {
                assert!(line.chars().count() <= width, "{name}: wider than {width}: {line}");
            }
            assert!(!drawn.contains('\u{1b}'), "{name}: an escape sequence without being asked");
            check(&format!("{name}.{width}.txt"), &drawn);
        }
        for width in 36..240 {
            let drawn = waterfall(&record(name), &WaterfallOptions { width, color: false });
            for line in drawn.lines() {
                assert!(line.chars().count() <= width, "{name}: wider than {width}: {line}");
            }
            assert!(drawn.contains(&record(name).request_id.to_string()), "{name}: {width}: the id is whole");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
            for stage in &record(name).stages {
                assert!(words(&drawn).contains(stage.stage.name()), "{name}: {width}: {}", stage.stage);
            }
        }
        check(
            &format!("{name}.40.txt"),
            &waterfall(&record(name), &WaterfallOptions { width: 40, color: false }),
        );
    }
}

#[test]
fn a_narrow_terminal_cuts_no_id_that_is_there_to_be_copied() {
    let drawn = waterfall(&record("completed"), &WaterfallOptions { width: 36, color: false });
    assert!(drawn.contains("4bf92f3577b34da6a3ce929d0e0e4736"), "the trace id is whole:\n{drawn}");
}

#[test]
fn colour_adds_escape_sequences_and_nothing_else() {
    for name in names() {
        let plain = waterfall(&record(name), &WaterfallOptions { width: 100, color: false });
        let colored = waterfall(&record(name), &WaterfallOptions { width: 100, color: true });
        assert_eq!(without_sgr(&colored), plain, "{name}");
        assert!(colored.len() > plain.len());
    }
}

/// Removes `ESC [ digits m`. Any other escape sequence stays and makes the comparison fail.
fn without_sgr(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        out.push_str(before);
        let end = after.find('m').unwrap();
        assert!(after[..end].bytes().all(|b| b.is_ascii_digit()), "{after}");
        rest = &after[end + 1..];
    }
    out + rest
}

#[test]
fn a_list_is_drawn_as_expected() {
    let records: Vec<TraceRecord> = RECORDS.iter().map(|name| record(name)).collect();
    for width in [40, 60, 80, 120, 160] {
        let drawn = table(&records, &WaterfallOptions { width, color: false });
        check(&format!("list.{width}.txt"), &drawn);
        assert!(!drawn.contains('\u{1b}'));
        for line in drawn.lines() {
            assert!(line.chars().count() <= width, "wider than {width}: {line}");
        }
    }
    assert_eq!(table(&[], &WaterfallOptions::default()), "no requests recorded\n");
}

#[test]
fn the_api_shows_units_in_its_names() {
    for name in names() {
        let json = serde_json::to_string_pretty(&record_json(&record(name))).unwrap();
        check(&format!("{name}.api.json"), &(json + "\n"));
    }
}

#[test]
fn an_answer_says_what_the_trace_will_say_but_for_what_is_not_known_yet() {
    for name in names() {
        let (mut whole, told) = (record_json(&record(name)), answer_json(&record(name)));
        for late in ["duration_us", "server_us", "after_us", "inter_token_us", "outcome"] {
            assert!(whole.as_object_mut().unwrap().remove(late).is_some(), "{name}: {late}");
        }
        for late in ["loss_nano_dollars", "loss_dollars"] {
            assert!(whole["cost"].as_object_mut().unwrap().remove(late).is_some(), "{name}: {late}");
        }
        assert_eq!(told, whole, "{name}");
    }
}

#[test]
fn a_miss_is_told_with_its_place_and_what_others_have_cached_to_operators_alone() {
    use MissReason::{BelowBlock, Differs, Evicted, Expired, NeverSeen};
    let message = |index, block, character| Some(PromptPlace::Message { index, block, character });
    let nearest = |place: &str| format!("the nearest cached prompt differs at token 1,051: {place}");
    let rows = [
        (BelowBlock, 0, None, "the prompt has no whole block before its last token".to_owned()),
        (Evicted, 32, None, "evicted from token 32 on".to_owned()),
        (Expired, 32, None, "expired from token 32 on".to_owned()),
        (Differs, 1051, message(2, None, 17), nearest("messages[2], character 17")),
        (Differs, 1051, message(2, Some(1), 7), nearest("messages[2].content[1], character 7")),
        (Differs, 1051, Some(PromptPlace::System { character: 3 }), nearest("system, character 3")),
        (
            Differs,
            1051,
            Some(PromptPlace::Reasoning { index: 3, character: 5 }),
            nearest("the reasoning of messages[3], character 5"),
        ),
        (
            Differs,
            1051,
            Some(PromptPlace::ToolCall { index: 3, call: 1 }),
            nearest("tool call 1 of messages[3]"),
        ),
        (Differs, 1051, Some(PromptPlace::Tool { index: 4 }), nearest("tools[4]")),
        (Differs, 1051, Some(PromptPlace::Tools), nearest("the list of tools")),
        (
            NeverSeen,
            16,
            Some(PromptPlace::Template { before_message: 1 }),
            "never seen from token 16 on: in the template before messages[1]".to_owned(),
        ),
    ];
    let told = "cached for another tenant";
    for (reason, token, place, sentence) in &rows {
        let (reason, token, place) = (*reason, *token, *place);
        for elsewhere in [false, true] {
            let mut record = record("completed");
            let engine = record.engine.as_mut().unwrap();
            engine.miss = Some(CacheMiss { reason, token, elsewhere, place, other: None });
            (engine.step_ns, engine.forward_ns, engine.sample_ns) = (1_000_000, 970_000, 20_000);
            engine.paused_ns = 2_500_000_000;
            let drawn = waterfall(&record, &WaterfallOptions { width: 240, color: false });
            assert!(drawn.contains(sentence.as_str()), "{drawn}");
            assert_eq!(drawn.contains(told), elsewhere);
            assert!(drawn.contains("97.0% computing · 2.0% choosing tokens"), "{drawn}");
            assert!(drawn.contains("paused for 2.50 s: its reader was behind"), "{drawn}");
            let (owner, operator) = (record_json(&record), operator_json(&record));
            assert_eq!(owner["engine"]["cache_miss"]["reason"], reason.name());
            assert!(!owner.to_string().contains("another_tenant"), "its owner is not told what others ask");
            assert_eq!(operator["engine"]["cache_miss"]["cached_for_another_tenant"], elsewhere);
            for figure in ["queue_depth", "batch_min", "batch_mean", "batch_max"] {
                assert!(owner["engine"].get(figure).is_none(), "{figure} counts other tenants' calls");
                assert!(operator["engine"][figure].is_number(), "{figure}");
            }
            assert_eq!(decode_record(&encode_record(&record).unwrap()).unwrap(), record);
        }
    }
}

/// Attempts are listed if a prompt had several of them. A single answered attempt per prompt is not listed.
#[test]
fn attempts_are_drawn_where_a_prompt_had_several() {
    let wide = WaterfallOptions { width: 200, color: false };
    let moved = record("moved-on");
    let [refused, failed, answered] = &moved.attempts[..] else { panic!("{:?}", moved.attempts) };
    let drawn = waterfall(&moved, &wide);
    for attempt in [refused, failed, answered] {
        assert!(drawn.contains(&format!("{} {}", attempt.worker, attempt.outcome.name())), "{drawn}");
    }
    for kept in
        [vec![], vec![answered.clone()], vec![answered.clone(), Attempt { prompt: 1, ..answered.clone() }]]
    {
        let drawn = waterfall(&TraceRecord { attempts: kept, ..moved.clone() }, &wide);
        assert!(!drawn.contains("workers"), "{drawn}");
    }
    let second = Attempt { prompt: 1, outcome: AttemptOutcome::CutShort, ..failed.clone() };
    let both = vec![failed.clone(), answered.clone(), second];
    let drawn = waterfall(&TraceRecord { attempts: both, ..moved.clone() }, &wide);
    assert!(drawn.contains("prompt 0: ") && drawn.contains("prompt 1: "), "{drawn}");
    assert!(record_json(&moved)["attempts"][0].get("model").is_none());
    let other = Attempt { model: Some("first".into()), ..failed.clone() };
    let fell = TraceRecord { attempts: vec![other, answered.clone()], ..moved.clone() };
    assert_eq!(record_json(&fell)["attempts"][0]["model"], "first");
    let drawn = waterfall(&fell, &wide);
    assert!(drawn.contains(&format!("{} (first) failed", failed.worker)), "{drawn}");
    assert!(record_json(&moved).get("continued").is_none() && !drawn.contains("in its own way"), "{drawn}");
    let continued = vec![ContinuedAnswer { choice: 1, after_tokens: 1_234, worker: "other".into() }];
    let gone_on = TraceRecord { continued, ..moved.clone() };
    assert_eq!(
        record_json(&gone_on)["continued"],
        serde_json::json!([{"choice": 1, "after_tokens": 1_234, "worker": "other"}])
    );
    let drawn = waterfall(&gone_on, &wide);
    assert!(drawn.contains("choice 1 after 1,234 tokens, in its own way, by other"), "{drawn}");
    assert_eq!(decode_record(&encode_record(&gone_on).unwrap()).unwrap(), gone_on);
}

#[test]
fn rounds_are_drawn_if_there_were_several() {
    let wide = WaterfallOptions { width: 200, color: false };
    let (both, older) = (record("fell-back"), record("moved-on"));
    let [first, second] = &both.rounds[..] else { panic!("{:?}", both.rounds) };
    let drawn = waterfall(&both, &wide);
    assert!(drawn.contains("1: large at vllm/large failed (answer_off_form) after 45.2 ms"), "{drawn}");
    assert!(drawn.contains("2: headrace-demo-20m at demo@west answered (stop) after 1.88 s"), "{drawn}");
    let once = TraceRecord { rounds: vec![second.clone()], ..both.clone() };
    for record in [&once, &older] {
        assert!(!waterfall(record, &wide).contains("rounds"));
    }
    let json = record_json(&once);
    assert_eq!(json["rounds"].as_array().unwrap().len(), 1, "one round is in the JSON all the same");
    assert_eq!(json["rounds"][0]["usage"], json["usage"]);
    assert_eq!(json["rounds"][0]["model"], json["model"]["served"]);
    // Records of versions without rounds are read, and written as they were.
    assert!(older.rounds.is_empty() && !encode_record(&older).unwrap().contains("rounds"));
    assert_eq!(record_json(&older)["rounds"], serde_json::json!([]));
    let cut_short = headrace_domain::TraceRound { outcome: RoundOutcome::CutShort, ..first.clone() };
    let ended = TraceRecord { rounds: vec![cut_short, second.clone()], ..both.clone() };
    assert!(waterfall(&ended, &wide).contains("1: large at vllm/large was cut short"));
    assert_eq!(decode_record(&encode_record(&ended).unwrap()).unwrap(), ended);
}

#[test]
fn records_of_format_2_are_written_as_they_were() {
    for name in names() {
        let text = std::fs::read_to_string(data(&format!("{name}.json"))).unwrap();
        let read = record(name);
        assert!(is_partition(&read.stages, read.duration_ns), "{name}");
        assert_eq!(decode_record(&encode_record(&read).unwrap()).unwrap(), read);
        let (then, now): (serde_json::Value, serde_json::Value) = (
            serde_json::from_str(&text).unwrap(),
            serde_json::from_str(&encode_record(&read).unwrap()).unwrap(),
        );
        assert_eq!(then, now, "{name}: the stored form changed: that needs a new TRACE_VERSION");
    }
}

/// In format 1, stages could overlap and outlast the call. After decoding they do not.
#[test]
fn records_of_format_1_stay_readable_in_todays_terms() {
    for name in RECORDS {
        let text = std::fs::read_to_string(data(&format!("v1/{name}.json"))).unwrap();
        let read = decode_record(text.trim_end()).unwrap();
        assert!(is_partition(&read.stages, read.duration_ns), "{name}: {:?}", read.stages);
        let now = record(name);
        assert!(waterfall(&read, &WaterfallOptions::default()).contains("took"));
        assert_eq!((read.request_id, read.usage, read.cost), (now.request_id, now.usage, now.cost), "{name}");
        assert_eq!((read.duration_ns, read.outcome), (now.duration_ns, now.outcome), "{name}");
    }
    // In format 1, `place` was timed until its task woke, and the engine's times followed it.
    let text = std::fs::read_to_string(data("v1/completed.json")).unwrap();
    let longer = text.replacen("\"duration_ns\": 1834000000", "\"duration_ns\": 1934000000", 1);
    let read = decode_record(longer.trim_end()).unwrap();
    assert!(is_partition(&read.stages, read.duration_ns), "{:?}", read.stages);
    assert_eq!(read.span(Stage::Settle).unwrap().start_ns, 1_919_800_000);
}

/// The upload and a slow reader do not count as the server's time.
#[test]
fn the_clients_own_time_stands_apart() {
    let upload = record("slow-upload");
    assert_eq!(upload.client_ns(), upload.span(Stage::Receive).unwrap().duration_ns);
    let json = record_json(&upload);
    let micros = |key: &str| json[key].as_f64().unwrap();
    assert!((micros("server_us") + micros("client_us") - micros("duration_us")).abs() < 0.01);
    assert!(micros("time_to_first_token_us") < 172_000.0, "its body took 240 ms");
    let drawn = waterfall(&upload, &WaterfallOptions { width: 100, color: false });
    assert!(drawn.contains("first token after 172 ms (412 ms with the upload)"), "{drawn}");
    let slow = record("cancelled");
    assert!(slow.client_ns() > slow.server_ns(), "{:?}", slow.stages);
}

#[test]
fn a_newer_or_broken_record_is_refused_with_its_reason() {
    let text = std::fs::read_to_string(data("completed.json")).unwrap();
    for (edited, reason) in [
        (
            text.replacen("\"version\": 2", "\"version\": 3", 1),
            "req_019aa3b1c2d37e4f8a5b60718293a4b5 has trace format 3, newer than the 2",
        ),
        (
            "{\"version\": 7, \"request_id\": \"new-kind-of-id\"}".to_owned(),
            "new-kind-of-id has trace format 7, newer than the 2",
        ),
        (
            text.replacen("\"org\": \"acme\"", "\"org\": \"a/b\"", 1),
            "req_019aa3b1c2d37e4f8a5b60718293a4b5 is not a readable trace record",
        ),
        ("not json".to_owned(), "a stored record is not a readable trace record"),
    ] {
        let error = decode_record(&edited).unwrap_err().to_string();
        assert!(error.starts_with(reason), "{error}");
    }
}

#[test]
fn what_others_charge_is_for_operators_alone() {
    let free = record("moved-on");
    let mut paid = free.clone();
    paid.paid = Some(NanoDollars::new(1_250));
    paid.attempts[0].paid = Some(NanoDollars::new(250));
    assert_eq!(record_json(&paid), record_json(&free));
    assert_eq!(answer_json(&paid), answer_json(&free));
    let shown = operator_json(&paid);
    assert_eq!(shown["cost"]["paid_nano_dollars"], 1_250);
    assert_eq!(
        (&shown["attempts"][0]["paid_nano_dollars"], &shown["attempts"][1]["paid_nano_dollars"]),
        (&250.into(), &serde_json::Value::Null)
    );
    assert!(operator_json(&free)["cost"].get("paid_nano_dollars").is_none(), "unknown is absent, and not 0");
    let drawn = waterfall(&paid, &WaterfallOptions { width: 100, color: false });
    assert!(drawn.contains("$0.00000125 to others") && drawn.contains("$0.00000025 paid"), "{drawn}");
    let stored = encode_record(&paid).unwrap();
    assert_eq!(decode_record(&stored).unwrap(), paid);
    assert!(!encode_record(&free).unwrap().contains("paid"), "records without it stay as they were");
}

/// Only operators may see what an upstream says about the operator's account.
#[test]
fn the_owner_of_a_call_reads_no_words_of_an_upstream() {
    for (why, ours, theirs) in [
        ("status 401: Incorrect API key provided: sk-***wxyz", "status 401", "Incorrect API key"),
        ("status 404: The model `m` does not exist in project proj_9", "status 404", "proj_9"),
        ("status 500: quota of org-acme", "status 500", "org-acme"),
        ("error_inside: insufficient_quota: org-acme has no credit", "error_inside", "org-acme"),
        ("no connection: connection refused at 10.0.0.3:8000", "no connection", "10.0.0.3"),
    ] {
        let mut moved = record("moved-on");
        for (at, attempt) in moved.attempts.iter_mut().take(2).enumerate() {
            let (code, why) = ("upstream_misconfigured".to_owned(), why.to_owned());
            attempt.outcome = match at {
                0 => AttemptOutcome::Refused { code, why },
                _ => AttemptOutcome::Failed { code, why },
            };
        }
        let (owner, answer, operator) = (record_json(&moved), answer_json(&moved), operator_json(&moved));
        for at in 0..2 {
            assert_eq!(owner["attempts"][at]["outcome"]["message"], ours);
            assert_eq!(operator["attempts"][at]["outcome"]["message"], why);
        }
        assert!(!owner.to_string().contains(theirs) && !answer.to_string().contains(theirs), "{owner}");
        assert!(operator.to_string().contains(theirs));
    }
}

#[test]
fn the_reason_of_an_estimate_and_notes_of_the_answer_are_shown() {
    let mut estimated = record("completed");
    estimated.upstream = Some("gpu".into());
    estimated.usage_source = headrace_domain::UsageSource::Estimated;
    estimated.why_estimated = Some("the upstream reported no usage".into());
    estimated.answer_notes = vec!["missing_finish_reason: choice 0".to_owned()];
    let json = record_json(&estimated);
    assert_eq!(json["upstream"]["why_estimated"], "the upstream reported no usage");
    assert_eq!(json["upstream"]["notes"], serde_json::json!(["missing_finish_reason: choice 0"]));
    let drawn = waterfall(&estimated, &WaterfallOptions { width: 200, color: false });
    assert!(drawn.contains("tokens estimated (the upstream reported no usage)"), "{drawn}");
    assert!(drawn.contains("missing_finish_reason: choice 0"), "{drawn}");
    assert_eq!(decode_record(&encode_record(&estimated).unwrap()).unwrap(), estimated);
}
