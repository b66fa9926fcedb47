//! Turns over a WebSocket (RFC 6455): each message of the client is a call of its own, one after the other, and the events of its answer
//! are messages. Who it is was asked before the connection went on like this. Must not know what a call means, or what an event says.
//!
//! Source: <https://developers.openai.com/api/docs/guides/websocket-mode>.

mod events;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use headrace_call_api::{
    Admitted, Answer, AnswerBody, BodyRefusal, BodySource, Frames, Front, GiveUp, Head, Peer, Reserved,
};
use headrace_domain::{ConnectionTrace, Endpoint};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::activity::{Activity, Wish};
use crate::handshake::Upgraded;
use crate::service::Shared;
use crate::stats::count;
use crate::transport::Duplex;
use crate::upload::take;

use events::Events;

/// The longest message of a client, in bytes.
const MOST_TURN_BYTES: usize = 4 << 20;
/// How long such a connection may last: OpenAI's.
const LONGEST: Duration = Duration::from_secs(3600);
/// How often a peer is asked whether it lives, and how long it may take to say so.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WAIT: Duration = Duration::from_secs(20);
/// How long the last words may take.
const PARTING: Duration = Duration::from_secs(1);
/// Bytes that are read at once, and written together.
const BUFFER_BYTES: usize = 16 << 10;

/// What is told before a connection ends that has lasted as long as it may.
const TOO_LONG: &str = r#"{"type":"error","status":400,"error":{"type":"invalid_request_error","code":"websocket_connection_limit_reached","message":"A connection of turns lasts for an hour at most. Open another one, and go on from the last response by `previous_response_id`.","param":null}}"#;
/// And where a message is too long.
const TOO_LARGE: &str = r#"{"type":"error","status":413,"error":{"type":"invalid_request_error","code":"request_too_large","message":"A turn may have at most 4 MiB. Send it as `POST /v1/responses`, or send less and go on from a stored response.","param":null}}"#;

type Socket<'a> = WebSocketStream<&'a mut dyn Duplex>;

/// Why no more turns are taken.
enum End {
    /// The peer went away, or what it sent is none of the protocol.
    Gone,
    /// It is told why.
    Told(CloseCode),
    /// It takes nothing.
    Stalled,
    /// The server closes at once.
    Closing,
}

/// One connection of turns.
pub(crate) struct Turns<'a, F> {
    pub(crate) shared: &'a Shared<F>,
    pub(crate) peer: Peer,
    pub(crate) upgraded: &'a Upgraded,
    pub(crate) activity: &'a Arc<Activity>,
    /// How long a peer may take none of what waits for it.
    pub(crate) patience: Duration,
}

