//! A server that takes ids behind the trait `Engine`: request bodies, text, stops, log-probabilities, usage,
//! cancellation, faults.

use std::sync::Arc;
use std::time::Duration;

use headrace_checkpoint::TokenizerConfig;
use headrace_domain::{CacheSalt, FinishReason, RequestId, Sampling, Seed, SystemClock, Usage};
use headrace_engine_api::{
    Engine as _, Job, JobError, JobEvent, JobTicket, Priority, ReportAge, SubmitRefusal, Tenant,
};
use headrace_fault_server::{FaultServer, Request, event_stream};
use headrace_tokenizer::Tokenizer;
use headrace_upstream::{TokenModel, TokenModelSpec, Upstream, UpstreamKind};
use serde_json::{Value, json};

use crate::calls::spec;

pub(crate) const EOS: u32 = 3;
const SOON: Duration = Duration::from_secs(60);

pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model/checkpoint/tokenizer.json");
    Arc::new(Tokenizer::new(&std::fs::read(path).unwrap(), &TokenizerConfig::default()).unwrap())
}

fn known(name: &str) -> TokenModelSpec {
    let tokenizer = tokenizer();
    TokenModelSpec {
        model: name.to_owned(),
        vocab: u32::try_from(tokenizer.vocab_size()).unwrap(),
        tokenizer,
        skip_special: true,
        eos: vec![EOS],
        context_window: 64,
        clock: Arc::new(SystemClock::default()),
    }
}

fn model(url: &str, name: &str) -> TokenModel {
    model_of(UpstreamKind::Vllm, url, name)
}

pub(crate) fn model_of(kind: UpstreamKind, url: &str, name: &str) -> TokenModel {
    TokenModel::new(&Upstream::new(spec(url, kind)).unwrap(), known(name)).unwrap()
}

pub(crate) fn job(sampling: Sampling) -> Job {
    Job {
        request: RequestId::from_bits(9),
        first_choice: 0,
        prompt: vec![5, 42, 79, 11].into(),
        generated: 0,
        sampling,
        salt: CacheSalt::derive(&[1; 32], "tenant", "m", None),
        keys: None,
        pins: Arc::default(),
        held: None,
        grammar: None,
        thought: None,
        tenant: Tenant(1),
        weight: 1,
        priority: Priority::Normal,
        start_deadline_ns: None,
        trace: None,
        unread_bytes: 1 << 16,
    }
}

/// An answer with these tokens as vLLM streams it: one event for each piece.
fn answer(pieces: &[Vec<u32>], finish: Option<&str>, cached: u64) -> Vec<u8> {
    let mut data: Vec<String> = pieces
        .iter()
        .map(|ids| {
            let names: Vec<String> = ids.iter().map(|id| format!("token_id:{id}")).collect();
            let top: Vec<Value> = names.iter().map(|name| json!({name: -0.5, "token_id:7": -1.5})).collect();
            let scores =
                json!({"tokens": names, "token_logprobs": vec![-0.5; ids.len()], "top_logprobs": top});
            let choice =
                json!({"index": 0, "text": "x", "token_ids": ids, "logprobs": scores, "finish_reason": null});
            json!({"choices": [choice], "usage": null}).to_string()
        })
        .collect();
    if let Some(reason) = finish {
        let choice = json!({"index": 0, "text": "", "token_ids": [], "finish_reason": reason});
        data.push(json!({"choices": [choice]}).to_string());
    }
    let details = json!({"cached_tokens": cached});
    data.push(
        json!({"choices": [], "usage": {"prompt_tokens": 4, "prompt_tokens_details": details}}).to_string(),
    );
    // Without a finish reason, the stream breaks off.
    data.extend(finish.map(|_| "[DONE]".to_owned()));
    event_stream(data.iter().map(String::as_str))
}

