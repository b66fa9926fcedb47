//! Other kinds of servers that take ids, and vLLM's newer endpoint: request bodies, event formats, and unsupported
//! parameters.

use headrace_domain::{FinishReason, Sampling, Seed, Usage};
use headrace_engine_api::{Engine as _, Job, JobError, JobEvent};
use headrace_fault_server::{FaultServer, Request, event_stream};
use headrace_upstream::UpstreamKind;
use serde_json::{Value, json};

use crate::tokens::{EOS, Said, ids, job, model_of, read, tokenizer};

/// Parent span of all requests.
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn whole(body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn stream(events: &[Value]) -> Vec<u8> {
    let events: Vec<String> = events.iter().map(Value::to_string).collect();
    event_stream(events.iter().map(String::as_str).chain(["[DONE]"]))
}

async fn answered(
    kind: UpstreamKind,
    sampling: Sampling,
    own: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static,
) -> (Said, JobEvent, Vec<Request>) {
    let fault_server = FaultServer::start_with(move |request| Some(own(request))).await.unwrap();
    let model = model_of(kind, &fault_server.url(), "m");
    let job = Job { trace: Some(PARENT.into()), ..job(sampling) };
    let (mut said, last) = read(model.submit(job).unwrap(), 1).await;
    let requests = fault_server.seen().requests;
    assert!(requests.iter().all(|request| request.header("traceparent") == Some(PARENT)));
    (said.remove(0), last, requests)
}

fn asked() -> Sampling {
    Sampling {
        max_tokens: 40,
        temperature: 0.5,
        seed: Seed(77),
        logit_bias: vec![(9, -1.5)],
        stop_token_ids: vec![12],
        ..Sampling::default()
    }
}

fn check_body(request: &Request, expected: &[(&str, Value)]) {
    let body = request.json();
    for (path, value) in expected {
        assert_eq!(body.pointer(path), Some(value), "{path} of {body}");
    }
}

#[tokio::test]
async fn vllm_is_asked_at_its_place_for_ids_where_it_has_one() {
    let text = ids("Hello wörld");
    let events: Vec<Value> = text
        .iter()
        .map(|id| {
            let others = [json!({"token_id": 7, "logprob": -2.5}), json!({"token_id": id, "logprob": -0.5})];
            let score = json!({"token_id": id, "logprob": -0.5, "rank": 1, "top_logprobs": others});
            let part = json!({"index": 0, "finish_reason": null, "token_ids": [id], "logprobs": {"content": [score]}});
            json!({"request_id": "r", "usage": null, "output_mode": "tokens", "choices": [part]})
        })
        .chain([
            json!({"choices": [{"index": 0, "finish_reason": "length", "token_ids": []}]}),
            json!({"choices": [], "usage": {"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}}),
        ])
        .collect();
    let sampling = Sampling { logprobs: Some(2), ..asked() };
    let (said, last, requests) = answered(UpstreamKind::Vllm, sampling, move |_| stream(&events)).await;
    assert_eq!(
        (said.text.as_str(), said.ids, said.ended),
        ("Hello wörld", text.clone(), Some(FinishReason::Length))
    );
    let JobEvent::Done(report) = last else { panic!("{last:?}") };
    let output = text.len() as u64;
    assert_eq!(report.usage, Usage { input: 2, cached_input: 2, output, ..Usage::default() });
    assert_eq!(requests[0].path, "/inference/v1/generate");
    check_body(
        &requests[0],
        &[
            ("/model", json!("m")),
            ("/token_ids", json!([5, 42, 79, 11])),
            ("/stream", json!(true)),
            ("/sampling_params/max_tokens", json!(40)),
            ("/sampling_params/logprobs", json!(2)),
            ("/sampling_params/logit_bias", json!({"9": -1.5})),
            ("/sampling_params/stop_token_ids", json!([12, EOS])),
        ],
    );
}

/// A 404 for a missing model is not mistaken for a missing endpoint.
#[tokio::test]
async fn a_model_that_vllm_does_not_have_is_told_as_that() {
    let (_, last, requests) = answered(UpstreamKind::Vllm, asked(), |_| {
        let body = r#"{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}"#;
        let head = format!("HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
        format!("{head}\r\n\r\n{body}").into_bytes()
    })
    .await;
    assert!(
        matches!(&last, JobEvent::Failed { error: JobError::Internal { detail }, .. } if detail.contains("404")),
        "{last:?}"
    );
    assert_eq!(requests.len(), 1);
}

/// Events that SGLang streams for these ids: with all ids so far, or with those of each event.
fn of_sglang(ids: &[u32], incremental: bool, end: &Value, counts_end: bool) -> Vec<Value> {
    let score = |id: &u32| json!([-0.5, id, null]);
    let top = |id: &u32| json!([[-0.5, id, null], [-1.5, 7, null]]);
    let event = |count: usize, finish: Value| {
        let from = if incremental { (count - 1).min(ids.len() - 1) } else { 0 };
        let told = &ids[from..count.min(ids.len())];
        let meta = json!({"id": "r", "finish_reason": finish, "prompt_tokens": 4, "weight_version": "default",
            "completion_tokens": count, "cached_tokens": 3,
            "output_token_logprobs": told.iter().map(score).collect::<Vec<_>>(),
            "output_top_logprobs": told.iter().map(top).collect::<Vec<_>>()});
        json!({"text": "x", "output_ids": told, "meta_info": meta})
    };
    let mut events: Vec<Value> = (1..ids.len()).map(|count| event(count, Value::Null)).collect();
    events.push(event(ids.len() + usize::from(counts_end), end.clone()));
    events
}

#[tokio::test]
async fn sglang_streams_all_ids_so_far_or_the_new_ones() {
    let text = ids("Hello wörld, and more");
    let length = json!({"type": "length", "length": 9});
    let stop = json!({"type": "stop", "matched": 3});
    for (incremental, end, counts_end, reason) in [
        (false, &length, false, FinishReason::Length),
        (true, &length, false, FinishReason::Length),
        (false, &stop, false, FinishReason::Stop),
        (true, &stop, false, FinishReason::Stop),
        // The token that ended the answer is counted but left out.
        (false, &stop, true, FinishReason::Stop),
        (true, &stop, true, FinishReason::Stop),
    ] {
        let events = of_sglang(&text, incremental, end, counts_end);
        let sampling = Sampling { logprobs: Some(1), min_tokens: 2, ..asked() };
        let (said, last, requests) = answered(UpstreamKind::Sglang, sampling, move |_| stream(&events)).await;
        let told = (said.text.as_str(), &said.ids, said.ended.as_ref());
        assert_eq!(told, ("Hello wörld, and more", &text, Some(&reason)), "{incremental} {end} {counts_end}");
        let JobEvent::Done(report) = last else { panic!("{last:?}") };
        let output = text.len() as u64;
        assert_eq!(report.usage, Usage { input: 1, cached_input: 3, output, ..Usage::default() });
        assert_eq!(requests[0].path, "/generate");
        check_body(
            &requests[0],
            &[
                ("/input_ids", json!([5, 42, 79, 11])),
                ("/stream", json!(true)),
                ("/return_logprob", json!(true)),
                ("/top_logprobs_num", json!(1)),
                ("/extra_key", json!(job(asked()).salt.label().to_string())),
                ("/sampling_params/max_new_tokens", json!(40)),
                ("/sampling_params/min_new_tokens", json!(2)),
                ("/sampling_params/top_k", json!(-1)),
                ("/sampling_params/logit_bias", json!({"9": -1.5})),
                ("/sampling_params/stop_token_ids", json!([12, EOS])),
                ("/sampling_params/skip_special_tokens", json!(false)),
            ],
        );
    }
}

#[tokio::test]
async fn what_sglang_says_wrong_is_told() {
    let meta = |count: usize, finish: Value| json!({"finish_reason": finish, "completion_tokens": count});
    for (events, told) in [
        (vec![json!({"error": {"message": "out of memory"}})], "within its answer: out of memory"),
        (
            vec![
                json!({"output_ids": [20], "meta_info": meta(1, json!({"type": "abort", "message": "aborted"}))}),
            ],
            "`abort`: aborted",
        ),
        (
            vec![json!({"output_ids": [20, 21, 22], "meta_info": meta(1, Value::Null)})],
            "an event of 3 ids reports 1 tokens",
        ),
        (
            vec![
                json!({"output_ids": [20, 21], "meta_info": meta(2, Value::Null)}),
                json!({"output_ids": [20], "meta_info": meta(1, Value::Null)}),
            ],
            "fewer tokens",
        ),
        (vec![json!({"text": "x", "meta_info": meta(1, Value::Null)})], "without its token ids"),
        (vec![json!({"output_ids": [20]})], "nothing of its answer"),
        (
            vec![json!({"output_ids": [20], "meta_info": {"completion_tokens": 1, "finish_reason": null,
                "output_token_logprobs": [[-0.5, 21, null]]}})],
            "of other tokens",
        ),
        (vec![json!([1])], "none of SGLang's"),
    ] {
        let (_, last, _) =
            answered(UpstreamKind::Sglang, Sampling::default(), move |_| stream(&events)).await;
        let JobEvent::Failed { error: JobError::Internal { detail }, .. } = last else {
            panic!("{told}: {last:?}")
        };
        assert!(detail.contains(told) && detail.contains("`fault-server`"), "{detail} should say {told}");
    }
    // The end marker shows that the answer is complete. A stream that breaks off shows nothing.
    let unfinished = json!({"output_ids": [20], "meta_info": meta(1, Value::Null)});
    let whole = stream(std::slice::from_ref(&unfinished));
    let (_, last, _) = answered(UpstreamKind::Sglang, Sampling::default(), move |_| whole.clone()).await;
    assert!(matches!(last, JobEvent::Done(_)), "{last:?}");
    let cut = event_stream([unfinished.to_string().as_str()]);
    let (_, last, _) = answered(UpstreamKind::Sglang, Sampling::default(), move |_| cut.clone()).await;
    let JobEvent::Failed { error: JobError::Internal { detail }, .. } = last else { panic!("{last:?}") };
    assert!(detail.contains("without saying why") && detail.contains("`fault-server`"), "{detail}");
}

/// Events that llama.cpp streams. Tokens that end within a character appear only in the text.
fn of_llama(ids: &[u32], stop_type: &str) -> Vec<Value> {
    let tokenizer = tokenizer();
    let (mut bytes, mut sent, mut events) = (Vec::new(), 0, Vec::new());
    for (at, id) in ids.iter().enumerate() {
        bytes.extend_from_slice(tokenizer.token_bytes(*id).unwrap());
        if std::str::from_utf8(&bytes[sent..]).is_err_and(|error| error.error_len().is_none()) {
            continue;
        }
        let content = String::from_utf8_lossy(&bytes[sent..]).into_owned();
        sent = bytes.len();
        events.push(json!({"index": 0, "content": content, "tokens": [id], "stop": false, "id_slot": -1,
            "tokens_predicted": at + 1, "tokens_evaluated": 4, "timings": {"cache_n": 2}}));
    }
    events.push(json!({"index": 0, "content": "", "tokens": [], "stop": true, "stop_type": stop_type,
        "tokens_predicted": ids.len(), "timings": {"cache_n": 2}}));
    events
}

fn llama_stream(events: &[Value]) -> Vec<u8> {
    let events: Vec<String> = events.iter().map(Value::to_string).collect();
    event_stream(events.iter().map(String::as_str))
}

#[tokio::test]
async fn what_llama_leaves_out_of_its_stream_is_found_again() {
    // None of these characters is a single token, but their bytes are.
    let text = "Grüße 🦀🦀 and 漢字, 😀.";
    let all = ids(text);
    let tokenizer = tokenizer();
    let broken =
        all.iter().filter(|id| std::str::from_utf8(tokenizer.token_bytes(**id).unwrap()).is_err()).count();
    assert!(broken > 4, "the text has tokens that end within a character");
    let events = of_llama(&all, "eos");
    assert!(events.len() <= all.len(), "some are left out");
    let (said, last, requests) =
        answered(UpstreamKind::LlamaCpp, asked(), move |_| llama_stream(&events)).await;
    assert_eq!((said.text.as_str(), said.ids, said.ended), (text, all.clone(), Some(FinishReason::Stop)));
    let JobEvent::Done(report) = last else { panic!("{last:?}") };
    let output = all.len() as u64;
    assert_eq!(report.usage, Usage { input: 2, cached_input: 2, output, ..Usage::default() });
    assert_eq!((requests.len(), requests[0].path.as_str()), (1, "/completion"));
    check_body(
        &requests[0],
        &[
            ("/prompt", json!([5, 42, 79, 11])),
            ("/n_predict", json!(40)),
            ("/return_tokens", json!(true)),
            ("/cache_prompt", json!(true)),
            ("/repeat_last_n", json!(44)),
            ("/top_k", json!(0)),
            ("/logit_bias", json!([[9, -1.5]])),
            ("/samplers", json!(["penalties", "temperature", "top_k", "top_p", "min_p"])),
        ],
    );
}

/// If the bytes are no character, their tokens cannot be restored, so the rest is requested in one piece.
#[tokio::test]
async fn what_cannot_be_found_again_is_asked_for_in_one_piece() {
    let start = ids("Hello ");
    let byte = ids("🦀")[0];
    let streamed = [start.as_slice(), &[byte], &ids("x")].concat();
    let mut events = of_llama(&streamed, "limit");
    let at = events.len() - 2;
    assert_eq!(events[at]["tokens_predicted"], json!(streamed.len()), "one was left out before it");
    events[at]["content"] = json!("\u{fffd}x");
    let rest = [ids("wörld").as_slice(), &[EOS]].concat();
    let answer = json!({"content": "?", "tokens": rest, "stop": true, "stop_type": "eos", "tokens_predicted": rest.len(),
        "timings": {"cache_n": 3}});
    let (said, last, requests) = answered(UpstreamKind::LlamaCpp, asked(), move |request| {
        if request.json()["stream"] == json!(true) { llama_stream(&events) } else { whole(&answer) }
    })
    .await;
    assert_eq!((said.text.as_str(), said.ended), ("Hello wörld", Some(FinishReason::Stop)));
    assert!(matches!(last, JobEvent::Done(_)), "{last:?}");
    let [first, second] = requests.as_slice() else { panic!("{requests:?}") };
    let prompt = [&[5, 42, 79, 11][..], &start].concat();
    check_body(
        second,
        &[("/prompt", json!(prompt)), ("/n_predict", json!(40 - start.len())), ("/stream", json!(false))],
    );
    assert_ne!(first.json()["seed"], second.json()["seed"], "other random numbers than at the beginning");
}

/// The last tokens of an answer that reaches its length limit may be left out, too.
#[tokio::test]
async fn a_character_that_was_begun_at_the_end_is_not_lost() {
    let start = ids("Hello ");
    let byte = ids("🦀")[0];
    let events = of_llama(&[start.as_slice(), &[byte]].concat(), "limit");
    let answer = json!({"tokens": [byte], "stop": true, "stop_type": "limit", "tokens_predicted": 1});
    let sampling = Sampling { max_tokens: u32::try_from(start.len()).unwrap() + 1, ..asked() };
    let (said, _, requests) = answered(UpstreamKind::LlamaCpp, sampling, move |request| {
        if request.json()["stream"] == json!(true) { llama_stream(&events) } else { whole(&answer) }
    })
    .await;
    assert_eq!((said.ids.len(), said.ended), (start.len() + 1, Some(FinishReason::Length)));
    assert_eq!(requests[1].json()["n_predict"], json!(1));
}

#[tokio::test]
async fn what_llama_says_wrong_or_cannot_do_is_told() {
    for (events, told) in [
        (vec![json!({"error": {"code": 500, "message": "it broke", "type": "server_error"}})], "it broke"),
        (vec![json!({"content": "x", "stop": false, "tokens_predicted": 1})], "too old"),
        (vec![json!({"content": "x", "tokens": [20], "stop": false})], "too old"),
        (vec![json!({"content": "x", "tokens": [20, 21], "tokens_predicted": 1})], "2 ids of 1 new"),
        (vec![json!({"tokens": [], "stop": true, "stop_type": "none", "tokens_predicted": 0})], "`none`"),
        (vec![json!([1])], "none of llama.cpp's"),
    ] {
        let (_, last, _) =
            answered(UpstreamKind::LlamaCpp, Sampling::default(), move |_| llama_stream(&events)).await;
        let JobEvent::Failed { error: JobError::Internal { detail }, .. } = last else {
            panic!("{told}: {last:?}")
        };
        assert!(detail.contains(told), "{detail} should say {told}");
    }
    let model = model_of(UpstreamKind::LlamaCpp, "http://127.0.0.1:1", "m");
    for (sampling, told) in [
        (Sampling { logprobs: Some(0), ..Sampling::default() }, "logprobs"),
        (Sampling { min_tokens: 1, ..Sampling::default() }, "min_tokens"),
        (Sampling { presence_penalty: 0.5, ..Sampling::default() }, "presence_penalty"),
        (Sampling { frequency_penalty: 0.5, ..Sampling::default() }, "frequency_penalty"),
    ] {
        let refusal = model.submit(job(sampling)).map(|_| ()).unwrap_err();
        assert!(refusal.to_string().contains(told), "{refusal}");
    }
}

/// llama.cpp does not separate tenants. As soon as there are two, no call may use its cache.
#[tokio::test]
async fn a_cache_without_labels_is_for_one_tenant() {
    let fault_server =
        FaultServer::start_with(|_| Some(llama_stream(&of_llama(&ids("Hello"), "eos")))).await.unwrap();
    let model = model_of(UpstreamKind::LlamaCpp, &fault_server.url(), "m");
    let of = |tenant: &str| Job {
        salt: headrace_domain::CacheSalt::derive(&[1; 32], tenant, "m", None),
        ..job(Sampling::default())
    };
    for (tenant, cached) in [("a", true), ("a", true), ("b", false), ("a", false), ("b", false)] {
        read(model.submit(of(tenant)).unwrap(), 1).await;
        let asked = fault_server.seen().requests.last().unwrap().json();
        assert_eq!(asked["cache_prompt"], json!(cached), "{tenant}");
    }
}
