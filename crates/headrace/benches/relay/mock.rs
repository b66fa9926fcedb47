//! An upstream that answers every request at once with the same bytes. The load's thread serves it, so it needs no core
//! of its own and no context switch. It reads requests completely and ignores their content.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

/// An upstream that answers at once.
pub(crate) struct Mock {
    listener: TcpListener,
    connections: Vec<Connection>,
    answer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    /// Total bytes of the present request. `None` until its head is complete.
    length: Option<usize>,
    /// Bytes of the answer that are still to be written.
    unwritten: usize,
}

impl Mock {
    /// An upstream that gives this answer to every request.
    pub(crate) fn new(answer: Vec<u8>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, connections: Vec::new(), answer })
    }

    pub(crate) fn port(&self) -> std::io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Accepts and answers all waiting input, without blocking.
    pub(crate) fn turn(&mut self) -> std::io::Result<()> {
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                self.connections.push(Connection { stream, request: Vec::new(), length: None, unwritten: 0 });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let answer = &self.answer;
        self.connections.retain_mut(|connection| connection.turn(answer).is_ok());
        Ok(())
    }
}

impl Connection {
    /// An error means that the connection is over.
    fn turn(&mut self, answer: &[u8]) -> std::io::Result<()> {
        if self.unwritten > 0 {
            return self.write(answer);
        }
        let mut piece = [0; 64 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.request.extend_from_slice(piece.get(..read).unwrap_or(&[])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        if self.length.is_none() {
            self.length = length(&self.request);
        }
        if self.length.is_some_and(|length| self.request.len() >= length) {
            self.request.clear();
            self.length = None;
            self.unwritten = answer.len();
            return self.write(answer);
        }
        Ok(())
    }

    fn write(&mut self, answer: &[u8]) -> std::io::Result<()> {
        while self.unwritten > 0 {
            let rest = answer.get(answer.len() - self.unwritten..).unwrap_or(&[]);
            match self.stream.write(rest) {
                Ok(written) => self.unwritten -= written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Length of the request in bytes, body included. `None` until its head is complete.
fn length(request: &[u8]) -> Option<usize> {
    let end = request.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(request.get(..end)?).to_ascii_lowercase();
    let body = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    Some(end + body.and_then(|length| length.trim().parse::<usize>().ok()).unwrap_or(0))
}

/// A complete chat completion.
pub(crate) fn whole() -> Vec<u8> {
    let body = concat!(
        r#"{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"mock-model","choices":[{"index":0,"#,
        r#""message":{"role":"assistant","content":"The answer of a mock, which says the same to everyone."},"#,
        r#""logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":70,"completion_tokens":12,"total_tokens":82}}"#
    );
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A chat completion as a stream of `pieces` text chunks, sent all at once.
pub(crate) fn stream(pieces: usize) -> Vec<u8> {
    let event = |rest: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock-model\",{rest}}}\n\n"
        )
    };
    let mut events: Vec<String> = (0..pieces)
        .map(|at| {
            event(&format!(
                "\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" word {at}\"}},\"logprobs\":null,\"finish_reason\":null}}]"
            ))
        })
        .collect();
    events
        .push(event("\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]"));
    events.push(event(
        "\"choices\":[],\"usage\":{\"prompt_tokens\":70,\"completion_tokens\":64,\"total_tokens\":134}",
    ));
    events.push("data: [DONE]\n\n".to_owned());
    let mut out =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for event in events {
        out.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}
