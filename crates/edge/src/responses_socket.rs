//! A responses socket: calls over a WebSocket (RFC 6455). Each message of the client is a call of its own, in sequence,
//! and the events of its answer are messages. The caller was authenticated before the switch. Must not know the meaning
//! of a call or an event.
//!
//! Source: <https://developers.openai.com/api/docs/guides/websocket-mode>.

mod events;
mod inbound;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use headrace_call_api::{
    AbortReason, AnswerBody, AnswerFrames, BodyRefusal, CallAnswer, CallService, CallerInfo, Credentials,
    MemoryReservation, RequestHead, RequestTarget, TransportOutlet,
};
use headrace_domain::ConnectionTrace;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::activity::{ConnectionActivity, ServerWish};
use crate::connection::linger;
use crate::handshake::SocketCaller;
use crate::service::EdgeShared;
use crate::stats::count;
use crate::transport::DuplexStream;

use events::SocketEvents;
use inbound::{InboundExcess, InboundFrames};

/// Maximum length of a client's message, in bytes.
const MOST_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum lifetime of a responses socket, as at OpenAI.
const LONGEST: Duration = Duration::from_secs(3600);
/// Interval of pings to a peer. `PONG_WAIT` is the maximum wait for an answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WAIT: Duration = Duration::from_secs(20);
/// Maximum time for the last messages of a connection.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// How often a connection is checked: whether its key is still valid, its message makes progress, and its peer reads.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Bytes per read, and per combined write.
const BUFFER_BYTES: usize = 16 << 10;
/// Maximum number of bytes that wait to be written: one combined write, one frame, and the PONGs for one read.
const MOST_BUFFERED_BYTES: usize = 4 * BUFFER_BYTES;

/// What a peer receives before the server ends its connection.
struct ClosingError {
    code: CloseCode,
    event: &'static str,
}

/// The connection has reached its maximum lifetime.
const TOO_LONG: ClosingError = ClosingError {
    code: CloseCode::Normal,
    event: r#"{"type":"error","status":400,"error":{"type":"invalid_request_error","code":"websocket_connection_limit_reached","message":"A connection of turns lasts for an hour at most. Open another one, and continue from the last response by `previous_response_id`.","param":null}}"#,
};
/// A message is too long.
const TOO_LARGE: ClosingError = ClosingError {
    code: CloseCode::Size,
    event: r#"{"type":"error","status":413,"error":{"type":"invalid_request_error","code":"request_too_large","message":"A turn may have at most 4 MiB. Send it as `POST /v1/responses`, or send less and continue from a stored response.","param":null}}"#,
};
/// The messages and requests of the key fill its memory.
const NO_MEMORY_OF_KEY: ClosingError = ClosingError {
    code: CloseCode::Again,
    event: r#"{"type":"error","status":429,"error":{"type":"rate_limit_error","code":"request_memory_per_key","message":"The requests and messages of this key fill its memory (`server.request_memory_per_key`). Wait for some of them, then connect again.","param":null}}"#,
};
/// The messages and requests of all keys fill the memory.
const NO_MEMORY: ClosingError = ClosingError {
    code: CloseCode::Again,
    event: r#"{"type":"error","status":503,"error":{"type":"overloaded_error","code":"request_memory","message":"The requests and messages of all keys fill the server's memory for them (`server.request_memory`). Connect again shortly.","param":null}}"#,
};
/// A message came in far more frames than it needs.
const TOO_MANY_FRAMES: ClosingError = ClosingError {
    code: CloseCode::Policy,
    event: r#"{"type":"error","status":400,"error":{"type":"invalid_request_error","code":"too_many_pieces","message":"The message came in far more frames than its bytes need. Send it in one frame, or in larger ones.","param":null}}"#,
};
/// A message made no progress for too long.
const TOO_SLOW: ClosingError = ClosingError {
    code: CloseCode::Policy,
    event: r#"{"type":"error","status":408,"error":{"type":"timeout_error","code":"body_timeout","message":"The message made no progress for too long (`server.body_progress_timeout`), or took too long in all. Connect again, and send it again.","param":null}}"#,
};
/// The peer floods the connection with control frames.
const TOO_MANY_PINGS: ClosingError = ClosingError {
    code: CloseCode::Policy,
    event: r#"{"type":"error","status":400,"error":{"type":"invalid_request_error","code":"too_many_pieces","message":"The connection sent more than 100 PING, PONG and CLOSE frames in a second. Send fewer.","param":null}}"#,
};
/// The key was revoked or has expired.
const BAD_KEY: ClosingError = ClosingError {
    code: CloseCode::Policy,
    event: r#"{"type":"error","status":401,"error":{"type":"authentication_error","code":"invalid_api_key","message":"The key of this connection is no longer good: it was revoked, or has expired. Connect again with another key.","param":null}}"#,
};

