//! Receipts, delivered alerts and invoices of the program from outside.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use common::{PATIENCE, Server, program, question, run, said};
use headrace_jwt::{TextKeySet, WebhookSecret};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const KEY: &str = "sk-billing-test-0123456789abcdefghijklmno";
const MODEL: &str = "[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n";
const RECEIPT: &str = "headrace-receipt+jwt";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A seeded sequence of random numbers.
struct SeededNumbers(u64);

impl SeededNumbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((x ^ (x >> 31)) % bound as u64).unwrap()
    }
}

/// The receipt with another byte at this position.
fn changed(text: &str, at: usize) -> String {
    let other = if text.as_bytes()[at] == b'A' { 'B' } else { 'A' };
    format!("{}{other}{}", &text[..at], &text[at + 1..])
}

async fn published(server: &Server) -> (Vec<u8>, TextKeySet) {
    let (status, document) = server.get("/.well-known/headrace-receipts.json").await;
    assert_eq!(status, 200, "{document}");
    let keys = TextKeySet::parse(document.as_bytes()).unwrap();
    (document.into_bytes(), keys)
}

async fn receipt(server: &Server, id: &str) -> String {
    let (status, body) = server.get(&format!("/v1/receipts/{id}")).await;
    assert_eq!(status, 200, "{id}: {body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    body["jws"].as_str().unwrap().to_owned()
}

/// Makes a call, and returns its id.
async fn call(server: &Server) -> String {
    let answer = server.send(&server.key, &question(json!({ "max_tokens": 1 }))).await;
    assert_eq!(answer.status().as_u16(), 200);
    answer.headers()["x-request-id"].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_receipts_verify_and_none_with_a_changed_byte() {
    const CALLS: usize = 1_000;
    const SEED: u64 = 11;
    println!("seed {SEED}");
    let dir = tempfile::tempdir().unwrap();
    let server = Arc::new(Server::up(dir.path(), &["--admin-listen", "off"]));
    let (_, keys) = published(&server).await;
    let slots = Arc::new(Semaphore::new(8));
    let made = (0..CALLS).map(|_| {
        let (server, slots) = (Arc::clone(&server), Arc::clone(&slots));
        tokio::spawn(async move {
            let _slot = slots.acquire_owned().await.unwrap();
            let id = call(&server).await;
            let text = receipt(&server, &id).await;
            (id, text)
        })
    });
    let mut random = SeededNumbers(SEED);
    let (mut verified, mut charged, mut positions) = (0, 0_i64, std::collections::BTreeSet::new());
    for (at, made) in made.collect::<Vec<_>>().into_iter().enumerate() {
        let (id, text) = made.await.unwrap();
        let (content, _) = keys.verify(RECEIPT, &text).unwrap_or_else(|why| panic!("{id}: {why}"));
        verified += 1;
        assert_eq!(content["request"], id.as_str());
        charged += content["charged"]["nano_dollars"].as_str().unwrap().parse::<i64>().unwrap();
        positions.insert(content["journal"]["sequence"].as_u64().unwrap());
        let places: Vec<usize> = match at {
            0 => (0..text.len()).collect(),
            _ => (0..3).map(|_| random.below(text.len())).collect(),
        };
        for place in places {
            assert!(keys.verify(RECEIPT, &changed(&text, place)).is_err(), "{id}: byte {place}");
        }
    }
    assert_eq!(verified, CALLS);
    let totals: Value = serde_json::from_str(&server.ok(&["usage", "--json"])).unwrap();
    let of_usage: i64 = totals["total"]["charged"]["nano_dollars"].as_str().unwrap().parse().unwrap();
    assert_eq!(charged, of_usage, "receipts sum to the ledger");
    println!("{verified} receipts, {} rows, ${}", positions.len(), charged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_are_made_for_their_project_verified_offline_and_outlive_a_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::up(dir.path(), &[]);
    let id = call(&server).await;
    let first = receipt(&server, &id).await;
    assert_eq!(receipt(&server, &id).await, first, "the same call has the same receipt");
    let (document, keys) = published(&server).await;
    let (content, _) = keys.verify(RECEIPT, &first).unwrap();
    let (_, trace) = server.get(&format!("/v1/requests/{id}")).await;
    let trace: Value = serde_json::from_str(&trace).unwrap();
    for (of_receipt, of_trace) in [("/org", "/org"), ("/project", "/project"), ("/key", "/key")] {
        let content = Value::Object(content.clone());
        assert_eq!(content.pointer(of_receipt), trace.pointer(of_trace), "{of_receipt}");
    }
    assert_eq!(content["charged"]["nano_dollars"], trace["cost"]["charged_nano_dollars"].to_string());
    assert_eq!(content["model"]["served"], "headrace-demo");

    // Another project's key, a missing id and a refused call.
    server.ok(&["orgs", "create", "other"]);
    server.ok(&["projects", "create", "theirs", "--org", "other"]);
    let other = server.ok(&["keys", "create", "--name", "x", "--project", "theirs"]);
    let other = other.lines().next().unwrap().to_owned();
    let own_key = std::mem::replace(&mut server.key, other);
    let (status, body) = server.get(&format!("/v1/receipts/{id}")).await;
    assert!(status == 404 && body.contains("request_not_found"), "{body}");
    server.key = own_key;
    let refused = server.send(&server.key, &question(json!({ "max_tokens": 0 }))).await;
    assert_eq!(refused.status().as_u16(), 400);
    let refused = refused.headers()["x-request-id"].to_str().unwrap().to_owned();
    let (status, body) = server.get(&format!("/v1/receipts/{refused}")).await;
    assert!(status == 404 && body.contains("receipt_not_found"), "{body}");

    // By the command, and verified by a file of keys, without the server.
    let (file, key_file) = (dir.path().join("receipt.json"), dir.path().join("keys.json"));
    std::fs::write(&file, server.ok(&["receipt", &id])).unwrap();
    std::fs::write(&key_file, &document).unwrap();
    let by_url = server.ok(&["receipt", "verify", file.to_str().unwrap(), "--keys", &server.url]);
    assert!(by_url.contains("valid: signed with the key"), "{by_url}");
    let rotated = server.ok(&["receipt", "rotate"]);
    assert!(rotated.contains("signs receipts from now on"), "{rotated}");
    let second = receipt(&server, &id).await;
    assert_ne!(second, first);
    assert!(keys.verify(RECEIPT, &second).is_err(), "the old set does not have the new key");
    server.stop();
    // After a restart, the set has both keys.
    let server = Server::up_with_key_kept(dir.path(), &server.key);
    let (_, both) = published(&server).await;
    assert_eq!(both.keys().len(), 2);
    for text in [&first, &second] {
        both.verify(RECEIPT, text).unwrap();
    }
    assert_eq!(both.keys()[1], keys.keys()[0]);
    let audit = server.ok(&["audit"]);
    assert!(audit.contains("receipt_key.rotate"), "{audit}");
    drop(server);
    let verify = |file: &str| run(&["receipt", "verify", file, "--keys", key_file.to_str().unwrap()]);
    let good = verify(file.to_str().unwrap());
    assert!(good.status.success() && said(&good).contains(&id), "{}", said(&good));
    let text: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let bad = dir.path().join("bad.json");
    std::fs::write(&bad, changed(text["jws"].as_str().unwrap(), 200)).unwrap();
    let bad = verify(bad.to_str().unwrap());
    assert!(bad.status.code() == Some(1) && said(&bad).contains("not a valid receipt"), "{}", said(&bad));
}

/// The hash is of the bytes that a client reads, and the command compares them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_has_the_hash_of_the_answer_that_the_client_got() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::up(dir.path(), &["--admin-listen", "off"]);
    let (file, answer_file) = (dir.path().join("receipt.json"), dir.path().join("answer"));
    let verify = |answer: &str| {
        let file = file.to_str().unwrap();
        server.command(&["receipt", "verify", file, "--keys", &server.url, "--answer", answer])
    };
    for more in [json!({ "max_tokens": 4 }), json!({ "max_tokens": 4, "stream": true })] {
        let answer = server.send(&server.key, &question(more)).await;
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        let body = answer.bytes().await.unwrap();
        std::fs::write(&file, receipt(&server, &id).await).unwrap();
        std::fs::write(&answer_file, &body).unwrap();
        let same = verify(answer_file.to_str().unwrap());
        let length = format!("{} bytes", body.len());
        assert!(same.status.success() && said(&same).contains(&length), "{}", said(&same));
        std::fs::write(&answer_file, &body[1..]).unwrap();
        let other = verify(answer_file.to_str().unwrap());
        let shorter = format!("{} bytes", body.len() - 1);
        assert_eq!(other.status.code(), Some(1));
        for part in ["not the answer that was sent", &length, &shorter] {
            assert!(said(&other).contains(part), "{}", said(&other));
        }
    }
    let missing = verify(dir.path().join("none").to_str().unwrap());
    assert!(!missing.status.success() && said(&missing).contains("none"), "{}", said(&missing));
    drop(server);
    let off = Server::up(dir.path(), &["--set", "receipts.answer_hash=false", "--admin-listen", "off"]);
    let id = call(&off).await;
    std::fs::write(&file, receipt(&off, &id).await).unwrap();
    let none = off.command(&[
        "receipt",
        "verify",
        file.to_str().unwrap(),
        "--answer",
        answer_file.to_str().unwrap(),
    ]);
    assert!(!none.status.success() && said(&none).contains("no hash of the answer"), "{}", said(&none));
}

/// A webhook that an endpoint received.
struct ReceivedEvent {
    id: String,
    timestamp: u64,
    signature: String,
    body: String,
}

/// An endpoint that answers with these statuses, and then with 204.
fn endpoint(statuses: Vec<u16>) -> (String, Receiver<ReceivedEvent>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut statuses = statuses.into_iter();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut text, mut chunk) = (String::new(), [0; 4096]);
            let whole = |text: &str| {
                let (head, body) = text.split_once("\r\n\r\n")?;
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
                (body.len() >= length.parse().unwrap()).then(|| (head.to_owned(), body.to_owned()))
            };
            let (head, body) = loop {
                let count = stream.read(&mut chunk).unwrap();
                assert!(count > 0, "{text}");
                text.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
                if let Some(whole) = whole(&text) {
                    break whole;
                }
            };
            let header = |name: &str| {
                let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
                line.unwrap_or_else(|| panic!("{name}: {head}")).to_owned()
            };
            let status = statuses.next().unwrap_or(204);
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            let (id, signature) = (header("webhook-id"), header("webhook-signature"));
            let timestamp = header("webhook-timestamp").parse().unwrap();
            if send.send(ReceivedEvent { id, timestamp, signature, body }).is_err() {
                return;
            }
        }
    });
    (host, receive)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_reaches_its_endpoint_with_one_id_over_kills() {
    let root = tempfile::tempdir().unwrap();
    let (host, received) = endpoint(vec![204, 500]);
    let secret = root.path().join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    let settings = format!(
        "{MODEL}[[budgets]]\nname = \"watch\"\neach = \"project\"\nmeasure = \"tokens\"\nlimit = 1000\nsoft = true\n\
         alerts = [1, 10]\n[[webhooks]]\nname = \"ops\"\nurl = \"{host}/hook\"\nhosts = [\"{host}\"]\n\
         secret_file = \"{}\"\n",
        secret.display()
    );
    let mut server = Server::serve(root.path(), &settings, Some(KEY));
    server.key = KEY.to_owned();
    let tested = server.ok(&["webhooks", "test", "ops"]);
    assert!(tested.contains("status 204"), "{tested}");
    let test = received.recv_timeout(PATIENCE).unwrap();
    let key = WebhookSecret::parse(&SECRET.into()).unwrap();
    assert_eq!(test.signature, key.sign(&test.id, test.timestamp, &test.body));
    assert!(test.body.contains("webhook.test"), "{}", test.body);

    call(&server).await;
    let first = received.recv_timeout(PATIENCE).unwrap();
    // The endpoint was down; the server is killed before the next try.
    server.signal("KILL");
    let _ = server.wait();
    drop(server);
    let server = Server::serve(root.path(), &settings, None);
    let second = received.recv_timeout(PATIENCE).unwrap();
    assert_eq!((&second.id, &second.body), (&first.id, &first.body));
    assert_eq!(second.signature, key.sign(&second.id, second.timestamp, &second.body));
    let body: Value = serde_json::from_str(&second.body).unwrap();
    assert_eq!(
        (body["type"].as_str(), body["data"]["budget"].as_str()),
        (Some("budget.alert"), Some("watch"))
    );
    assert_eq!(
        (body["data"]["percent"].as_u64(), body["data"]["measure"].as_str()),
        (Some(1), Some("tokens"))
    );
    let shown = loop {
        let shown = server.ok(&["webhooks", "deliveries"]);
        if shown.contains("delivered") {
            break shown;
        }
    };
    assert!(shown.contains(&first.id) && shown.contains("status 204"), "{shown}");
    let listed = server.ok(&["webhooks", "list"]);
    assert!(listed.contains("ops") && listed.contains("active") && !listed.contains("/hook"), "{listed}");
    let unknown = server.command(&["webhooks", "test", "none"]);
    assert!(!unknown.status.success() && said(&unknown).contains("no webhook `none`"), "{}", said(&unknown));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invoices_are_drafted_numbered_exported_and_kept() {
    let root = tempfile::tempdir().unwrap();
    let settings = format!(
        "{MODEL}[invoices]\nseller_name = \"Example GmbH\"\nseller_country = \"DE\"\nzone = \"Europe/Berlin\"\ntax_rate = \"19\"\n"
    );
    let mut server = Server::serve(root.path(), &settings, Some(KEY));
    server.key = KEY.to_owned();
    for _ in 0..3 {
        call(&server).await;
    }
    let usage: Value = serde_json::from_str(&server.ok(&["usage", "--json"])).unwrap();
    let charged = usage["total"]["charged"]["dollars"].as_str().unwrap().to_owned();
    let text = server.ok(&["usage", "--interval", "month", "--json"]);
    let months: Value = serde_json::from_str(&text).unwrap();
    let month = months["rows"][0]["start"].as_str().unwrap()[..7].to_owned();
    let draft = server.ok(&["invoices", "draft", "default", &month, "--json"]);
    let draft: Value = serde_json::from_str(&draft).unwrap();
    let invoice = &draft["value"]["invoice"];
    assert_eq!((&invoice["state"], &invoice["number"]), (&json!("draft"), &Value::Null));
    // Berlin's month may have begun after these calls, or before.
    let sum = invoice["totals"]["charged"].as_str().unwrap();
    assert!(sum == charged || sum == "0.00", "{invoice}");
    let open = server.command(&["invoices", "final", "default", "2090-01"]);
    assert!(!open.status.success() && said(&open).contains("2090-01 is not over"), "{}", said(&open));

    let made = server.ok(&["invoices", "final", "default", "2020-01"]);
    assert!(made.contains("Invoice INV-1 of organisation default"), "{made}");
    let again = server.command(&["invoices", "final", "default", "2020-01"]);
    assert!(said(&again).contains("INV-1 is the invoice"), "{}", said(&again));
    server.signal("KILL");
    let _ = server.wait();
    drop(server);
    let mut server = Server::serve(root.path(), &settings, None);
    assert!(server.ok(&["invoices", "final", "default", "2020-02"]).contains("INV-2"));
    assert!(server.ok(&["invoices", "show", "INV-1"]) == made, "it never changes");
    server.stop();
    // A stopped server's directory, with the same settings.
    let command = |args: &[&str]| {
        let config = root.path().join("headrace.toml");
        let done =
            program().args(args).arg("--config").arg(config).arg("--data-dir").arg(&server.dir).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{args:?}: {}", said(&done));
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(command(&["invoices", "final", "default", "2020-03"]).contains("INV-3"));
    let listed = command(&["invoices", "list"]);
    assert!(["INV-1", "INV-2", "INV-3"].iter().all(|number| listed.contains(number)), "{listed}");
    let html = root.path().join("INV-1.html");
    let written = command(&["invoices", "export", "INV-1", "--out", html.to_str().unwrap()]);
    assert!(written.contains("INV-1 written to"), "{written}");
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("Invoice INV-1") && page.contains("Example GmbH"), "{page}");
    let csv = command(&["invoices", "export", "INV-1", "--format", "csv"]);
    assert!(csv.starts_with("number,org,month,line"), "{csv}");
    assert!(command(&["ledger", "verify"]).contains("every invariant"));
}
