//! A delay at any moment of a call is attributed to the stage in which it happens. The clock is late from its first
//! reading on, from its second, and so on to its last. Clients that send or read slowly are waited for in real time.

use std::collections::BTreeSet;
use std::time::Duration;

use headrace_domain::{Endpoint, Stage, TraceRecord};
use headrace_explain::{TermName, Usual, explain};

use crate::times::{Upload, read_slowly};
use crate::world::{Arrival, Setup, World, ask, chat_body, header, read, trace_of};

const LATE: Duration = Duration::from_secs(4);

/// The term that the explanation of a record names first.
fn named(record: &TraceRecord) -> (TermName, String) {
    let explanation = explain(record, &Usual::unknown());
    let sum: f64 = explanation.terms.iter().map(|term| term.us).sum();
    assert!(
        (sum - explanation.total_us).abs() <= explanation.total_us * 0.01,
        "{sum} of {}",
        explanation.total_us
    );
    (explanation.dearest.unwrap(), explanation.sentence)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_at_any_reading_of_the_clock_is_named_by_its_stage() {
    let late_ns = u64::try_from(LATE.as_nanos()).unwrap();
    let rules = r#"[{"name": "r", "kind": "words", "words": ["nightingale"], "action": "block"}]"#;
    let rules: Vec<headrace_moderation::RuleConfig> = serde_json::from_str(rules).unwrap();
    let mut found = BTreeSet::new();
    for n in 1.. {
        // The stall timeout is much longer than the delay, so the reader is not given up.
        let world = World::new(Setup { stall: 10 * LATE, rules: rules.clone(), ..Setup::default() });
        world.clock.late_at(n, late_ns);
        read(world.chat(true).await).await;
        world.balance_when_idle().await;
        let in_time = world.clock.is_still_in_time();
        let record = world.traces.0.lock().unwrap().pop().unwrap();
        // The span that contains the delay, according to the record alone. A share inside a stage wins over the stage
        // around it. A reading outside of the call's time delays nothing.
        let held = record
            .stages
            .iter()
            .filter(|span| span.duration_ns >= late_ns)
            .max_by_key(|span| span.inside.is_some());
        if let Some(held) = held {
            let (term, sentence) = named(&record);
            assert_eq!(term.name(), held.stage.name(), "reading {n}: {sentence}");
            assert!(sentence.contains("Most of its 4."), "{sentence}");
            found.insert(held.stage);
        }
        if in_time {
            break;
        }
        assert!(n < 500, "the clock is read without end");
    }
    let expected = [
        Stage::Authenticate,
        Stage::Parse,
        Stage::Authorize,
        Stage::Route,
        Stage::Moderate,
        Stage::Render,
        Stage::Cache,
        Stage::Hold,
        Stage::Place,
        Stage::Settle,
        Stage::Deliver,
    ];
    let missed: Vec<_> = expected.into_iter().filter(|stage| !found.contains(stage)).collect();
    assert!(missed.is_empty(), "no reading fell into {missed:?}, only into {found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_the_client_are_named_as_such() {
    let world = World::new(Setup { buffer_bytes: 1, stall: LATE, ..Setup::default() });
    let Arrival { mut head, body } = world.arrival(Endpoint::ChatCompletions, chat_body(true).to_string());
    head.caller.started_mono_ns = world.gateway_ns();
    let arrival = Arrival { head, body: Upload(body, Duration::from_millis(400)) };
    let record = trace_of(&world, ask(&world.gateway, arrival).await).await;
    let (term, sentence) = named(&record);
    assert_eq!(term, TermName::Receive, "{sentence}");
    assert!(sentence.contains("waiting for the client to send its body"), "{sentence}");

    let mut arrival = world.arrival(Endpoint::ChatCompletions, chat_body(true).to_string());
    arrival.head.caller.started_mono_ns = world.gateway_ns();
    let answer = ask(&world.gateway, arrival).await;
    let id = header(&answer, "x-request-id").unwrap().to_owned();
    read_slowly(answer, Duration::from_millis(60)).await;
    world.balance_when_idle().await;
    let records = world.traces.0.lock().unwrap();
    let record = records.iter().find(|record| record.request_id.to_string() == id).unwrap();
    let (term, sentence) = named(record);
    assert_eq!(term, TermName::Reader, "{sentence}");
    assert!(sentence.contains("waiting for the client to read"), "{sentence}");
}