type Socket<'a> = WebSocketStream<InboundFrames<'a>>;

/// A message of the peer, and the memory that it has reserved for its key.
struct SocketMessage {
    text: Utf8Bytes,
    taken: MemoryReservation,
}

/// State that is kept beside a call in progress.
struct QueuedMessage {
    /// The next message, which arrived during the call.
    next: Option<SocketMessage>,
    /// When the connection is checked next.
    check_at: Instant,
}

/// Why the socket takes no more messages.
enum SocketEnd {
    /// The peer went away, or violated the protocol.
    Gone,
    /// The connection is closed with this code.
    Closed(CloseCode),
    /// The peer is sent a reason, and the connection is closed.
    Refused(&'static ClosingError),
    /// The peer does not read.
    Stalled,
    /// The server closes at once.
    Closing,
}

/// One responses socket.
pub(crate) struct ResponsesSocket<'a, F> {
    pub(crate) shared: &'a EdgeShared<F>,
    pub(crate) caller: &'a SocketCaller,
    pub(crate) activity: &'a Arc<ConnectionActivity>,
    /// How long a peer may leave its waiting bytes unread.
    pub(crate) patience: Duration,
}

impl<F: CallService> ResponsesSocket<'_, F> {
    /// Serves calls until the connection ends.
    pub(crate) async fn serve(&self, io: &mut dyn DuplexStream) {
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(BUFFER_BYTES)
            .max_write_buffer_size(MOST_BUFFERED_BYTES)
            .max_message_size(Some(MOST_MESSAGE_BYTES))
            .max_frame_size(Some(MOST_MESSAGE_BYTES));
        let inbound = InboundFrames::new(io, &self.shared.limits, self.charge());
        let mut socket = WebSocketStream::from_raw_socket(inbound, Role::Server, Some(config)).await;
        let over = Instant::now() + LONGEST;
        let mut queued = QueuedMessage { next: None, check_at: Instant::now() + CHECK_EVERY };
        let end = loop {
            let message = match queued.next.take() {
                Some(message) => message,
                None => match self.next(&mut socket, over).await {
                    Ok(message) => message,
                    Err(end) => break end,
                },
            };
            if let Err(end) = self.serve_message(&mut socket, message, &mut queued).await {
                break end;
            }
            // The client reads the close frame after this answer. A message that arrived meanwhile is answered first.
            if self.activity.wished() == ServerWish::Retire && queued.next.is_none() {
                break SocketEnd::Closed(CloseCode::Away);
            }
        };
        self.close(socket, end).await;
    }

    /// Returns an empty reservation in the memory of the peer's key.
    fn charge(&self) -> MemoryReservation {
        self.shared.memory.for_call_of(self.caller.key().clone())
    }

    /// Performs the regular check of a connection.
    fn check(&self, socket: &Socket<'_>) -> Result<(), SocketEnd> {
        let now = Instant::now();
        if !self.shared.has_valid_key(self.caller.info.clone()) {
            return Err(SocketEnd::Refused(&BAD_KEY));
        }
        if socket.get_ref().due().is_some_and(|due| due <= now) {
            count(&self.shared.stats.body_timeouts);
            return Err(SocketEnd::Refused(&TOO_SLOW));
        }
        if self.activity.blocked_for() >= self.patience { Err(SocketEnd::Stalled) } else { Ok(()) }
    }

    /// Waits for the next message of a peer with no call in progress.
    async fn next(&self, socket: &mut Socket<'_>, over: Instant) -> Result<SocketMessage, SocketEnd> {
        let mut received_at = Instant::now();
        let mut check_at = received_at + CHECK_EVERY;
        let mut is_pinged = false;
        loop {
            if self.activity.wished() >= ServerWish::Finish {
                return Err(SocketEnd::Closed(CloseCode::Away));
            }
            let patience = if is_pinged { PONG_WAIT } else { PING_EVERY };
            tokio::select! {
                biased;
                () = self.activity.next_wish() => {}
                () = sleep_until(over) => return Err(SocketEnd::Refused(&TOO_LONG)),
                () = sleep_until(check_at) => {
                    check_at = Instant::now() + CHECK_EVERY;
                    self.check(socket)?;
                }
                event = socket.next() => {
                    (received_at, is_pinged) = (Instant::now(), false);
                    if let Some(message) = self.receive(socket, event)? {
                        return Ok(message);
                    }
                }
                () = sleep_until(received_at + patience) => {
                    if is_pinged {
                        return Err(SocketEnd::Gone);
                    }
                    (received_at, is_pinged) = (Instant::now(), true);
                    self.within_patience(socket.send(Message::Ping(Bytes::new()))).await?;
                }
            }
        }
    }

    /// Processes an event of the peer. Returns its message, if it is one.
    fn receive(
        &self,
        socket: &mut Socket<'_>,
        event: Option<Result<Message, Error>>,
    ) -> Result<Option<SocketMessage>, SocketEnd> {
        self.activity.touch();
        match event {
            Some(Ok(Message::Text(text))) => {
                let taken = socket.get_mut().take_charge(self.charge());
                Ok(Some(SocketMessage { text, taken }))
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(None),
            Some(Ok(Message::Binary(_))) => Err(SocketEnd::Closed(CloseCode::Unsupported)),
            Some(Ok(Message::Close(_))) | None => Err(SocketEnd::Gone),
            Some(Err(Error::Capacity(_))) => Err(SocketEnd::Refused(&TOO_LARGE)),
            Some(Err(_)) => Err(socket.get_ref().excess().map_or(SocketEnd::Gone, |excess| {
                SocketEnd::Refused(match excess {
                    InboundExcess::ControlFrames => &TOO_MANY_PINGS,
                    InboundExcess::Frames => &TOO_MANY_FRAMES,
                    InboundExcess::Memory(BodyRefusal::MemoryOfKey { .. }) => &NO_MEMORY_OF_KEY,
                    InboundExcess::Memory(_) => &NO_MEMORY,
                })
            })),
        }
    }

    /// Awaits `work`, and notices meanwhile whether the peer goes away. One message that arrives is kept for later.
    /// Nothing more is read after it.
    async fn while_reading<T>(
        &self,
        socket: &mut Socket<'_>,
        queued: &mut QueuedMessage,
        work: impl Future<Output = T>,
    ) -> Result<T, SocketEnd> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                () = self.activity.next_wish() => if self.activity.wished() == ServerWish::Close {
                    return Err(SocketEnd::Closing);
                },
                () = sleep_until(queued.check_at) => {
                    queued.check_at = Instant::now() + CHECK_EVERY;
                    self.check(socket)?;
                }
                done = work.as_mut() => return Ok(done),
                event = socket.next(), if queued.next.is_none() => queued.next = self.receive(socket, event)?,
            }
        }
    }

    async fn serve_message(
        &self,
        socket: &mut Socket<'_>,
        message: SocketMessage,
        queued: &mut QueuedMessage,
    ) -> Result<(), SocketEnd> {
        let EdgeShared { service, stats, clock, .. } = self.shared;
        let (requests_before, in_flight) = self.activity.request();
        count(&stats.requests);
        let SocketMessage { text, taken } = message;
        let bytes = text.len();
        let caller = CallerInfo {
            started: clock.now(),
            started_mono_ns: clock.monotonic_nanos(),
            connection: Some(ConnectionTrace { requests_before, open_ns: self.activity.age_ns() }),
            ..self.caller.info.clone()
        };
        let Credentials { authorization, x_api_key, .. } = &caller.credentials;
        if let Some(wait) = service.wait_before_admission(authorization.as_deref(), x_api_key.as_deref()) {
            self.while_reading(socket, queued, wait).await?;
        }
        if let Some(wait) = service.wait_for_limits(|| caller.clone()) {
            self.while_reading(socket, queued, wait).await?;
        }
        let target = RequestTarget::SocketTurn { session: self.caller.session, message: Bytes::from(text) };
        let admission = match service.admit(RequestHead { target, caller }) {
            Ok(admission) => admission,
            Err(refusal) => return self.send_refusal(socket, refusal).await,
        };
        // Reduces the reservation to the message's length, because the buffer of a fragmented message is gone.
        let _ = taken.resize(u64::try_from(bytes).unwrap_or(u64::MAX));
        // The service has the message already.
        let answer = self.while_reading(socket, queued, service.serve(admission, Bytes::new())).await?;
        if answer.status != 200 {
            return self.send_refusal(socket, answer).await;
        }
        match answer.body {
            AnswerBody::Whole(body) => match Utf8Bytes::try_from(body) {
                Ok(text) => self.send_text(socket, text).await?,
                Err(_) => return Err(SocketEnd::Closed(CloseCode::Error)),
            },
            AnswerBody::Stream(mut frames) | AnswerBody::Long { body: mut frames, .. } => {
                frames.set_outlet(Arc::<ConnectionActivity>::clone(in_flight.activity()));
                let sent = self.send_events(socket, queued, &mut frames).await;
                match &sent {
                    Err(SocketEnd::Stalled) => frames.abort(AbortReason::ReaderStalled),
                    Err(SocketEnd::Closing) => frames.abort(AbortReason::ShuttingDown),
                    Ok(()) | Err(SocketEnd::Gone | SocketEnd::Closed(_) | SocketEnd::Refused(_)) => {}
                }
                sent?;
            }
        }
        drop(in_flight);
        Ok(())
    }

    /// Sends the events of an answer, each as a message.
    async fn send_events(
        &self,
        socket: &mut Socket<'_>,
        queued: &mut QueuedMessage,
        frames: &mut F::Stream,
    ) -> Result<(), SocketEnd> {
        let mut events = SocketEvents::default();
        loop {
            let frame = self.while_reading(socket, queued, poll_fn(|cx| frames.poll_frame(cx))).await?;
            match frame {
                None => return Ok(()),
                Some(Err(_)) => return Err(SocketEnd::Closed(CloseCode::Error)),
                Some(Ok(bytes)) => events.push(&bytes).map_err(|_| SocketEnd::Closed(CloseCode::Error))?,
            }
            self.activity.touch();
            let mut any = false;
            while let Some(event) = events.next() {
                let Ok(text) = Utf8Bytes::try_from(event) else {
                    return Err(SocketEnd::Closed(CloseCode::Error));
                };
                self.feed(socket, text).await?;
                any = true;
            }
            if any {
                self.within_patience(socket.flush()).await?;
            }
        }
    }

    /// Sends a refusal as an event.
    async fn send_refusal(
        &self,
        socket: &mut Socket<'_>,
        answer: CallAnswer<F::Stream>,
    ) -> Result<(), SocketEnd> {
        let mut out = BytesMut::new();
        out.put_slice(format!("{{\"type\":\"error\",\"status\":{}", answer.status).as_bytes());
        match &answer.body {
            AnswerBody::Whole(body) if body.len() > 2 && body.first() == Some(&b'{') => {
                out.put_u8(b',');
                out.put_slice(body.get(1..).unwrap_or_default());
            }
            _ => out.put_u8(b'}'),
        }
        match Utf8Bytes::try_from(out.freeze()) {
            Ok(text) => self.send_text(socket, text).await,
            Err(_) => Err(SocketEnd::Closed(CloseCode::Error)),
        }
    }

    async fn send_text(&self, socket: &mut Socket<'_>, text: Utf8Bytes) -> Result<(), SocketEnd> {
        self.feed(socket, text).await?;
        self.within_patience(socket.flush()).await
    }

    /// Buffers a message in frames that fit the buffer, and writes what does not fit.
    async fn feed(&self, socket: &mut Socket<'_>, text: Utf8Bytes) -> Result<(), SocketEnd> {
        if text.len() <= BUFFER_BYTES {
            return self.within_patience(socket.feed(Message::Text(text))).await;
        }
        let mut left = Bytes::from(text);
        let mut kind = Data::Text;
        while !left.is_empty() {
            let piece = left.split_to(whole_characters(&left, BUFFER_BYTES));
            let frame = Frame::message(piece, OpCode::Data(kind), left.is_empty());
            self.within_patience(socket.feed(Message::Frame(frame))).await?;
            kind = Data::Continue;
        }
        Ok(())
    }

    async fn within_patience(&self, write: impl Future<Output = Result<(), Error>>) -> Result<(), SocketEnd> {
        timeout(self.patience, write).await.map_err(|_| SocketEnd::Stalled)?.map_err(|_| SocketEnd::Gone)
    }

    async fn close(&self, mut socket: Socket<'_>, end: SocketEnd) {
        let (code, closing_error) = match end {
            SocketEnd::Closed(code) => (code, None),
            SocketEnd::Refused(ClosingError { code, event }) => (*code, Some(*event)),
            SocketEnd::Gone => (CloseCode::Normal, None),
            SocketEnd::Stalled => {
                count(&self.shared.stats.write_timeouts);
                return;
            }
            SocketEnd::Closing => (CloseCode::Away, None),
        };
        let reason = if code == CloseCode::Unsupported { "turns are messages of text" } else { "" };
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
        // A timeout is not an error: the connection ends in any case.
        let _ = timeout(CLOSE_WAIT, async {
            if let Some(event) = closing_error {
                socket.send(Message::Text(Utf8Bytes::from_static(event))).await?;
            }
            socket.close(Some(frame)).await?;
            while let Some(Ok(_)) = socket.next().await {}
            Ok::<(), Error>(())
        })
        .await;
        if closing_error.is_some() {
            // The peer may still be sending, and a reset would discard what it has not read.
            let io = socket.into_inner().into_io();
            if matches!(timeout(CLOSE_WAIT, io.shutdown()).await, Ok(Ok(()))) {
                linger(io).await;
            }
        }
    }
}

/// Returns the largest length up to `most` that does not split a character of the text.
fn whole_characters(text: &[u8], most: usize) -> usize {
    if text.len() <= most {
        return text.len();
    }
    let is_continued = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    (1..=most).rev().find(|at| !is_continued(at)).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        for (text, most, cut) in
            [("abcd", 4, 4), ("abcd", 3, 3), ("aéb", 2, 1), ("aéb", 3, 3), ("😀😀", 5, 4)]
        {
            assert_eq!(whole_characters(text.as_bytes(), most), cut, "{text} {most}");
        }
    }
}