/// The answer of vLLM if the endpoint for token ids is not enabled.
fn not_there() -> Vec<u8> {
    let body = r#"{"detail":"Not Found"}"#;
    format!(
        "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// All events of a job, joined by choice: text, ids and finish reason.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) ended: Option<FinishReason>,
}

pub(crate) async fn read(ticket: JobTicket, choices: usize) -> (Vec<Said>, JobEvent) {
    let (mut events, _control) = ticket.split();
    let mut said: Vec<Said> = (0..choices).map(|_| Said::default()).collect();
    loop {
        match tokio::time::timeout(SOON, events.next()).await.unwrap().unwrap() {
            JobEvent::Tokens { choice, ids, text, logprobs } => {
                assert!(logprobs.is_empty() || logprobs.len() == ids.len());
                let said = &mut said[choice as usize];
                assert_eq!(said.ended, None, "nothing comes after its end");
                said.text.push_str(&text);
                said.ids.extend(ids);
            }
            JobEvent::Finished { choice, reason } => said[choice as usize].ended = Some(reason),
            JobEvent::Started { .. } => {}
            last => {
                assert_eq!(events.next().await, None);
                return (said, last);
            }
        }
    }
}

pub(crate) fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode_plain(text, false).unwrap()
}

fn single(ids: &[u32]) -> Vec<Vec<u32>> {
    ids.iter().map(|id| vec![*id]).collect()
}

#[tokio::test]
async fn ids_become_text_that_ends_where_our_rules_say() {
    let text = "Hello wörld, stop here and now";
    let all = ids(text);
    let count = all.len() as u32;
    let eos = [all.as_slice(), &[EOS]].concat();
    let first = all[0];
    let sampling = |change: fn(&mut Sampling)| {
        let mut sampling = Sampling { max_tokens: 50, ..Sampling::default() };
        change(&mut sampling);
        sampling
    };
    let stop = |matched: &str| FinishReason::StopString { matched: matched.to_owned() };
    for (name, pieces, finish, sampling, expected, end) in [
        ("the server's end", single(&all), Some("stop"), sampling(|_| ()), text, FinishReason::Stop),
        ("its length", single(&all), Some("length"), sampling(|_| ()), text, FinishReason::Length),
        ("an end token", single(&eos), Some("stop"), sampling(|_| ()), text, FinishReason::Stop),
        ("all at once", vec![eos.clone()], Some("stop"), sampling(|_| ()), text, FinishReason::Stop),
        (
            "a stop string across tokens, before the server's end",
            single(&all),
            Some("stop"),
            sampling(|s| s.stop = vec!["nowhere".into(), ", stop h".into()]),
            "Hello wörld",
            stop(", stop h"),
        ),
        (
            "a stop string at the very end",
            single(&all),
            Some("length"),
            sampling(|s| s.stop = vec!["now".into(), "nowhere".into()]),
            "Hello wörld, stop here and ",
            stop("now"),
        ),
        (
            "what only begins as a stop string",
            single(&all),
            Some("stop"),
            sampling(|s| s.stop = vec!["nowhere".into()]),
            text,
            FinishReason::Stop,
        ),
        (
            "stops that count later",
            single(&all),
            Some("stop"),
            sampling(|s| (s.min_tokens, s.stop) = (50, vec!["Hello".into()])),
            text,
            FinishReason::Stop,
        ),
    ] {
        let fault_server = FaultServer::start_with(move |_| Some(answer(&pieces, finish, 0))).await.unwrap();
        let model = model(&fault_server.url(), "m");
        let (said, last) = read(model.submit(job(sampling)).unwrap(), 1).await;
        assert_eq!((said[0].text.as_str(), said[0].ended.as_ref()), (expected, Some(&end)), "{name}");
        let JobEvent::Done(report) = last else { panic!("{name}: {last:?}") };
        assert_eq!(report.usage.output, said[0].ids.len() as u64, "{name}");
        assert_eq!(said[0].ids[0], first, "{name}");
        assert!(said[0].ids.len() as u32 <= count + 1, "{name}");
    }
}

