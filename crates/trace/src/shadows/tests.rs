//! Comparisons of pairs of models, and the output for one shadow copy.

use headrace_domain::{ShadowOf, ShadowedCall, Usage};

use super::*;
use crate::{WaterfallOptions, decode_record, operator_json, waterfall};

/// The `n`th copy of a call that took one millisecond and cost 100. The copy takes `millis` and costs `cost`.
fn copy(n: u64, millis: u64, cost: i64, compared: Option<ShadowComparison>) -> TraceRecord {
    let text = include_str!("../../tests/data/completed.json");
    let base = decode_record(text.trim_end()).unwrap();
    let id: u128 = base.request_id.bits() + u128::from(n);
    let went = ShadowedCall {
        first_token_ns: Some(500_000),
        server_ns: 1_000_000,
        output_tokens: 10,
        cost: NanoDollars::new(100),
    };
    let shadow = ShadowOf { call: base.request_id, model: "now".to_owned(), went, compared };
    TraceRecord {
        request_id: RequestId::from_bits(id),
        model_served: Some("next".to_owned()),
        stages: Vec::new(),
        duration_ns: millis * 1_000_000,
        first_token_ns: Some(millis * 100_000),
        usage: Usage { output: 20, ..Usage::default() },
        loss: NanoDollars::new(cost),
        shadow_of: Some(Box::new(shadow)),
        ..base
    }
}

fn compared(common_permille: u32, tools: Option<(bool, bool)>) -> ShadowComparison {
    let (same_tools, same_arguments) = tools.unwrap_or((true, true));
    ShadowComparison {
        same: common_permille == 1000 && same_arguments,
        common_permille,
        same_finish: same_tools,
        characters: [8, 8],
        tool_calls: if tools.is_some() { [1, 1] } else { [0, 0] },
        same_tools,
        same_arguments,
        digests: ["a".to_owned(), "b".to_owned()],
    }
}

#[test]
fn a_pair_of_models_is_told_in_figures_and_by_its_worst_examples() {
    let mut records = vec![
        copy(1, 2, 200, Some(compared(1000, None))),
        copy(2, 4, 300, Some(compared(250, None))),
        copy(3, 3, 400, Some(compared(1000, Some((true, false))))),
        copy(4, 9, 500, Some(compared(900, Some((false, false))))),
        copy(5, 1, 100, None),
    ];
    let mut failed = copy(6, 90, 9, None);
    failed.outcome = CallOutcome::Cancelled { why: "w".to_owned() };
    records.push(failed);
    let mut other = copy(7, 1, 1, None);
    other.model_served = Some("other".to_owned());
    records.push(TraceRecord { shadow_of: None, ..copy(8, 1, 1, None) });
    records.push(other);
    let pairs = shadow_pairs(&records);
    assert_eq!(pairs.iter().map(|pair| pair.shadow.as_str()).collect::<Vec<_>>(), ["next", "other"]);
    let pair = &pairs[0];
    assert_eq!((pair.copies, pair.answered, pair.compared), (6, 5, 4));
    assert_eq!((pair.same, pair.same_finish, pair.common_permille), (1, 3, 787));
    assert_eq!((pair.with_tools, pair.same_tools, pair.same_arguments), (2, 1, 0));
    assert_eq!(pair.output_tokens, [10.0, 20.0]);
    assert_eq!(pair.first_token_ns, [[500_000, 500_000], [300_000, 900_000]]);
    assert_eq!(pair.server_ns, [[1_000_000, 1_000_000], [3_000_000, 9_000_000]]);
    assert_eq!(pair.cost.map(NanoDollars::get), [500, 1500]);
    let worst: Vec<_> = pair.worst.iter().map(|example| example.copy).collect();
    assert_eq!(worst, [3, 2, 1].map(|at: usize| records[at].request_id), "tool calls before words");
    let text = pair.text();
    for part in [
        "now → next: 6 copies, 5 answered, 4 compared",
        "10.0 → 20.0",
        "1.00 ms → 9.00 ms",
        "the same answer 25.0%, the same finish 75.0%, 78.7% of the characters in common",
        "2 with tool calls: the same tools 50.0%, the same arguments 0%",
        "90.0% in common, other tool calls",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(shadow_pairs(&[]).is_empty());
}

#[test]
fn a_copy_says_whose_it_is_and_is_no_request_among_others() {
    let record = copy(1, 2, 200, Some(compared(250, None)));
    let call = record.shadow_of.as_ref().unwrap().call.to_string();
    let json = operator_json(&record);
    assert_eq!(json["shadow_of"], serde_json::json!(call));
    assert_eq!(json["shadow"]["compared"]["common_permille"], serde_json::json!(250));
    assert!(waterfall(&record, &WaterfallOptions::default()).contains(&format!("{call}, answered by now")));

    let metrics =
        crate::Metrics::new(&crate::MetricsConfig { models: vec!["next".to_owned()], ..Default::default() });
    metrics.observe(&record);
    let page = metrics.prometheus();
    assert!(
        !page.contains("headrace_requests_total{") && !page.contains("headrace_tokens_total{model=\"next\""),
        "{page}"
    );
    let loss: Vec<_> = page.lines().filter(|line| line.starts_with("headrace_loss")).collect();
    assert!(loss.iter().any(|line| line.contains("next")), "{loss:?}");
}
