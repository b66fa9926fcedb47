//! The first five minutes of a newcomer, without the newcomer: start `headrace up`, ask the demo model, see the bill
//! and the trace, stop it with SIGTERM, verify the ledger. Once for each instruction set that this machine has.
//! Speaks HTTP by hand: what it sees is what any client sees.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::shell::{Done, Failure, Place, capture, read};

const KEY: &str = "sk-smoke-0123456789abcdefghijkl";
const READY_WITHIN: Duration = Duration::from_secs(30);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// The step.
pub(crate) fn run(place: &Place) -> Result<Done, Failure> {
    for isa in &instruction_sets(place)? {
        let started = Instant::now();
        once(place, isa).map_err(|failure| {
            failure.with_remedy(format!(
                "start it by hand and look: HEADRACE_ISA={isa} HEADRACE_BOOTSTRAP_KEY={KEY} target/release/headrace up"
            ))
        })?;
        println!(
            "{isa}: answered as recorded, billed, traced, stopped and verified in {:.1} s",
            started.elapsed().as_secs_f64()
        );
    }
    Ok(Done::Passed)
}

/// The instruction sets that the program can be forced to on this machine (`HEADRACE_ISA`), slowest first, as it says itself.
pub(crate) fn instruction_sets(place: &Place) -> Result<Vec<String>, Failure> {
    let said =
        capture(place.command(place.headrace()).arg("--version"), "target/release/headrace --version")?;
    sets(&said).ok_or_else(|| {
        Failure::new(
            format!("`headrace --version` names no instruction sets:\n{said}"),
            "see VERSION in crates/headrace/src/cli.rs",
        )
    })
}

fn sets(said: &str) -> Option<Vec<String>> {
    let line = said.lines().find_map(|line| line.strip_prefix("instruction sets: "))?;
    Some(line.split(", ").map(str::to_owned).collect())
}

fn once(place: &Place, isa: &str) -> Result<(), Failure> {
    let data = place.target.join("smoke").join(isa);
    if data.exists() {
        std::fs::remove_dir_all(&data).map_err(|error| wrong(format!("{}: {error}", data.display())))?;
    }
    std::fs::create_dir_all(&data).map_err(|error| wrong(format!("{}: {error}", data.display())))?;
    let mut server = Server::start(place, isa, &data)?;
    server.wait_until_ready()?;

    let expected = recorded(place)?;
    let models = server.get("/v1/models")?;
    let model = text(&models, "/data/0/id")?;
    // As long as the recording, which was cut off where the answer is longer.
    let length = expected.get("greedy").and_then(Value::as_array).map_or(0, Vec::len);
    let request = json!({
        "model": model, "messages": expected.get("messages"), "temperature": 0, "max_tokens": length,
    });
    let (status, headers, answer) = server.ask("POST", "/v1/chat/completions", Some(&request))?;
    if status != 200 {
        return Err(wrong(format!("the demo model answered {status}: {answer}")));
    }
    let wanted = text(&expected, "/greedy_text")?.trim_end_matches("<|im_end|>").trim_end().to_owned();
    let found = text(&answer, "/choices/0/message/content")?;
    if found.trim_end() != wanted {
        return Err(wrong(format!(
            "on {isa} the demo model said\n{found}\ninstead of what was recorded:\n{wanted}"
        )));
    }
    let id =
        header(&headers, "x-request-id").ok_or_else(|| wrong("the answer has no x-request-id".to_owned()))?;
    server.traced(&id)?;
    server.stop()?;
    verified(place, &data)
}

/// The first recorded conversation of the demo model that needs no tools.
fn recorded(place: &Place) -> Result<Value, Failure> {
    let all: Value = serde_json::from_str(&read(&place.root.join("demo-model/checkpoint/expected.json"))?)
        .map_err(|error| wrong(format!("demo-model/checkpoint/expected.json: {error}")))?;
    let rows = all.as_array().map_or(&[][..], Vec::as_slice);
    let row = rows.iter().find(|row| row.get("tools").is_some_and(Value::is_null));
    row.cloned().ok_or_else(|| wrong("expected.json has no conversation without tools".to_owned()))
}

