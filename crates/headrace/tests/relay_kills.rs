//! Three servers behind one gateway. One of the three is killed with SIGKILL under load now and then, and restarted. No
//! call fails before its answer has begun. Every other call ends complete or with an error that says so, and each is
//! charged once. 5 kills by default, `HEADRACE_KILLS=50` for more; `HEADRACE_SEED` replays their moments.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program, question, said};
use serde_json::{Value, json};

const KEY: &str = "sk-kill-test-0123456789abcdefghijklmn";
const UPSTREAMS: [&str; 3] = ["a", "b", "c"];
const CALLERS: u64 = 8;
const QUESTIONS: [&str; 4] =
    ["What is a token?", "What is prefill?", "What is the KV cache?", "Tell me a story."];
/// Long enough for a kill to hit some answers in the middle.
const TOKENS: u64 = 48;

fn from_env(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// One of the three servers, with an address that survives restarts.
struct Behind {
    dir: PathBuf,
    at: String,
    server: Option<Server>,
}

impl Behind {
    fn start(dir: PathBuf) -> Self {
        let mut behind = Self { dir, at: "127.0.0.1:0".to_owned(), server: None };
        behind.again();
        behind.at = behind.server.as_ref().unwrap().address().to_string();
        behind
    }

    fn again(&mut self) {
        let mut command = program();
        command.arg("up").env("HEADRACE_BOOTSTRAP_KEY", KEY);
        self.server = Some(Server::begin_at(&self.at, command, &self.dir, &[], KEY));
    }

    fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.signal("KILL");
        server.wait();
    }
}

fn configuration(behind: &[Behind], key_file: &Path) -> String {
    let mut text = "[server]\nmetrics_listen = \"127.0.0.1:0\"\n[reload]\nwatch = \"0s\"\n".to_owned();
    for (name, behind) in UPSTREAMS.iter().zip(behind) {
        write!(
            text,
            "[[upstreams]]\nname = {name:?}\nkind = \"headrace\"\nurl = \"http://{}\"\nkey_file = {key_file:?}\n\
             price = {{ input = \"1\", output = \"2\" }}\n",
            behind.at
        )
        .unwrap();
    }
    text + "[[models]]\nname = \"headrace-demo\"\n\
            targets = [\"a/headrace-demo\", \"b/headrace-demo\", \"c/headrace-demo\"]\n"
}