impl<F: Front> Turns<'_, F> {
    /// Takes turns until the connection ends.
    pub(crate) async fn take_all(&self, io: &mut dyn Duplex) {
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(BUFFER_BYTES)
            .max_message_size(Some(MOST_TURN_BYTES))
            .max_frame_size(Some(MOST_TURN_BYTES));
        let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let over = Instant::now() + LONGEST;
        let kept = F::Turns::default();
        // One that came while another was under way.
        let mut next = None;
        let end = loop {
            let message = match next.take() {
                Some(message) => message,
                None => match self.next(&mut socket, over).await {
                    Ok(message) => message,
                    Err(end) => break end,
                },
            };
            if let Err(end) = self.turn(&mut socket, message, &kept, &mut next).await {
                break end;
            }
        };
        self.part(socket, end).await;
    }

    /// The next turn of a peer that has none under way.
    async fn next(&self, socket: &mut Socket<'_>, over: Instant) -> Result<Utf8Bytes, End> {
        let mut heard_at = Instant::now();
        let mut is_asked = false;
        loop {
            if self.activity.wished() != Wish::Serve {
                return Err(End::Told(CloseCode::Away));
            }
            let patience = if is_asked { PONG_WAIT } else { PING_EVERY };
            tokio::select! {
                biased;
                () = self.activity.next_wish() => {}
                () = sleep_until(over) => {
                    self.say(socket, Utf8Bytes::from_static(TOO_LONG)).await?;
                    return Err(End::Told(CloseCode::Normal));
                }
                came = socket.next() => {
                    (heard_at, is_asked) = (Instant::now(), false);
                    if let Some(message) = self.heard(socket, came).await? {
                        return Ok(message);
                    }
                }
                () = sleep_until(heard_at + patience) => {
                    if is_asked {
                        return Err(End::Gone);
                    }
                    (heard_at, is_asked) = (Instant::now(), true);
                    self.send(socket, Message::Ping(Bytes::new())).await?;
                }
            }
        }
    }

    /// What came from the peer, if it is a turn.
    async fn heard(
        &self,
        socket: &mut Socket<'_>,
        came: Option<Result<Message, Error>>,
    ) -> Result<Option<Utf8Bytes>, End> {
        self.activity.touch();
        match came {
            Some(Ok(Message::Text(text))) => Ok(Some(text)),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(None),
            Some(Ok(Message::Binary(_))) => Err(End::Told(CloseCode::Unsupported)),
            Some(Ok(Message::Close(_))) | None => Err(End::Gone),
            Some(Err(Error::Capacity(_))) => {
                self.say(socket, Utf8Bytes::from_static(TOO_LARGE)).await?;
                Err(End::Told(CloseCode::Size))
            }
            Some(Err(_)) => Err(End::Gone),
        }
    }

    /// Waits for something, and hears meanwhile whether the peer goes away. What it wants next is kept; then it is heard no more.
    async fn beside<T>(
        &self,
        socket: &mut Socket<'_>,
        next: &mut Option<Utf8Bytes>,
        work: impl Future<Output = T>,
    ) -> Result<T, End> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                () = self.activity.next_wish() => if self.activity.wished() == Wish::Close {
                    return Err(End::Closing);
                },
                done = work.as_mut() => return Ok(done),
                came = socket.next(), if next.is_none() => *next = self.heard(socket, came).await?,
            }
        }
    }

    async fn turn(
        &self,
        socket: &mut Socket<'_>,
        message: Utf8Bytes,
        kept: &F::Turns,
        next: &mut Option<Utf8Bytes>,
    ) -> Result<(), End> {
        let Shared { front, memory, stats, clock, .. } = self.shared;
        let (requests_before, in_flight) = self.activity.request();
        count(&stats.requests);
        let Upgraded { credentials, traceparent, dialect, .. } = self.upgraded;
        let head = Head {
            endpoint: Endpoint::Responses,
            credentials: credentials.clone(),
            peer: self.peer,
            traceparent: traceparent.clone(),
            dialect: dialect.clone(),
            started: clock.now(),
            started_mono_ns: clock.monotonic_nanos(),
            connection: Some(ConnectionTrace { requests_before, open_ns: self.activity.age_ns() }),
        };
        let message = Bytes::from(message);
        let admitted = match front.admit(head) {
            Ok(admitted) => admitted,
            Err(refusal) => return self.refused(socket, refusal, kept, &message).await,
        };
        let taken = memory.for_call_of(admitted.payer().clone());
        let bytes = message.len();
        let body = match front.turn(message.clone()) {
            Ok(body) => body,
            Err(refusal) => return self.refused(socket, refusal, kept, &message).await,
        };
        drop(message);
        let body = Turn { body, bytes, taken: &taken };
        let answer = self.beside(socket, next, front.call(front.in_turns(admitted, kept), body)).await?;
        if answer.status != 200 {
            return self.say_refused(socket, answer).await;
        }
        match answer.body {
            AnswerBody::Whole(body) => match Utf8Bytes::try_from(body) {
                Ok(text) => self.say(socket, text).await?,
                Err(_) => return Err(End::Told(CloseCode::Error)),
            },
            AnswerBody::Stream(mut frames) | AnswerBody::Long { body: mut frames, .. } => {
                frames.leads_to(Arc::<Activity>::clone(in_flight.activity()));
                let told = self.tell(socket, next, &mut frames).await;
                match &told {
                    Err(End::Stalled) => frames.give_up(GiveUp::ReaderStalled),
                    Err(End::Closing) => frames.give_up(GiveUp::ShuttingDown),
                    Ok(()) | Err(End::Gone | End::Told(_)) => {}
                }
                told?;
            }
        }
        drop(in_flight);
        Ok(())
    }

    /// The events of an answer, each as a message.
    async fn tell(
        &self,
        socket: &mut Socket<'_>,
        next: &mut Option<Utf8Bytes>,
        frames: &mut F::Stream,
    ) -> Result<(), End> {
        let mut events = Events::default();
        loop {
            let frame = self.beside(socket, next, poll_fn(|cx| frames.poll_frame(cx))).await?;
            match frame {
                None => return Ok(()),
                Some(Err(_)) => return Err(End::Told(CloseCode::Error)),
                Some(Ok(bytes)) => events.push(&bytes).map_err(|_| End::Told(CloseCode::Error))?,
            }
            self.activity.touch();
            let mut any = false;
            while let Some(event) = events.next() {
                let Ok(text) = Utf8Bytes::try_from(event) else { return Err(End::Told(CloseCode::Error)) };
                let fed = timeout(self.patience, socket.feed(Message::Text(text))).await;
                fed.map_err(|_| End::Stalled)?.map_err(|_| End::Gone)?;
                any = true;
            }
            if any {
                let flushed = timeout(self.patience, socket.flush()).await;
                flushed.map_err(|_| End::Stalled)?.map_err(|_| End::Gone)?;
            }
        }
    }

    /// A refusal of a message that has become no call, as the event that says so.
    async fn refused(
        &self,
        socket: &mut Socket<'_>,
        answer: Answer<F::Stream>,
        kept: &F::Turns,
        message: &[u8],
    ) -> Result<(), End> {
        self.shared.front.turn_refused(kept, message);
        self.say_refused(socket, answer).await
    }

    async fn say_refused(&self, socket: &mut Socket<'_>, answer: Answer<F::Stream>) -> Result<(), End> {
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
            Ok(text) => self.say(socket, text).await,
            Err(_) => Err(End::Told(CloseCode::Error)),
        }
    }

    async fn say(&self, socket: &mut Socket<'_>, text: Utf8Bytes) -> Result<(), End> {
        self.send(socket, Message::Text(text)).await
    }

    async fn send(&self, socket: &mut Socket<'_>, message: Message) -> Result<(), End> {
        let sent = timeout(self.patience, socket.send(message)).await;
        sent.map_err(|_| End::Stalled)?.map_err(|_| End::Gone)
    }

    async fn part(&self, mut socket: Socket<'_>, end: End) {
        let code = match end {
            End::Told(code) => code,
            End::Gone => CloseCode::Normal,
            End::Stalled => {
                count(&self.shared.stats.write_timeouts);
                return;
            }
            End::Closing => CloseCode::Away,
        };
        let reason = if code == CloseCode::Unsupported { "turns are messages of text" } else { "" };
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
        // In time or not: the connection ends.
        let _ = timeout(PARTING, async {
            socket.close(Some(frame)).await?;
            while let Some(Ok(_)) = socket.next().await {}
            Ok::<(), Error>(())
        })
        .await;
    }
}

/// The body of a turn, which is here.
struct Turn<'a> {
    body: Bytes,
    /// Of the message that it came in.
    bytes: usize,
    taken: &'a Reserved,
}

impl BodySource for Turn<'_> {
    async fn read(self) -> Result<Bytes, BodyRefusal> {
        take(self.taken, self.bytes)?;
        Ok(self.body)
    }
}
