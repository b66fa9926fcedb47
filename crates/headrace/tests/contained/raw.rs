//! Raw connections of a client that sends exact bytes and does not read.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::common::PATIENCE;

/// A server that takes no byte for this long has stopped reading. Only ends an attack; no assertion depends on it.
const STALL: Duration = Duration::from_secs(2);
/// Receive buffer for bytes that a client does not read: the minimum of the kernel.
const RECEIVE_BYTES: u32 = 2048;

/// A connection with a small receive buffer.
pub(crate) async fn connect(to: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(RECEIVE_BYTES).unwrap();
    timeout(PATIENCE, socket.connect(to)).await.ok()?.ok()
}

/// Sends bytes until the server closes the connection or accepts no more. Returns how many it accepted.
pub(crate) async fn push(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    let mut sent = 0;
    while sent < bytes.len() {
        match timeout(STALL, stream.write(&bytes[sent..])).await {
            Ok(Ok(took)) if took > 0 => sent += took,
            _ => break,
        }
    }
    sent
}

/// Opens a WebSocket of `/v1/responses`. Returns the status of a refusal; 0 if there is no answer.
pub(crate) async fn web_socket(to: SocketAddr, key: &str) -> Result<TcpStream, u16> {
    let mut stream = connect(to).await.ok_or(0_u16)?;
    let head = format!(
        "GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nauthorization: Bearer {key}\r\n\r\n"
    );
    push(&mut stream, head.as_bytes()).await;
    match status(&mut stream).await {
        101 => Ok(stream),
        other => Err(other),
    }
}

/// The status of the answer on a connection, read to the end of its head; 0 if there is none.
pub(crate) async fn status(stream: &mut TcpStream) -> u16 {
    let mut head = Vec::new();
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let mut byte = [0];
        match timeout(PATIENCE, stream.read(&mut byte)).await {
            Ok(Ok(1)) => head.push(byte[0]),
            _ => return 0,
        }
    }
    String::from_utf8_lossy(&head).split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// A masked frame of a client (RFC 6455, 5.2), with a mask of zeros.
pub(crate) fn frame(opcode: u8, last: bool, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![u8::from(last) << 7 | opcode];
    match payload.len() {
        short @ 0..126 => out.push(0x80 | short as u8),
        middle @ 126..65_536 => {
            out.push(0x80 | 126);
            out.extend((middle as u16).to_be_bytes());
        }
        long => {
            out.push(0x80 | 127);
            out.extend((long as u64).to_be_bytes());
        }
    }
    out.extend([0; 4]);
    out.extend(payload);
    out
}
