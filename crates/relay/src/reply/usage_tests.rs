//! Odd usage reports, whole and streamed, in every dialect: each valid count is used, and the missing part is named.

use headrace_domain::{Endpoint, Usage};

use super::{KnownUsage, ReplyReader};

/// Usage by class, in the order input, cached, written, output, reasoning. `None` in the first or fourth place means
/// unknown.
type Classes = (Option<u64>, u64, u64, Option<u64>, u64);

fn known((input, cached_input, cache_write, output, reasoning): Classes) -> KnownUsage {
    let usage = Usage {
        input: input.unwrap_or(0),
        cached_input,
        cache_write,
        output: output.unwrap_or(0),
        reasoning,
        ..Usage::default()
    };
    KnownUsage { usage, has_prompt: input.is_some(), has_answer: output.is_some(), total: None }
}

/// Reads the same report in a whole body and in the last event of a stream.
fn read(endpoint: Endpoint, usage: &str) -> [ReplyReader; 2] {
    let (whole, events): (String, Vec<String>) = match endpoint {
        Endpoint::Messages => (
            format!(
                r#"{{"content":[{{"type":"text","text":"hi"}}],"stop_reason":"end_turn","usage":{usage}}}"#
            ),
            vec![
                r#"{"type":"message_start","message":{"id":"m","model":"c","content":[]}}"#.to_owned(),
                format!(r#"{{"type":"message_delta","delta":{{"stop_reason":"end_turn"}},"usage":{usage}}}"#),
                r#"{"type":"message_stop"}"#.to_owned(),
            ],
        ),
        Endpoint::Responses => {
            let response = format!(r#"{{"status":"completed","output":[],"usage":{usage}}}"#);
            let end = format!(r#"{{"type":"response.completed","response":{response}}}"#);
            (response, vec![end])
        }
        _ => (
            format!(
                r#"{{"choices":[{{"message":{{"content":"hi"}},"finish_reason":"stop"}}],"usage":{usage}}}"#
            ),
            vec![
                r#"{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}"#.to_owned(),
                format!(r#"{{"choices":[],"usage":{usage}}}"#),
                "[DONE]".to_owned(),
            ],
        ),
    };
    let mut one = ReplyReader::new(endpoint, false, 1);
    one.whole(whole.as_bytes(), None).unwrap();
    let mut stream = ReplyReader::new(endpoint, true, 1);
    for event in events {
        stream.event(b"", event.as_bytes(), None).unwrap();
    }
    stream.end().unwrap();
    [one, stream]
}

#[test]
fn each_valid_count_of_an_odd_report_is_used() {
    use Endpoint::{ChatCompletions as Chat, Messages, Responses};
    let all: &[Endpoint] = &[Chat, Messages, Responses];
    let plain: Classes = (Some(100), 0, 0, Some(50), 0);
    let rows: &[(&[Endpoint], &str, Classes)] = &[
        // Each dialect accepts the names of all dialects.
        (all, r#"{"prompt_tokens":100,"completion_tokens":50}"#, plain),
        (all, r#"{"input_tokens":100,"output_tokens":50}"#, plain),
        (
            &[Chat],
            r#"{"prompt_tokens":100,"completion_tokens":50,"input_tokens":7,"output_tokens":8}"#,
            plain,
        ),
        (
            &[Messages, Responses],
            r#"{"prompt_tokens":7,"completion_tokens":8,"input_tokens":100,"output_tokens":50}"#,
            plain,
        ),
        // One count under each dialect's names.
        (all, r#"{"prompt_tokens":100,"output_tokens":50}"#, plain),
        (all, r#"{"input_tokens":100,"completion_tokens":50}"#, plain),
        // The dialect's own name has no valid count, but the other name has one.
        (
            all,
            r#"{"prompt_tokens":-1,"input_tokens":100,"completion_tokens":"50","output_tokens":50}"#,
            plain,
        ),
        (
            all,
            r#"{"prompt_tokens":100,"input_tokens":null,"completion_tokens":50,"output_tokens":1.5}"#,
            plain,
        ),
        // Counts that follow from the total.
        (all, r#"{"prompt_tokens":100,"total_tokens":150}"#, plain),
        (all, r#"{"completion_tokens":50,"total_tokens":150}"#, plain),
        (all, r#"{"output_tokens":50,"input_tokens":-3,"total_tokens":150}"#, plain),
        (all, r#"{"prompt_tokens":100,"completion_tokens":50,"total_tokens":7}"#, plain),
        (all, r#"{"prompt_tokens":100,"completion_tokens":50,"total_tokens":"x"}"#, plain),
        (all, r#"{"total_tokens":150}"#, (None, 0, 0, None, 0)),
        (all, r#"{"prompt_tokens":100,"total_tokens":50}"#, (Some(100), 0, 0, None, 0)),
        // Only one part is known.
        (all, r#"{"prompt_tokens":100}"#, (Some(100), 0, 0, None, 0)),
        (all, r#"{"output_tokens":50}"#, (None, 0, 0, Some(50), 0)),
        (all, r#"{"prompt_tokens":100,"completion_tokens":null}"#, (Some(100), 0, 0, None, 0)),
        (all, r#"{"prompt_tokens":"100","completion_tokens":50}"#, (None, 0, 0, Some(50), 0)),
        (all, r#"{"prompt_tokens":100.5,"completion_tokens":50}"#, (None, 0, 0, Some(50), 0)),
        (all, r#"{"prompt_tokens":100.0,"completion_tokens":5e1}"#, plain),
        (all, r#"{"prompt_tokens":100,"completion_tokens":1e300}"#, (Some(100), 0, 0, None, 0)),
        (all, r#"{"prompt_tokens":100,"completion_tokens":4294967297}"#, (Some(100), 0, 0, None, 0)),
        (all, r#"{"prompt_tokens":{"n":100},"completion_tokens":[50]}"#, (None, 0, 0, None, 0)),
        (all, r#"{"prompt_tokens":true,"completion_tokens":50}"#, (None, 0, 0, Some(50), 0)),
        (all, r#"{"prompt_tokens":0,"completion_tokens":0}"#, (Some(0), 0, 0, Some(0), 0)),
        // Details of a wrong type, under both families of names.
        (all, r#"{"prompt_tokens":100,"completion_tokens":50,"prompt_tokens_details":"x"}"#, plain),
        (all, r#"{"prompt_tokens":100,"completion_tokens":50,"prompt_tokens_details":[1]}"#, plain),
        (all, r#"{"prompt_tokens":100,"completion_tokens":50,"completion_tokens_details":7}"#, plain),
        (all, r#"{"input_tokens":100,"output_tokens":50,"input_tokens_details":false}"#, plain),
        (all, r#"{"input_tokens":100,"output_tokens":50,"cache_creation":[],"server_tool_use":""}"#, plain),
        (all, r#"{"input_tokens":100,"output_tokens":50,"service_tier":{"a":1}}"#, plain),
        (
            all,
            r#"{"prompt_tokens":100,"completion_tokens":50,"prompt_tokens_details":{"cached_tokens":-30}}"#,
            plain,
        ),
        // Details that exceed their total.
        (
            all,
            r#"{"prompt_tokens":100,"completion_tokens":50,"prompt_tokens_details":{"cached_tokens":150}}"#,
            plain,
        ),
        (
            all,
            r#"{"prompt_tokens":100,"completion_tokens":50,"completion_tokens_details":{"reasoning_tokens":80}}"#,
            plain,
        ),
        (
            all,
            r#"{"prompt_tokens":100,"completion_tokens":50,"prompt_tokens_details":{"cached_tokens":30,"cache_write_tokens":90}}"#,
            (Some(70), 30, 0, Some(50), 0),
        ),
        // Under OpenAI's names, the cache is a part of the prompt.
        (
            all,
            r#"{"prompt_tokens":100,"completion_tokens":50,"prompt_tokens_details":{"cached_tokens":30}}"#,
            (Some(70), 30, 0, Some(50), 0),
        ),
        (
            all,
            r#"{"input_tokens":100,"output_tokens":50,"input_tokens_details":{"cached_tokens":30},"output_tokens_details":{"reasoning_tokens":20}}"#,
            (Some(70), 30, 0, Some(30), 20),
        ),
        (
            all,
            r#"{"prompt_cache_hit_tokens":30,"prompt_cache_miss_tokens":70,"completion_tokens":50}"#,
            (Some(70), 30, 0, Some(50), 0),
        ),
        // Under Anthropic's names, the cache is counted beside `input_tokens`. It is a part of `prompt_tokens` if it
        // fits.
        (
            all,
            r#"{"input_tokens":100,"output_tokens":50,"cache_read_input_tokens":30}"#,
            (Some(100), 30, 0, Some(50), 0),
        ),
        (
            all,
            r#"{"input_tokens":100,"output_tokens":50,"cache_creation_input_tokens":30}"#,
            (Some(100), 0, 30, Some(50), 0),
        ),
        (
            all,
            r#"{"prompt_tokens":100,"completion_tokens":50,"cache_read_input_tokens":30}"#,
            (Some(70), 30, 0, Some(50), 0),
        ),
        (
            all,
            r#"{"prompt_tokens":10,"completion_tokens":50,"cache_read_input_tokens":30}"#,
            (Some(10), 30, 0, Some(50), 0),
        ),
        (
            &[Messages],
            r#"{"input_tokens":100,"output_tokens":50,"cache_read_input_tokens":-1,"cache_creation_input_tokens":30}"#,
            (Some(100), 0, 30, Some(50), 0),
        ),
        // Reasoning is counted beside the answer, as the total shows.
        (
            all,
            r#"{"prompt_tokens":100,"completion_tokens":50,"total_tokens":230,"completion_tokens_details":{"reasoning_tokens":80}}"#,
            (Some(100), 0, 0, Some(50), 80),
        ),
        // No report, or no readable one.
        (all, "null", (None, 0, 0, None, 0)),
        (all, "{}", (None, 0, 0, None, 0)),
        (all, "[100,50]", (None, 0, 0, None, 0)),
        (all, "\"150\"", (None, 0, 0, None, 0)),
    ];
    for (endpoints, report, classes) in rows {
        for endpoint in *endpoints {
            for reader in read(*endpoint, report) {
                let expected = known(*classes);
                assert_eq!(
                    KnownUsage { total: None, ..reader.known_usage() },
                    expected,
                    "{endpoint:?} {report}"
                );
                let complete = expected.has_prompt && expected.has_answer;
                assert_eq!(reader.usage_gap().is_none(), complete, "{endpoint:?} {report}");
                assert_eq!(reader.usage(), complete.then_some(expected.usage), "{endpoint:?} {report}");
            }
        }
    }
}

#[test]
fn the_gap_of_a_report_is_named() {
    for (report, gap) in [
        ("null", "reported no usage"),
        ("{}", "reported no usage"),
        ("[]", "no valid count of tokens"),
        (r#"{"prompt_tokens":100}"#, "the answer's tokens"),
        (r#"{"prompt_tokens":-100,"completion_tokens":1}"#, "the prompt's tokens"),
    ] {
        for reader in read(Endpoint::ChatCompletions, report) {
            assert!(reader.usage_gap().unwrap().contains(gap), "{report}: {:?}", reader.usage_gap());
        }
    }
}

#[test]
fn an_encoder_reports_no_answer() {
    for (report, input) in [
        (r#"{"prompt_tokens":7,"total_tokens":7}"#, Some(7)),
        (r#"{"prompt_tokens":7}"#, Some(7)),
        (r#"{"total_tokens":7}"#, Some(7)),
        (r#"{"input_tokens":7}"#, Some(7)),
        ("{}", None),
    ] {
        for endpoint in [Endpoint::Embeddings, Endpoint::Rerank, Endpoint::Score] {
            let mut reader = ReplyReader::new(endpoint, false, 1);
            reader.whole(format!(r#"{{"data":[],"usage":{report}}}"#).as_bytes(), None).unwrap();
            assert_eq!(reader.usage().map(|usage| usage.input), input, "{endpoint:?} {report}");
        }
    }
}
