//! Every fault that an upstream can have, through the whole program: clients of each dialect and upstreams of each,
//! streamed and whole. A bad answer never looks like a good one, and the client learns what happened. The ledger
//! balances, and the next call to the same upstream is served.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program, said};
use headrace_fault_server::{Fault, FaultServer, INPUT_TOKENS, OUTPUT_TOKENS, TEXT};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const KEY: &str = "sk-relay-test-0123456789abcdefghijklm";
/// The key that upstreams know this gateway by. It must appear nowhere else.
const SECRET: &str = "sk-canary-of-the-upstream-0123456789";
/// Maximum number of upstreams that are tested at once.
const AT_ONCE: usize = 16;

/// The kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Chat,
    Completions,
    Messages,
}

/// The kind of upstream that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    OpenAi,
    Anthropic,
}

const PAIRS: [(Client, Behind); 5] = [
    (Client::Chat, Behind::OpenAi),
    (Client::Messages, Behind::OpenAi),
    (Client::Completions, Behind::OpenAi),
    (Client::Chat, Behind::Anthropic),
    (Client::Messages, Behind::Anthropic),
];

/// How an answer ended, as its client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ended {
    Well,
    /// An error body, or an error event after the delivered part.
    Reported(String),
    /// Neither a proper end nor an error.
    Cut,
}

/// What a client received.
#[derive(Debug)]
struct Got {
    status: u16,
    request: String,
    retry_after: Option<u64>,
    text: String,
    finish: Option<String>,
    ended: Ended,
    raw: String,
}

