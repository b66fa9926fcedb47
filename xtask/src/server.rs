//! A running server for the steps that try the program: starts it, sends requests, stops it. Speaks HTTP by hand, as
//! any client may. Knows no step.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::shell::Failure;

/// The API key of these requests.
pub(crate) const KEY: &str = "sk-smoke-0123456789abcdefghijkl";
const READY_WITHIN: Duration = Duration::from_secs(30);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// The server. Killed when dropped.
pub(crate) struct Server {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Server {
    /// Starts `command`, which must listen on `address`. Its output goes to the file `log`.
    pub(crate) fn start(mut command: Command, address: String, log: &Path) -> Result<Self, Failure> {
        let named = |error: std::io::Error| wrong(format!("{}: {error}", log.display()));
        let output = std::fs::File::create(log).map_err(named)?;
        let errors = output.try_clone().map_err(named)?;
        command.stdout(Stdio::from(output)).stderr(Stdio::from(errors));
        let child = command.spawn().map_err(|error| {
            wrong(format!("{} does not start: {error}", command.get_program().to_string_lossy()))
        })?;
        Ok(Self { child, address, log: log.to_owned() })
    }

    /// Returns when `/readyz` answers 200.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        while started.elapsed() < READY_WITHIN {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(wrong(format!(
                    "the server ended with {status} before it was ready; see {}",
                    self.log.display()
                )));
            }
            if matches!(self.exchange("GET", "/readyz", None), Ok((200, ..))) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(wrong(format!("the server was not ready within {} s", READY_WITHIN.as_secs())))
    }

    /// Waits until the owner can read a request's trace. Traces are written out of band, so this may take a moment.
    pub(crate) fn traced(&self, id: &str) -> Result<(), Failure> {
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

    /// Sends SIGTERM and waits for an exit with status 0.
    pub(crate) fn stop(&mut self) -> Result<(), Failure> {
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

    /// The body of a `GET` that must answer 200.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Failure> {
        match self.ask("GET", path, None)? {
            (200, _, body) => Ok(body),
            (status, _, body) => Err(wrong(format!("GET {path} gave {status}: {body}"))),
        }
    }

    /// The status, the header lines and the JSON of an answer.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, String, Value), Failure> {
        let (status, headers, body) =
            self.exchange(method, path, body).map_err(|error| wrong(format!("{method} {path}: {error}")))?;
        let body = serde_json::from_str(&body)
            .map_err(|error| wrong(format!("{method} {path} gave {status} and no JSON ({error}): {body}")))?;
        Ok((status, headers, body))
    }

    /// Sends one request on its own connection. Returns status, header lines and body.
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
        // After a stop there is nothing left to kill. After a failure nothing may stay behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address with a port that was free a moment ago.
pub(crate) fn free_address() -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.to_string()).map_err(|error| wrong(format!("no free port: {error}")))
}

pub(crate) fn header(head: &str, name: &str) -> Option<String> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
}

/// A failure without its own remedy.
pub(crate) fn wrong(what: String) -> Failure {
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
}
