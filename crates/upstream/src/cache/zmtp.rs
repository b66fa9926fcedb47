//! The client side of a ZeroMQ connection: subscribes to all events, or requests earlier ones. Must not know the
//! content of messages.
//!
//! ZMTP 3.0 with the mechanism NULL (RFC 23). The project has its own reader because other libraries trust a frame's
//! stated length: they would allocate that much memory before a byte of the frame arrives.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout for the connection and its handshake.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Interval of TCP keepalive probes. A silent, dead peer is detected after about three times this.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Size of the largest message, in bytes of all its frames.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Maximum number of frames in a message. Events and replays have three.
const MAX_FRAMES: usize = 8;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const GREETING_BYTES: usize = 64;

/// The socket type of this side.
#[derive(Debug, Clone, Copy)]
pub(super) enum ZmtpRole {
    /// Receives all published events.
    Subscriber,
    /// Sends a request and receives any number of answers.
    Dealer,
}

/// An open connection. A wait for a message may be cancelled at any time.
pub(super) struct ZmtpPeer {
    stream: TcpStream,
    read: BytesMut,
    /// Frames of an incomplete message.
    frames: Vec<Bytes>,
    bytes: usize,
}

impl ZmtpPeer {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// Why the connection failed, as text.
    pub(super) async fn connect(at: &str, role: ZmtpRole) -> Result<Self, String> {
        let open = async {
            let stream =
                TcpStream::connect(at).await.map_err(|error| format!("no connection to {at}: {error}"))?;
            let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
            // Keepalive is best effort: without it, a dead peer is detected later.
            drop(SockRef::from(&stream).set_tcp_keepalive(&keepalive));
            let mut peer = Self { stream, read: BytesMut::new(), frames: Vec::new(), bytes: 0 };
            peer.open(role).await.map_err(|why| format!("{at}: {why}"))?;
            Ok(peer)
        };
        let late = |_| Err(format!("{at} did not open a connection within {} s", CONNECT_WAIT.as_secs()));
        timeout(CONNECT_WAIT, open).await.unwrap_or_else(late)
    }

    async fn open(&mut self, role: ZmtpRole) -> Result<(), String> {
        let mut greeting = [0; GREETING_BYTES];
        for (at, bytes) in [(0, &[0xff][..]), (9, &[0x7f, 3, 0]), (12, b"NULL")] {
            if let Some(place) = greeting.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        }
        self.write(&greeting).await?;
        while self.read.len() < GREETING_BYTES {
            self.more().await?;
        }
        let theirs = self.read.split_to(GREETING_BYTES);
        let byte = |at: usize| theirs.get(at).copied().unwrap_or(0);
        if byte(0) != 0xff || byte(9) & 1 == 0 {
            return Err("it does not speak ZeroMQ's protocol".to_owned());
        }
        if byte(10) < 3 {
            return Err(format!("it speaks version {} of ZeroMQ's protocol; 3 is needed", byte(10)));
        }
        if theirs.get(12..32).is_none_or(|mechanism| !mechanism.starts_with(b"NULL\0")) {
            return Err("it wants ZeroMQ's clients to show who they are, which is not done here".to_owned());
        }
        let name: &[u8] = match role {
            ZmtpRole::Subscriber => b"SUB",
            ZmtpRole::Dealer => b"DEALER",
        };
        let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
        ready.push(name.len() as u8);
        ready.extend_from_slice(name);
        self.frame(COMMAND, &ready).await?;
        let (flags, body) = self.next_frame().await?;
        if flags & COMMAND == 0 || !body.starts_with(b"\x05READY") {
            let said = String::from_utf8_lossy(&body)
                .chars()
                .filter(|c| !c.is_control())
                .take(80)
                .collect::<String>();
            return Err(format!("it does not open its side: {said}"));
        }
        if let ZmtpRole::Subscriber = role {
            // Subscribes to all topics.
            self.frame(0, &[1]).await?;
        }
        Ok(())
    }

    /// Returns the frames of the next message.
    ///
    /// # Errors
    /// The connection ended, or the bytes received are not a message.
    pub(super) async fn message(&mut self) -> Result<Vec<Bytes>, String> {
        loop {
            let (flags, body) = self.next_frame().await?;
            if flags & COMMAND != 0 {
                self.command(&body).await?;
                continue;
            }
            self.bytes += body.len();
            if self.frames.len() >= MAX_FRAMES || self.bytes > MAX_MESSAGE_BYTES {
                return Err(format!(
                    "a message of more than {MAX_MESSAGE_BYTES} bytes or {MAX_FRAMES} frames"
                ));
            }
            self.frames.push(body);
            if flags & MORE == 0 {
                self.bytes = 0;
                return Ok(std::mem::take(&mut self.frames));
            }
        }
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> Result<(), String> {
        for (at, body) in frames.iter().enumerate() {
            let more = if at + 1 < frames.len() { MORE } else { 0 };
            self.frame(more, body).await?;
        }
        Ok(())
    }

    /// Answers a PING with its own context.
    async fn command(&mut self, body: &[u8]) -> Result<(), String> {
        let Some(context) = body.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..)) else {
            return Ok(());
        };
        let pong = [b"\x04PONG", context.get(..context.len().min(16)).unwrap_or_default()].concat();
        self.frame(COMMAND, &pong).await
    }

    /// Sends a frame of at most 255 bytes. The client never needs longer ones.
    async fn frame(&mut self, flags: u8, body: &[u8]) -> Result<(), String> {
        let length = u8::try_from(body.len()).map_err(|_| "a frame that is too long".to_owned())?;
        self.write(&[&[flags, length][..], body].concat()).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).await.map_err(|error| format!("the connection broke: {error}"))
    }

    async fn next_frame(&mut self) -> Result<(u8, Bytes), String> {
        loop {
            if let Some(frame) = take_frame(&mut self.read)? {
                return Ok(frame);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), String> {
        match self.stream.read_buf(&mut self.read).await {
            Ok(0) => Err("the connection was closed".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the connection broke: {error}")),
        }
    }
}

/// Takes the next frame from the bytes read: its flags and its body. Returns `None` if it is incomplete.
fn take_frame(read: &mut BytesMut) -> Result<Option<(u8, Bytes)>, String> {
    let Some(flags) = read.first().copied() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err("what comes is no frame of ZeroMQ's protocol".to_owned());
    }
    let (head, length) = match (flags & LONG != 0, read.get(1), read.get(1..9)) {
        (false, Some(length), _) => (2, usize::from(*length)),
        (true, _, Some(mut length)) => (9, usize::try_from(length.get_u64()).unwrap_or(usize::MAX)),
        _ => return Ok(None),
    };
    if length > MAX_MESSAGE_BYTES {
        return Err(format!("a frame of {length} bytes; at most {MAX_MESSAGE_BYTES} are taken"));
    }
    if read.len() < head + length {
        return Ok(None);
    }
    read.advance(head);
    Ok(Some((flags, read.split_to(length).freeze())))
}