#[tokio::test]
async fn choices_are_calls_of_their_own_under_one_prompt() {
    let text = ids("one two three four");
    let cached = |request: &Request| request.json()["seed"].as_u64().unwrap() % 2 * 3 + 1;
    let fault_server = {
        let pieces = single(&text);
        FaultServer::start_with(move |request| {
            let there = request.path == "/v1/completions";
            Some(if there { answer(&pieces, Some("stop"), cached(request)) } else { not_there() })
        })
        .await
        .unwrap()
    };
    let model = model(&fault_server.url(), "m");
    assert_eq!(model.load().reported, ReportAge::Never);
    let mut job = job(Sampling {
        n: 8,
        max_tokens: 40,
        temperature: 0.5,
        seed: Seed(77),
        logprobs: Some(1),
        logit_bias: vec![(9, -1.5)],
        stop_token_ids: vec![12],
        ..Sampling::default()
    });
    job.first_choice = 0;
    let (said, last) = read(model.submit(job.clone()).unwrap(), 8).await;
    for said in &said {
        assert_eq!((said.text.as_str(), &said.ended), ("one two three four", &Some(FinishReason::Stop)));
    }
    let JobEvent::Done(report) = last else { panic!("{last:?}") };
    // Prompt tokens are charged once. They count as cached only if every choice found them cached.
    let output = 8 * text.len() as u64;
    assert_eq!(report.usage, Usage { input: 3, cached_input: 1, output, ..Usage::default() });
    let by_completions = |request: &Request| request.path == "/v1/completions";
    let mut seen = fault_server.seen();
    // The missing endpoint is requested only once per choice, by all choices at the same time.
    assert_eq!(seen.requests.iter().filter(|request| !by_completions(request)).count(), 8);
    seen.requests.retain(by_completions);
    let mut seeds: Vec<u64> =
        seen.requests.iter().map(|request| request.json()["seed"].as_u64().unwrap()).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 8);
    let mut body = seen.requests[0].json();
    for (field, value) in [
        ("model", json!("m")),
        ("prompt", json!([5, 42, 79, 11])),
        ("stream", json!(true)),
        ("return_token_ids", json!(true)),
        ("return_tokens_as_token_ids", json!(true)),
        ("max_tokens", json!(40)),
        ("temperature", json!(0.5)),
        ("top_k", json!(-1)),
        ("logprobs", json!(1)),
        ("logit_bias", json!({"9": -1.5})),
        ("stop_token_ids", json!([12, 3])),
    ] {
        assert_eq!(body[field].take(), value, "{field}");
    }
    let salts = |request: &Request| request.json()["cache_salt"].as_str().unwrap().to_owned();
    let ours = salts(&seen.requests[0]);
    job.salt = CacheSalt::derive(&[1; 32], "another tenant", "m", None);
    read(model.submit(job).unwrap(), 8).await;
    let requests = fault_server.seen().requests;
    assert_eq!(requests.len(), 24, "it is known what it does not have");
    let theirs = salts(requests.last().unwrap());
    assert!(ours.len() == 32 && ours != theirs, "{ours} {theirs}");
}

#[tokio::test]
async fn log_probabilities_are_of_ids_best_first() {
    let fault_server =
        FaultServer::start_with(|_| Some(answer(&[vec![20], vec![21]], Some("stop"), 0))).await.unwrap();
    let sampling = Sampling { logprobs: Some(2), max_tokens: 9, ..Sampling::default() };
    let (mut events, _control) = model(&fault_server.url(), "m").submit(job(sampling)).unwrap().split();
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        if let JobEvent::Tokens { logprobs, .. } = event {
            seen.extend(logprobs);
        }
    }
    let told: Vec<(u32, Option<f32>, Vec<u32>)> = seen
        .iter()
        .map(|score| (score.id, score.logprob, score.top.iter().map(|top| top.id).collect()))
        .collect();
    assert_eq!(told, [(20, Some(-0.5), vec![20, 7]), (21, Some(-0.5), vec![21, 7])]);
    assert_eq!(seen[0].bytes, tokenizer().token_bytes(20).unwrap());
}

#[tokio::test]
async fn a_cancelled_job_closes_its_call() {
    let fault_server = FaultServer::start().await.unwrap();
    let (mut events, control) =
        model(&fault_server.url(), "no_head").submit(job(Sampling::default())).unwrap().split();
    while fault_server.seen().requests.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    control.cancel().report().await;
    assert!(matches!(events.next().await, Some(JobEvent::Failed { error: JobError::Cancelled, .. })));
    assert!(fault_server.saw_broken_off(1, SOON).await);
}

