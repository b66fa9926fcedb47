//! Judges before a server that answers as a table says.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;

use crate::UpstreamKind;

use super::*;

/// A server that answers one request. Returns its address, and where the request arrives.
fn server(answer: String) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
        let is_whole = |request: &[u8]| {
            let text = String::from_utf8_lossy(request).into_owned();
            let (head, body) = text.split_once("\r\n\r\n")?;
            let length = head
                .lines()
                .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            (Some(body.len()) >= length).then_some(text)
        };
        let request = loop {
            let read = peer.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..read]);
            if let Some(text) = is_whole(&request) {
                break text;
            }
        };
        sender.send(request).unwrap();
        let _ = peer.write_all(answer.as_bytes());
    });
    (address, receiver)
}

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn spec(url: &str, api: JudgeApi) -> JudgeSpec {
    let mut server = UpstreamSpec::new("guard", UpstreamKind::OpenAi, url);
    server.key = Some("sk-judge".to_owned().into());
    JudgeSpec {
        server,
        api,
        model: (api == JudgeApi::Chat).then(|| "guard-1".to_owned()),
        question: None,
        categories: Vec::new(),
        threshold_thousandths: None,
        deadline: Duration::from_secs(5),
        without_verdict: WithoutVerdict::Block,
        prices: None,
    }
}

async fn verdict(
    answer: String,
    change: impl FnOnce(JudgeSpec) -> JudgeSpec,
    api: JudgeApi,
) -> (Result<bool, String>, String) {
    let (url, request) = server(answer);
    let judge = HttpJudge::new(change(spec(&url, api))).unwrap();
    let verdict = judge.ask("the text".to_owned()).await.map_err(|failure| failure.why);
    let verdict = verdict.map(|answer| answer.is_unfit);
    (verdict, request.recv().unwrap())
}

#[tokio::test]
async fn a_moderation_endpoint_decides_by_its_flag_its_categories_or_its_scores() {
    let body = json!({"results": [
        {"flagged": false, "categories": {"hate": false}, "category_scores": {"hate": 0.01}},
        {"flagged": true, "categories": {"hate": false, "violence": true}, "category_scores": {"hate": 0.2, "violence": 0.91}},
    ]})
    .to_string();
    let categories = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    for (names, threshold, expected) in [
        (vec![], None, true),
        (categories(&["violence"]), None, true),
        (categories(&["hate"]), None, false),
        (categories(&["hate"]), Some(200), true),
        (categories(&["hate"]), Some(201), false),
        (vec![], Some(900), true),
        (vec![], Some(920), false),
    ] {
        let change = |spec| JudgeSpec { categories: names.clone(), threshold_thousandths: threshold, ..spec };
        let (verdict, request) = verdict(http("200 OK", &body), change, JudgeApi::Moderations).await;
        assert_eq!(verdict, Ok(expected), "{names:?} {threshold:?}");
        assert!(
            request.starts_with("POST /v1/moderations ")
                && request.contains("authorization: Bearer sk-judge"),
            "{request}"
        );
        assert!(request.ends_with(r#"{"input":"the text"}"#), "{request}");
    }
}

#[tokio::test]
async fn a_chat_model_decides_by_its_first_word_or_by_json() {
    for (content, expected) in [
        ("safe", Some(false)),
        (" Unsafe\nS1,S2", Some(true)),
        ("**No**, it is fine.", Some(false)),
        (r#"{"flagged": true}"#, Some(true)),
        (r#"{"flagged": false, "why": "unsafe"}"#, Some(false)),
        (r#"{"flagged": "yes"}"#, None),
        ("I cannot say", None),
        ("", None),
    ] {
        let body = json!({"choices": [{"message": {"role": "assistant", "content": content}}]}).to_string();
        let (verdict, request) = verdict(http("200 OK", &body), |spec| spec, JudgeApi::Chat).await;
        assert_eq!(verdict.clone().ok(), expected, "{content:?}: {verdict:?}");
        assert!(
            request.starts_with("POST /v1/chat/completions ") && request.contains(r#""model":"guard-1""#),
            "{request}"
        );
    }
}

#[tokio::test]
async fn an_answer_costs_what_its_tokens_cost() {
    let price = |dollars: &str| {
        NanoDollarsPerMillion::new(NanoDollars::from_dollars(dollars).unwrap().get()).unwrap()
    };
    let prices = Some(JudgePrices { input: price("0.20"), output: price("1.00") });
    for (usage, prices, expected) in [
        (json!({"prompt_tokens": 1_000, "completion_tokens": 10}), prices, Some(210_000)),
        (json!({"prompt_tokens": 1_000}), prices, Some(200_000)),
        (json!({"completion_tokens": 10}), prices, None),
        (json!(null), prices, None),
        (json!({"prompt_tokens": 1_000, "completion_tokens": 10}), None, None),
    ] {
        let body = json!({"choices": [{"message": {"content": "safe"}}], "usage": usage}).to_string();
        let (url, _request) = server(http("200 OK", &body));
        let judge = HttpJudge::new(JudgeSpec { prices, ..spec(&url, JudgeApi::Chat) }).unwrap();
        let answer = judge.ask("the text".to_owned()).await.unwrap();
        assert_eq!(answer, JudgeAnswer { is_unfit: false, cost: expected.map(NanoDollars::new) }, "{body}");
    }
}

#[tokio::test]
async fn what_is_no_verdict_is_a_failure_without_the_text() {
    for answer in [
        http("500 Internal Server Error", "the text"),
        http("302 Found", ""),
        http("200 OK", "the text"),
        http("200 OK", "{}"),
        http("200 OK", r#"{"results": []}"#),
        http("200 OK", r#"{"results": [{"flagged": "the text"}]}"#),
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_owned(),
        String::new(),
    ] {
        let (verdict, _) = verdict(answer.clone(), |spec| spec, JudgeApi::Moderations).await;
        let why = verdict.expect_err(&answer);
        assert!(!why.contains("the text") && !why.is_empty(), "{why}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let judge = HttpJudge::new(spec(&format!("http://{closed}"), JudgeApi::Moderations)).unwrap();
    assert_eq!(judge.ask("x".to_owned()).await.unwrap_err().why, "the judge cannot be reached");
    assert!(HttpJudge::new(spec("ftp://x", JudgeApi::Chat)).is_err());
}