/// What the callers observed.
#[derive(Default)]
struct Seen {
    over: AtomicBool,
    whole: AtomicU64,
    broken: AtomicU64,
    moved: AtomicU64,
    charged: AtomicU64,
    /// Number of answers by each of the three servers.
    by: [AtomicU64; UPSTREAMS.len()],
    slowest_ms: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_upstreams_lose_no_call_and_no_money() {
    let kills = from_env("HEADRACE_KILLS", 5);
    let seed = from_env("HEADRACE_SEED", u64::from(std::process::id()) | 1 << 40);
    println!("seed {seed}: HEADRACE_SEED={seed} replays the moments");
    let root = tempfile::tempdir().unwrap();
    let mut behind: Vec<Behind> =
        UPSTREAMS.iter().map(|name| Behind::start(root.path().join(name))).collect();
    let key_file = root.path().join("key");
    std::fs::write(&key_file, KEY).unwrap();
    let front = root.path().join("front");
    std::fs::create_dir(&front).unwrap();
    let mut server = Server::serve(&front, &configuration(&behind, &key_file), Some(KEY));
    let before = balance(&server);

    let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let seen = Arc::new(Seen::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (http, url, seen) = (http.clone(), server.url.clone(), Arc::clone(&seen));
            tokio::spawn(async move { ask_on(&http, &url, caller, &seen).await })
        })
        .collect();
    let (mut random, mut slowest_back_ms) = (seed, 0);
    for _ in 0..kills {
        let unlucky = usize::try_from(next(&mut random) % UPSTREAMS.len() as u64).unwrap();
        tokio::time::sleep(Duration::from_millis(100 + next(&mut random) % 400)).await;
        behind[unlucky].kill();
        tokio::time::sleep(Duration::from_millis(next(&mut random) % 300)).await;
        tokio::task::block_in_place(|| behind[unlucky].again());
        // No other server is killed before this one serves again, so only one of the three is down at a time.
        let (before, since) = (seen.by[unlucky].load(Ordering::SeqCst), Instant::now());
        while seen.by[unlucky].load(Ordering::SeqCst) < before + 3 {
            assert!(since.elapsed() < PATIENCE, "{} gets no calls", UPSTREAMS[unlucky]);
            assert!(!callers.iter().any(|caller| caller.is_finished()), "a caller has given up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        slowest_back_ms = slowest_back_ms.max(since.elapsed().as_millis());
    }
    seen.over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }

    let count = |value: &AtomicU64| value.load(Ordering::SeqCst);
    println!(
        "{kills} kills: {} answers whole, {} ended by an error event, {} calls moved on; the slowest call took {} ms, and the \
         slowest of the killed served again {slowest_back_ms} ms after its start",
        count(&seen.whole),
        count(&seen.broken),
        count(&seen.moved),
        count(&seen.slowest_ms),
    );
    assert!(count(&seen.whole) > 2 * kills, "there was load");
    let spent = before - balance(&server);
    assert_eq!(spent, i128::from(count(&seen.charged)), "what left the account is what the traces say, once");
    server.stop();
    for mut behind in behind {
        behind.server.as_mut().unwrap().stop();
        assert_eq!(verified(&behind.dir)["totals"]["open_holds"], 0);
    }
    assert_eq!(verified(&front.join("data"))["totals"]["open_holds"], 0);
}

/// Makes one call after the other, until the test is over.
async fn ask_on(http: &reqwest::Client, url: &str, caller: u64, seen: &Seen) {
    let mut expected: [Option<String>; QUESTIONS.len()] = Default::default();
    for turn in 0.. {
        if seen.over.load(Ordering::SeqCst) {
            return;
        }
        let which = usize::try_from((caller + turn) % QUESTIONS.len() as u64).unwrap();
        let stream = turn % 3 != 2;
        let body = question(json!({
            "messages": [{ "role": "user", "content": QUESTIONS[which] }], "stream": stream, "temperature": 0,
            "max_tokens": TOKENS, "ignore_eos": true,
        }));
        let began = Instant::now();
        let call = http.post(format!("{url}/v1/chat/completions")).bearer_auth(KEY).json(&body);
        let mut answer = call.send().await.unwrap();
        let status = answer.status().as_u16();
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        let mut text = Vec::new();
        let cut = loop {
            match answer.chunk().await {
                Ok(Some(bytes)) => text.extend_from_slice(&bytes),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let text = String::from_utf8(text).unwrap();
        let took = u64::try_from(began.elapsed().as_millis()).unwrap();
        seen.slowest_ms.fetch_max(took, Ordering::SeqCst);
        let trace = trace(http, url, &id).await;
        let description = format!("caller {caller}, turn {turn}, {id}: {status} {cut:?} {text}\n{trace}");
        assert!(cut.is_none(), "an answer neither ends nor says why: {description}");
        assert_eq!(status, 200, "a call failed that had not begun: {description}");
        let charged = trace["cost"]["charged_nano_dollars"].as_u64().unwrap();
        seen.charged.fetch_add(charged, Ordering::SeqCst);
        let attempts = trace["attempts"].as_array().unwrap();
        seen.moved.fetch_add(u64::from(attempts.len() > 1), Ordering::SeqCst);
        let worker = attempts.last().unwrap()["worker"].as_str().unwrap();
        let by = UPSTREAMS.iter().position(|name| worker.split('/').next() == Some(name)).unwrap();
        let read = Read::of(&text, stream);
        if let Some(error) = read.error {
            seen.broken.fetch_add(1, Ordering::SeqCst);
            assert!(stream && !read.done, "{description}");
            assert_eq!(error["code"], "upstream_failed", "{description}");
            assert!(charged <= trace["cost"]["held_nano_dollars"].as_u64().unwrap(), "{description}");
            continue;
        }
        seen.whole.fetch_add(1, Ordering::SeqCst);
        seen.by[by].fetch_add(1, Ordering::SeqCst);
        assert!(read.done, "{description}");
        let expected = expected[which].get_or_insert_with(|| read.text.clone());
        assert_eq!(read.text, *expected, "the same question has the same answer: {description}");
        if let Some(prompt) = read.prompt {
            assert_eq!(charged, price(prompt, TOKENS), "{description}");
        }
    }
}

/// The price of a call, in nano-dollars.
fn price(prompt: u64, output: u64) -> u64 {
    prompt * 1000 + output * 2000
}

/// An answer as its client reads it.
#[derive(Default)]
struct Read {
    text: String,
    error: Option<Value>,
    done: bool,
    prompt: Option<u64>,
}

impl Read {
    fn of(body: &str, stream: bool) -> Self {
        let mut read = Self { done: !stream, ..Self::default() };
        let datas: Vec<&str> = match stream {
            true => body.lines().filter_map(|line| line.strip_prefix("data: ")).collect(),
            false => vec![body],
        };
        for data in datas {
            if data == "[DONE]" {
                read.done = true;
                continue;
            }
            let value: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
            let text = ["/choices/0/delta/content", "/choices/0/message/content"];
            read.text.extend(text.iter().filter_map(|at| value.pointer(at)?.as_str()));
            read.error = value.get("error").cloned().or(read.error);
            read.prompt = value.pointer("/usage/prompt_tokens").and_then(Value::as_u64).or(read.prompt);
        }
        read
    }
}

/// The trace of a call, which is written after its answer.
async fn trace(http: &reqwest::Client, url: &str, id: &str) -> Value {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let sent = http.get(format!("{url}/v1/requests/{id}")).bearer_auth(KEY).send().await.unwrap();
        if sent.status() == 200 {
            return sent.json().await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("there is no trace of {id}");
}

/// The caller's balance, in nano-dollars.
fn balance(server: &Server) -> i128 {
    let shown: Value = serde_json::from_str(&server.ok(&["credit", "show", "--json"])).unwrap();
    let row = &shown["value"][0];
    assert_eq!(row["held"], 0, "{shown}");
    i128::from(row["balance"].as_i64().unwrap_or_else(|| panic!("{shown}")))
}

fn verified(dir: &Path) -> Value {
    let output = program().args(["ledger", "verify", "--json", "--data-dir"]).arg(dir).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}