#[tokio::test]
async fn what_fails_is_told_and_ends_once() {
    let fault_server = FaultServer::start_with(|request| match request.json()["model"].as_str() {
        Some("endless") => Some(event_stream([r#"{"choices":[{"token_ids":[20],"finish_reason":null}]}"#])),
        Some("late error") => Some(event_stream([r#"{"error":{"message":"the engine is dead"}}"#])),
        _ => None,
    })
    .await
    .unwrap();
    for (name, told) in [
        ("endless", "ended its answer without saying why"),
        ("late error", "the engine is dead"),
        ("cut", "text without its token ids"),
        ("server_error", "status 500"),
        ("no_head", "did not come within"),
        ("always_whole", "answer whole"),
        ("html", "a page of HTML"),
    ] {
        let (_, last) =
            read(model(&fault_server.url(), name).submit(job(Sampling::default())).unwrap(), 1).await;
        let JobEvent::Failed { error: JobError::Internal { detail }, .. } = last else {
            panic!("{name}: {last:?}")
        };
        assert!(detail.contains(told) && detail.contains("`fault-server`"), "{name}: {detail}");
    }
}

#[tokio::test]
async fn what_a_server_cannot_take_is_refused_by_name() {
    let refusing = model("http://127.0.0.1:1", "m");
    for (change, told) in [
        ((|job: &mut Job| job.prompt = Vec::new().into()) as fn(&mut Job), "without a token"),
        (|job| job.prompt = vec![u32::MAX].into(), "outside the vocabulary"),
        (|job| job.prompt = vec![5; 64].into(), "needs 65 tokens"),
        (|job| job.sampling.n = 0, "n = 0"),
        (|job| job.sampling.prompt_logprobs = Some(0), "log-probabilities of the prompt"),
        (|job| job.sampling.logprobs = Some(21), "logprobs beyond 20"),
    ] {
        let mut asked = job(Sampling::default());
        change(&mut asked);
        let refusal = refusing.submit(asked).map(|_| ()).unwrap_err();
        assert!(refusal.to_string().contains(told), "{refusal}");
    }
    let upstream = Upstream::new(spec("http://127.0.0.1:1", UpstreamKind::Vllm)).unwrap();
    let drained = TokenModel::new(&upstream, known("m")).unwrap();
    upstream.drain();
    let refusal = drained.submit(job(Sampling::default())).map(|_| ()).unwrap_err();
    assert!(matches!(&refusal, SubmitRefusal::Unavailable { why } if why.contains("drained")), "{refusal}");
    let other = Upstream::new(spec("http://127.0.0.1:1", UpstreamKind::OpenAi)).unwrap();
    assert!(TokenModel::new(&other, known("m")).map(|_| ()).unwrap_err().contains("kind `openai`"));
}

#[tokio::test]
async fn an_answer_begun_elsewhere_goes_on_behind_its_tokens() {
    let all = ids("Hello wörld, stop here and now");
    let sampling =
        || Sampling { max_tokens: 50, min_tokens: 2, stop: vec![", stop h".into()], ..Sampling::default() };
    let told = |pieces: &[u32], finish: Option<&'static str>| {
        let pieces = single(pieces);
        FaultServer::start_with(move |_| Some(answer(&pieces, finish, 0)))
    };
    let mut cuts = 0;
    for cut in 0..all.len() {
        let first = told(&all[..cut], None).await.unwrap();
        let (before, _) = read(model(&first.url(), "m").submit(job(sampling())).unwrap(), 1).await;
        if before[0].ended.is_some() {
            break;
        }
        cuts += 1;
        let second = told(&all[cut..], Some("stop")).await.unwrap();
        let mut onward = job(sampling());
        onward.generated = u32::try_from(cut).unwrap();
        onward.prompt = onward.prompt.iter().chain(&all[..cut]).copied().collect();
        let (after, _) = read(model(&second.url(), "m").submit(onward.clone()).unwrap(), 1).await;
        let text = before[0].text.clone() + &after[0].text;
        let end = FinishReason::StopString { matched: ", stop h".to_owned() };
        assert_eq!((text.as_str(), &after[0].ended), ("Hello wörld", &Some(end)), "cut after {cut}");
        let body = second.seen().requests[0].json();
        assert_eq!(body["token_ids"].as_array().unwrap().len(), onward.prompt.len());
        assert_eq!(body["sampling_params"]["max_tokens"], 50 - cut);
        assert_eq!(body["sampling_params"]["min_tokens"], 2_usize.saturating_sub(cut));
    }
    assert!(cuts > 4, "{cuts}");

    // The answer is complete except for its end, so the server is not called.
    let silent = told(&[], None).await.unwrap();
    let mut ended = job(Sampling { max_tokens: 3, ..Sampling::default() });
    ended.generated = 3;
    ended.prompt = ended.prompt.iter().chain(&all[..3]).copied().collect();
    let (said, last) = read(model(&silent.url(), "m").submit(ended).unwrap(), 1).await;
    assert_eq!((said[0].text.as_str(), &said[0].ended), ("", &Some(FinishReason::Length)));
    assert!(matches!(last, JobEvent::Done(_)) && silent.seen().requests.is_empty());
}

/// A head without a length, and these bytes. The body ends with the connection.
fn until_close(body: &[u8]) -> Vec<u8> {
    [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n", body].concat()
}

/// Starts a server that answers each connection with these bytes and keeps it open until the client leaves.
async fn holding(bytes: Vec<u8>) -> (String, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = [0; 1 << 16];
        let _ = tokio::io::AsyncReadExt::read(&mut socket, &mut head).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut socket, &bytes).await.unwrap();
        while tokio::io::AsyncReadExt::read(&mut socket, &mut head).await.is_ok_and(|read| read > 0) {}
    });
    (url, serving)
}

#[tokio::test]
async fn an_answer_that_has_ended_lets_go_of_a_server_that_does_not() {
    let ended = r#"{"choices":[{"token_ids":[20],"finish_reason":"stop"}]}"#;
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}}"#;
    for (events, cached) in [(vec![ended], 0), (vec![ended, usage], 3)] {
        let stream = events.iter().map(|data| format!("data: {data}\n\n")).collect::<String>();
        let (url, serving) = holding(until_close(stream.as_bytes())).await;
        let mut spec = spec(&url, UpstreamKind::Vllm);
        spec.timeouts.idle = Duration::from_secs(600);
        let model = TokenModel::new(&Upstream::new(spec).unwrap(), known("m")).unwrap();
        let (said, last) = read(model.submit(job(Sampling::default())).unwrap(), 1).await;
        assert_eq!((said[0].ids.as_slice(), &said[0].ended), (&[20][..], &Some(FinishReason::Stop)));
        let JobEvent::Done(report) = last else { panic!("{last:?}") };
        assert_eq!((report.usage.cached_input, report.usage.output), (cached, 1));
        // The connection is closed, so the server sees that the client has left.
        tokio::time::timeout(SOON, serving).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_end_of_a_stream_of_ids_needs_neither_a_blank_line_nor_a_reason() {
    let ids = r#"{"choices":[{"token_ids":[20],"finish_reason":null}]}"#;
    let ended = r#"{"choices":[{"token_ids":[21],"finish_reason":"stop"}]}"#;
    for (body, expected) in [
        (format!("data: {ids}\n\ndata: {ended}\n\ndata: [DONE]\n"), Some(vec![20, 21])),
        (format!("data: {ids}\n\ndata: {ended}"), Some(vec![20, 21])),
        (format!("data: {ids}\n\ndata: [DONE]"), Some(vec![20])),
        (format!("data: {ids}\n\ndata: [DONE]\n\n"), Some(vec![20])),
        (format!("data: {ids}\n\n"), None),
        (format!("data: {ids}\n\ndata: {}", ended.get(..20).unwrap()), None),
        ("data: [DONE]\n\n".to_owned(), None),
    ] {
        let bytes = crate::ends::chunked(&body);
        let fault_server = FaultServer::start_with(move |_| Some(bytes.clone())).await.unwrap();
        let (said, last) =
            read(model(&fault_server.url(), "m").submit(job(Sampling::default())).unwrap(), 1).await;
        let done = matches!(last, JobEvent::Done(_));
        assert_eq!(done.then(|| said[0].ids.clone()), expected, "{body}: {last:?}");
        assert_eq!(said[0].ended.is_some(), expected.is_some(), "{body}");
    }
}