/// The required outcome of a call.
#[derive(Debug, Clone, Copy)]
enum Must {
    /// A good answer, with the usage that the upstream reports.
    Answer,
    /// A good answer with this many output tokens, because its usage is estimated or part of the fault.
    AnswerOf(u64),
    /// An error instead of an answer, which costs nothing.
    Refuse(u16, &'static str),
    /// The first words are delivered as soon as they arrive, so two outcomes are valid. An error instead of an answer
    /// costs nothing. An error after the delivered part charges that part.
    Break(u16, &'static str),
}

const FAILED: Must = Must::Refuse(502, "upstream_failed");
const LATE: Must = Must::Refuse(504, "upstream_timeout");
const BUSY: Must = Must::Refuse(503, "upstream_overloaded");
const BROKEN: Must = Must::Break(502, "upstream_failed");
const TOO_LARGE: Must = Must::Refuse(502, "upstream_answer_too_large");
const CUT: Must = Must::Break(502, "upstream_answer_too_large");

/// The outcome of a whole answer and of a stream, for each fault.
fn must(fault: Fault, behind: Behind) -> (Must, Must) {
    use Must::{Answer, AnswerOf, Break, Refuse};
    let both = |must: Must| (must, must);
    match fault {
        Fault::Good
        | Fault::Slow
        | Fault::AfterDone
        | Fault::CumulativeUsage
        | Fault::NoDone
        | Fault::Crlf
        | Fault::Cr
        | Fault::Bom
        | Fault::Comments
        | Fault::Bytewise
        | Fault::SlowHead
        | Fault::AlwaysWhole => both(Answer),
        Fault::ErrorInside200 if behind == Behind::Anthropic => (FAILED, Break(503, "upstream_overloaded")),
        Fault::ErrorInside200
        | Fault::Cut
        | Fault::Reset
        | Fault::CutClean
        | Fault::Short
        | Fault::BadChunk
        | Fault::NotUtf8 => (FAILED, BROKEN),
        Fault::Stall => (LATE, Break(504, "upstream_timeout")),
        // The server writes the end itself, and the answer is complete.
        Fault::NoFinish => both(Answer),
        Fault::NoEnd => (AnswerOf(3), BROKEN),
        Fault::NoUsage => (AnswerOf(3), AnswerOf(5)),
        // The larger of two reports counts.
        Fault::DoubledUsage => (Answer, AnswerOf(5)),
        Fault::TenMbLine => (Answer, CUT),
        Fault::EndlessBody => (TOO_LARGE, CUT),
        Fault::EndlessHeaders | Fault::HugeHeaders => both(TOO_LARGE),
        Fault::AlwaysStream => (FAILED, Answer),
        Fault::EndlessComments | Fault::DrippingHeaders | Fault::EndlessInterim | Fault::NoHead => both(LATE),
        Fault::Html
        | Fault::HtmlInDisguise
        | Fault::Empty
        | Fault::NoContent
        | Fault::Redirect
        | Fault::CloseBeforeHead
        | Fault::ResetBeforeHead
        | Fault::ServerError
        | Fault::Gzip
        | Fault::NotHttp => both(FAILED),
        // The second of two calls is answered.
        Fault::Flaky => (FAILED, Answer),
        // The second of two calls is no longer sent.
        Fault::RateLimited | Fault::LimitHeaders => (BUSY, Refuse(503, "upstream_overloaded")),
        Fault::EndlessError => both(BUSY),
        Fault::Unauthorized | Fault::NotFound => both(Refuse(502, "upstream_misconfigured")),
        Fault::TooLong => both(Refuse(400, "context_length_exceeded")),
    }
}

/// Returns whether a limit of time ends the answer. All other faults get limits that no machine reaches, so that only
/// the fault itself can end their answers.
fn ends_by_time(fault: Fault) -> bool {
    matches!(
        fault,
        Fault::Stall
            | Fault::EndlessComments
            | Fault::DrippingHeaders
            | Fault::EndlessInterim
            | Fault::NoHead
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_is_told_and_paid_for_as_it_should_be() {
    // One upstream per pair, because the flaky upstream counts its calls.
    let mut fault_server = Vec::new();
    for _ in PAIRS {
        fault_server.push(FaultServer::start().await.unwrap());
    }
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::serve(root.path(), &configuration(root.path(), &fault_server), Some(KEY));
    let before = balance(&server);
    let world = Arc::new(World {
        http: reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap(),
        url: server.url.clone(),
        places: Semaphore::new(AT_ONCE),
    });
    let rows = Fault::ALL.iter().flat_map(|fault| PAIRS.map(|(client, behind)| (*fault, client, behind)));
    let played: Vec<_> = rows
        .map(|(fault, client, behind)| {
            let world = Arc::clone(&world);
            tokio::spawn(async move { world.play(fault, client, behind).await })
        })
        .collect();
    let (mut charged, mut wrong) = (0, String::new());
    for row in played {
        let row = row.await.unwrap();
        charged += row.charged;
        wrong += &row.wrong;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(before - balance(&server), charged, "what left the account is what the traces say");
    for told in [server.ok(&["upstreams"]), server.ok(&["trace", "--last"])] {
        assert!(!told.contains(SECRET) && !told.contains("token=secret"), "{told}");
    }
    server.stop();
    let output =
        program().args(["ledger", "verify", "--json", "--data-dir"]).arg(&server.dir).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let verified: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(verified["totals"]["open_holds"], 0, "{verified}");
}

struct World {
    http: reqwest::Client,
    url: String,
    places: Semaphore,
}

/// The result of one fault in one pair.
#[derive(Default)]
struct Row {
    charged: i128,
    wrong: String,
}

impl World {
    /// A whole answer, then a stream, each followed by a call to another model of the same upstream.
    async fn play(&self, fault: Fault, client: Client, behind: Behind) -> Row {
        let _place = self.places.acquire().await.unwrap();
        let (whole, streamed) = must(fault, behind);
        let mut row = Row::default();
        for (stream, must) in [(false, whole), (true, streamed)] {
            for (model, must) in
                [(name(fault, client, behind), must), (next(fault, client, behind), Must::Answer)]
            {
                let got = self.ask(client, &model, stream).await;
                let trace = self.trace(&got.request).await;
                row.charged += i128::from(trace["cost"]["charged_nano_dollars"].as_u64().unwrap());
                for fault in faults_of(&got, &trace, must) {
                    writeln!(row.wrong, "{client:?} {model} streamed {stream}: {fault}: {got:?} {trace}")
                        .unwrap();
                }
            }
        }
        row
    }
}

/// The parts of a call that differ from the required outcome.
fn faults_of(got: &Got, trace: &Value, must: Must) -> Vec<String> {
    let mut faults = Vec::new();
    let mut check = |what: &str, good: bool| {
        if !good {
            faults.push(format!("{what}, with {must:?}"));
        }
    };
    let charged = trace["cost"]["charged_nano_dollars"].as_u64().unwrap();
    let used = |field: &str| trace["usage"][field].as_u64().unwrap();
    let (input, output) = (used("prompt_tokens"), used("completion_tokens"));
    check("a secret is told", !got.raw.contains(SECRET) && !got.raw.contains("token=secret"));
    check("a secret is traced", !trace.to_string().contains(SECRET));
    match must {
        Must::Answer | Must::AnswerOf(_) => {
            check("no answer", got.status == 200 && got.ended == Ended::Well && got.text == TEXT);
            check("the outcome", trace["outcome"]["kind"] == "completed");
            check("the bill", charged == price(input, output));
        }
        Must::Refuse(status, code) => {
            check("no refusal", got.status == status && got.ended == Ended::Reported(code.to_owned()));
            check("text of a refusal", got.text.is_empty());
        }
        Must::Break(status, code) => {
            check("the status", got.status == status || got.status == 200);
            check("a good end of a bad answer", got.ended == Ended::Reported(code.to_owned()));
            check("other text", TEXT.starts_with(&got.text));
            check("the outcome", trace["outcome"]["kind"] == "failed");
            // The operator bears the cost of what was not delivered.
            check("the bill", charged <= price(input, output));
        }
    }
    let reported = |source: &str| trace["upstream"]["usage"] == source;
    match must {
        Must::Answer => {
            let told = (u64::from(INPUT_TOKENS), u64::from(OUTPUT_TOKENS));
            check("the usage", reported("reported") && (input, output) == told);
        }
        Must::AnswerOf(tokens) => check("the usage", output == tokens),
        _ if got.status == 200 => {
            check("the usage", reported("estimated") && (charged > 0) != got.text.is_empty())
        }
        _ => check("a charge for nothing", charged == 0),
    }
    if let Must::Refuse(503, _) = must {
        check("no word on when", got.retry_after.is_some_and(|seconds| seconds >= 1));
    }
    faults
}

/// The price of a call, in nano-dollars.
fn price(input: u64, output: u64) -> u64 {
    input * 1000 + output * 2000
}

/// The caller's balance, in nano-dollars.
fn balance(server: &Server) -> i128 {
    let shown: Value = serde_json::from_str(&server.ok(&["credit", "show", "--json"])).unwrap();
    let row = &shown["value"][0];
    assert_eq!(row["held"], 0, "{shown}");
    i128::from(row["balance"].as_i64().unwrap_or_else(|| panic!("{shown}")))
}

fn name(fault: Fault, client: Client, behind: Behind) -> String {
    let group = match (client, behind) {
        (Client::Chat, Behind::OpenAi) => "co",
        (Client::Messages, Behind::OpenAi) => "mo",
        (Client::Completions, _) => "to",
        (Client::Chat, Behind::Anthropic) => "ca",
        (Client::Messages, Behind::Anthropic) => "ma",
    };
    format!("{group}.{}", fault.name())
}

fn next(fault: Fault, client: Client, behind: Behind) -> String {
    format!("{}.next", name(fault, client, behind))
}

/// One upstream per fault and pair, so that no breaker affects another row. Each has a model with the fault and a good
/// one.
fn configuration(root: &Path, fault_server: &[FaultServer]) -> String {
    let key_file = root.join("upstream-key");
    std::fs::write(&key_file, SECRET).unwrap();
    let mut text = "[server]\nmetrics_listen = \"127.0.0.1:0\"\n[reload]\nwatch = \"0s\"\n".to_owned();
    let price = "{ input = \"1\", output = \"2\" }";
    for &fault in Fault::ALL {
        let times = match ends_by_time(fault) {
            true => "head_timeout = \"1500ms\"\nwhole_timeout = \"1500ms\"\nidle_timeout = \"700ms\"",
            false => "head_timeout = \"50s\"\nwhole_timeout = \"50s\"\nidle_timeout = \"50s\"",
        };
        for ((client, behind), fault_server) in PAIRS.into_iter().zip(fault_server) {
            let url = fault_server.url();
            let (upstream, next) = (name(fault, client, behind), next(fault, client, behind));
            let kind = if behind == Behind::OpenAi { "openai" } else { "anthropic" };
            write!(
                text,
                "[[upstreams]]\nname = {upstream:?}\nkind = {kind:?}\nurl = {url:?}\nkey_file = {key_file:?}\n\
                 price = {price}\nconnect_timeout = \"10s\"\n{times}\n\
                 [[models]]\nname = {upstream:?}\ntargets = [\"{upstream}/{}\"]\n\
                 [[models]]\nname = {next:?}\ntargets = [\"{upstream}/good\"]\n",
                fault.name()
            )
            .unwrap();
        }
    }
    text
}

impl World {
    /// Makes a call and reads its answer to the end.
    async fn ask(&self, client: Client, model: &str, stream: bool) -> Got {
        let mut body = json!({ "model": model, "max_tokens": 16, "stream": stream });
        let fields = body.as_object_mut().unwrap();
        match client {
            Client::Completions => fields.insert("prompt".to_owned(), json!("Say hello.")),
            _ => fields.insert("messages".to_owned(), json!([{ "role": "user", "content": "Say hello." }])),
        };
        let path = match client {
            Client::Chat => "/v1/chat/completions",
            Client::Completions => "/v1/completions",
            Client::Messages => "/v1/messages",
        };
        let call = self.http.post(format!("{}{path}", self.url)).bearer_auth(KEY);
        let mut response = call.json(&body).send().await.unwrap();
        let header =
            |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let request = header("x-request-id").or_else(|| header("request-id")).unwrap();
        let retry_after = header("retry-after").map(|seconds| seconds.parse().unwrap());
        let (status, mut raw) = (response.status().as_u16(), Vec::new());
        while let Ok(Some(bytes)) = response.chunk().await {
            raw.extend_from_slice(&bytes);
        }
        let raw = String::from_utf8(raw).unwrap();
        let mut got =
            Got { status, request, retry_after, text: String::new(), finish: None, ended: Ended::Cut, raw };
        let raw = std::mem::take(&mut got.raw);
        let datas: Vec<&str> = match stream && status == 200 {
            true => {
                raw.split(['\r', '\n']).filter_map(|line| line.strip_prefix("data:")).map(str::trim).collect()
            }
            false => vec![raw.trim()],
        };
        for data in datas {
            got.take(data, stream);
        }
        got.raw = raw;
        got
    }

    /// The trace of a call, which is written after its answer.
    async fn trace(&self, request: &str) -> Value {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let call = self.http.get(format!("{}/v1/requests/{request}", self.url)).bearer_auth(KEY);
            let answer = call.send().await.unwrap();
            if answer.status() == 200 {
                return answer.json().await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("there is no trace of {request}");
    }
}

impl Got {
    fn take(&mut self, data: &str, stream: bool) {
        if data == "[DONE]" {
            self.ended = Ended::Well;
            return;
        }
        let Ok(value) = serde_json::from_str::<Value>(data) else { return };
        if let Some(error) = value.get("error") {
            self.ended = Ended::Reported(error["code"].as_str().unwrap_or("no code").to_owned());
            return;
        }
        let text = [
            "/choices/0/delta/content",
            "/choices/0/message/content",
            "/choices/0/text",
            "/delta/text",
            "/content/0/text",
        ];
        self.text.extend(text.iter().filter_map(|at| value.pointer(at)?.as_str()));
        let finish = ["/choices/0/finish_reason", "/delta/stop_reason", "/stop_reason"];
        let finish = finish.iter().find_map(|at| value.pointer(at)?.as_str());
        self.finish = finish.map(str::to_owned).or(self.finish.take());
        if value["type"] == "message_stop" || !stream {
            self.ended = Ended::Well;
        }
    }
}
