//! Odd usage reports of upstreams in both dialects, whole and streamed. Each valid count is charged to the nano-dollar,
//! only the others are estimated, and the trace says why.

use headrace_domain::{CallOutcome, Dialect, Endpoint, UsageSource};
use serde_json::{Value, json};

use crate::scripted_server::{
    Script, body, chunk, data_event, delta, finish, head, named, server, spent, whole, world,
};
use crate::world::read;

/// A whole answer or a stream of "Hi you" with this usage report.
fn script(dialect: Dialect, stream: bool, usage: &Value) -> Script {
    match (dialect, stream) {
        (Dialect::OpenAi, false) => whole(&json!({"id": "x", "model": "m", "usage": usage,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi you"}, "finish_reason": "stop"}]})),
        (Dialect::OpenAi, true) => vec![
            head(),
            chunk(&delta("Hi you")),
            chunk(&finish("stop")),
            chunk(&json!({"id": "x", "choices": [], "usage": usage})),
            data_event("", "[DONE]"),
        ],
        (Dialect::Anthropic, false) => {
            whole(&json!({"id": "m", "type": "message", "role": "assistant", "model": "m",
            "content": [{"type": "text", "text": "Hi you"}], "stop_reason": "end_turn", "usage": usage}))
        }
        (Dialect::Anthropic, true) => vec![
            head(),
            named(
                &json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant",
                "model": "m", "content": [], "stop_reason": null}}),
            ),
            named(
                &json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            ),
            named(&json!({"type": "content_block_delta", "index": 0,
                "delta": {"type": "text_delta", "text": "Hi you"}})),
            named(&json!({"type": "content_block_stop", "index": 0})),
            named(&json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})),
            named(&json!({"type": "message_stop"})),
        ],
    }
}

/// Calls with this report. Returns the charge in nano-dollars, how the tokens are known, and why they are estimated.
async fn charged(
    dialect: Dialect,
    translated: bool,
    stream: bool,
    usage: &Value,
) -> (i64, UsageSource, Option<String>) {
    let world = world(&[server("a", dialect, vec![script(dialect, stream, usage)])]);
    let endpoint = match (dialect, translated) {
        (Dialect::OpenAi, false) | (Dialect::Anthropic, true) => Endpoint::ChatCompletions,
        (Dialect::OpenAi, true) | (Dialect::Anthropic, false) => Endpoint::Messages,
    };
    // The hold covers every row.
    let mut asked = body(stream, &json!({"max_tokens": 1000}));
    asked.as_object_mut().unwrap().remove("unknown_to_us");
    let answer = world.call(endpoint, asked).await;
    assert_eq!(answer.status, 200, "{dialect:?} {usage}");
    let text = read(answer).await;
    assert!(text.contains("Hi you"), "{text}");
    let paid = spent(world.balance_when_idle().await);
    let record = world.last_trace();
    assert_eq!(record.outcome, CallOutcome::Completed { finish: vec!["stop".to_owned()] }, "{usage}");
    assert_eq!(record.cost.get(), paid);
    (paid, record.usage_source, record.why_estimated.as_deref().map(str::to_owned))
}

#[tokio::test]
async fn each_valid_count_of_an_odd_report_is_paid_and_only_the_others_are_estimated() {
    use Dialect::{Anthropic, OpenAi};
    let both: &[Dialect] = &[OpenAi, Anthropic];
    // Nano-dollars per token: $1 input, $0.10 cached and $4 output per million.
    let (input, cached, output) = (1_000, 100, 4_000);
    // The estimate of the answer: a token for each 4 bytes.
    let shown = 2 * output;
    let plain = 100 * input + 50 * output;
    for (dialect, translated, stream) in [
        (OpenAi, false, false),
        (OpenAi, false, true),
        (OpenAi, true, false),
        (OpenAi, true, true),
        (Anthropic, false, false),
        (Anthropic, false, true),
        (Anthropic, true, false),
        (Anthropic, true, true),
    ] {
        let (nothing, source, why) = charged(dialect, translated, stream, &Value::Null).await;
        assert_eq!(
            (source, why.as_deref()),
            (UsageSource::Estimated, Some("the upstream reported no usage"))
        );
        let prompt = nothing - shown;
        assert!(prompt > 0);
        // The report, the dialects it belongs to, its cost, and the name of its gap.
        let rows: &[(Value, &[Dialect], i64, Option<&str>)] = &[
            (json!({"prompt_tokens": 100, "completion_tokens": 50}), both, plain, None),
            (json!({"input_tokens": 100, "output_tokens": 50}), both, plain, None),
            (
                json!({"prompt_tokens": 100, "completion_tokens": 50, "input_tokens": 1, "output_tokens": 1}),
                &[OpenAi],
                plain,
                None,
            ),
            (
                json!({"prompt_tokens": 1, "completion_tokens": 1, "input_tokens": 100, "output_tokens": 50}),
                &[Anthropic],
                plain,
                None,
            ),
            (json!({"prompt_tokens": 100, "completion_tokens": -1, "total_tokens": 150}), both, plain, None),
            (
                json!({"prompt_tokens": 100, "completion_tokens": 50, "prompt_tokens_details": "none"}),
                both,
                plain,
                None,
            ),
            (
                json!({"prompt_tokens": 100, "completion_tokens": 50,
                    "prompt_tokens_details": {"cached_tokens": 101}}),
                both,
                plain,
                None,
            ),
            (
                json!({"prompt_tokens": 100, "completion_tokens": 50,
                    "prompt_tokens_details": {"cached_tokens": 40}}),
                both,
                60 * input + 40 * cached + 50 * output,
                None,
            ),
            (
                json!({"input_tokens": 60, "output_tokens": 50, "cache_read_input_tokens": 40}),
                both,
                60 * input + 40 * cached + 50 * output,
                None,
            ),
            (
                json!({"prompt_tokens": 100, "completion_tokens": "50"}),
                both,
                100 * input + shown,
                Some("the answer's"),
            ),
            (json!({"prompt_tokens": 100}), both, 100 * input + shown, Some("the answer's")),
            (
                json!({"prompt_tokens": 100, "completion_tokens": 1e18}),
                both,
                100 * input + shown,
                Some("the answer's"),
            ),
            (
                json!({"prompt_tokens": 1.5, "completion_tokens": 50}),
                both,
                prompt + 50 * output,
                Some("the prompt's"),
            ),
            (
                json!({"prompt_tokens": null, "completion_tokens": 50}),
                both,
                prompt + 50 * output,
                Some("the prompt's"),
            ),
            (json!({"total_tokens": 102}), both, 100 * input + shown, Some("no valid count")),
            (
                json!({"prompt_tokens": -1, "completion_tokens": []}),
                both,
                prompt + shown,
                Some("no valid count"),
            ),
            (json!({}), both, nothing, Some("reported no usage")),
            (json!([100, 50]), both, nothing, Some("no valid count")),
        ];
        for (report, dialects, cost, gap) in rows {
            if !dialects.contains(&dialect) {
                continue;
            }
            let shown = format!("{dialect:?} translated {translated} stream {stream}: {report}");
            let (paid, source, why) = charged(dialect, translated, stream, report).await;
            assert_eq!(paid, *cost, "{shown}");
            assert_eq!(source == UsageSource::Estimated, gap.is_some(), "{shown}");
            assert_eq!(why.is_some(), gap.is_some(), "{shown}");
            assert!(why.unwrap_or_default().contains(gap.unwrap_or_default()), "{shown}");
        }
    }
}