/// What stays when the server has gone: the books balance, and the trace can still be drawn.
fn verified(place: &Place, data: &Path) -> Result<(), Failure> {
    for arguments in [&["ledger", "verify"][..], &["trace", "--last"][..]] {
        let line = format!("headrace {} --data-dir {}", arguments.join(" "), data.display());
        let printed =
            capture(place.command(place.headrace()).args(arguments).arg("--data-dir").arg(data), &line)?;
        if printed.trim().is_empty() {
            return Err(wrong(format!("`{line}` printed nothing")));
        }
    }
    Ok(())
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(place: &Place, isa: &str, data: &Path) -> Result<Self, Failure> {
        let address = free_address()?;
        let log = std::fs::File::create(data.join("server.log"))
            .map_err(|error| wrong(format!("{}: {error}", data.display())))?;
        let mut command = place.command(place.headrace());
        command.args(["up", "--listen", &address, "--data-dir"]).arg(data);
        command.env("HEADRACE_ISA", isa).env("HEADRACE_BOOTSTRAP_KEY", KEY);
        let errors = log.try_clone().map_err(|error| wrong(format!("server.log: {error}")))?;
        command.stdout(Stdio::from(log)).stderr(Stdio::from(errors));
        let child = command
            .spawn()
            .map_err(|error| wrong(format!("{} does not start: {error}", place.headrace().display())))?;
        Ok(Self { child, address })
    }

    fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        while started.elapsed() < READY_WITHIN {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(wrong(format!(
                    "the server ended with {status} before it was ready; see server.log"
                )));
            }
            if matches!(self.exchange("GET", "/readyz", None), Ok((200, ..))) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(wrong(format!("the server was not ready within {} s", READY_WITHIN.as_secs())))
    }

    /// The trace of a request, as its owner may read it: written out of band, so it may come a moment later.
    fn traced(&self, id: &str) -> Result<(), Failure> {
        let started = Instant::now();
        loop {
            let (status, _, record) = self.ask("GET", &format!("/v1/requests/{id}"), None)?;
            if status == 200 {
                return Ok(());
            }
            if started.elapsed() > Duration::from_secs(5) {
                return Err(wrong(format!("no trace of {id} after 5 s: {status} {record}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn stop(&mut self) -> Result<(), Failure> {
        let pid = self.child.id().to_string();
        let sent = std::process::Command::new("kill").args(["-TERM", &pid]).status();
        if !sent.is_ok_and(|status| status.success()) {
            return Err(wrong(format!("SIGTERM could not be sent to {pid}")));
        }
        let started = Instant::now();
        while started.elapsed() < STOPPED_WITHIN {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(wrong(format!("after SIGTERM the server ended with {status}")));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(wrong(format!("the server cannot be waited for: {error}"))),
            }
        }
        Err(wrong(format!("the server ran on for {} s after SIGTERM", STOPPED_WITHIN.as_secs())))
    }

    fn get(&self, path: &str) -> Result<Value, Failure> {
        match self.ask("GET", path, None)? {
            (200, _, body) => Ok(body),
            (status, _, body) => Err(wrong(format!("GET {path} gave {status}: {body}"))),
        }
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, String, Value), Failure> {
        let (status, headers, body) =
            self.exchange(method, path, body).map_err(|error| wrong(format!("{method} {path}: {error}")))?;
        let body = serde_json::from_str(&body)
            .map_err(|error| wrong(format!("{method} {path} gave {status} and no JSON ({error}): {body}")))?;
        Ok((status, headers, body))
    }

    /// One request on a connection of its own: status, header lines, body.
    fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> std::io::Result<(u16, String, String)> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let invalid = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| invalid("no end of the headers"))?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or_else(|| invalid("no status"))?, head.to_owned(), body.to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a stop there is nothing left to kill; after a failure nothing may be left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
fn free_address() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.to_string()).map_err(|error| wrong(format!("no free port: {error}")))
}

fn header(head: &str, name: &str) -> Option<String> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
}

fn text(value: &Value, pointer: &str) -> Result<String, Failure> {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.map(str::to_owned).ok_or_else(|| wrong(format!("no text at {pointer} in {value}")))
}

fn wrong(what: String) -> Failure {
    Failure::new(what, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_whatever_their_case() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: a\r\nX-Request-ID: req_1";
        assert_eq!(header(head, "x-request-id").as_deref(), Some("req_1"));
        assert_eq!(header(head, "retry-after"), None);
    }

    #[test]
    fn instruction_sets_are_read_from_what_the_program_says() {
        let said = "headrace 1.2.3\ninstruction sets: scalar, avx2\nkernels: 2\n";
        assert_eq!(sets(said), Some(vec!["scalar".to_owned(), "avx2".to_owned()]));
        assert_eq!(sets("headrace 1.2.3\n"), None);
    }
}
