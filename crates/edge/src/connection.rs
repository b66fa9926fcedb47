//! One connection from its first byte to its last: the TLS handshake, HTTP/1.1 or HTTP/2, and the time limits that the
//! libraries do not enforce. Must not know routes.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use headrace_call_api::AbortReason;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use crate::EdgeConfig;
use crate::activity::{ConnectionActivity, ConnectionTimeouts, ServerWish, TimeoutVerdict};
use crate::client_certificates::client_certificate;
use crate::socket::WatchedSocket;
use crate::stats::{EdgeStats, count};
use crate::tls::{ALPN_H2, ALPN_HTTP11};
use crate::transport::{DuplexStream, WatchedTransport};

/// The start of an HTTP/2 connection (RFC 9113 §3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum number of headers in an HTTP/1 request. This is the library's default. With another value the library would
/// allocate them on the heap.
pub(crate) const MOST_HTTP1_HEADERS: usize = 100;
/// Bytes that are read to detect the HTTP version. No more than that, because a connection keeps this buffer until
/// bytes arrive.
const SNIFF_BYTES: usize = HTTP2_PREFACE.len();
/// Interval of pings to an HTTP/2 peer. `HTTP2_PING_WAIT` is the maximum wait for an answer.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(30);
const HTTP2_PING_WAIT: Duration = Duration::from_secs(20);
/// How long further bytes of a refused peer are read and discarded. Without that, closing could destroy the refusal
/// before the peer has read it (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(1);
/// How long a displaced connection waits for its first request, which may be on its way.
const LAST_CHANCE: Duration = Duration::from_millis(100);
/// Maximum number of bytes that are discarded: the largest body of the default configuration.
const MOST_LINGER_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that an HTTP/2 peer may send before the server has read them: per request, and for all requests of a
/// connection.
const HTTP2_STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;
/// Maximum size of an HTTP/2 frame: the smallest limit that the protocol allows.
const HTTP2_FRAME_BYTES: u32 = 16 * 1024;
/// Size of the HTTP/2 header compression table (RFC 7541 §4.2), in bytes: the protocol's default.
const HTTP2_HEADER_TABLE_BYTES: u32 = 4 * 1024;

/// Protocol settings for the connections of one listener.
pub(crate) struct ConnectionSetup {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    tls: Option<TlsAcceptor>,
    tls_buffer_bytes: usize,
    patience: ConnectionTimeouts,
    stats: Arc<EdgeStats>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpVersion {
    Http1,
    Http2,
}

/// How a connection ended.
#[derive(Debug)]
enum ConnectionEnd {
    /// By itself, or because the server shuts down.
    Closed,
    /// With bytes that the library did not accept as a request.
    Unread(UnreadRequest),
    SlowReader,
    /// Not ended: the connection is idle, and its buffers are freed.
    Resting,
    /// Not ended: the connection continues with another protocol.
    Switched,
}

/// Continues a connection that has switched to another protocol.
pub(crate) trait ProtocolSwitch: Send + Sync {
    /// Serves the peer until the connection ends.
    fn serve<'a>(&'a self, io: &'a mut dyn DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

/// For listeners whose connections never switch.
pub(crate) struct NoSwitch;

impl ProtocolSwitch for NoSwitch {
    fn serve<'a>(&'a self, _io: &'a mut dyn DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::ready(()))
    }
}

/// Why a peer's request was not read to the end.
#[derive(Debug)]
pub(crate) enum UnreadRequest {
    /// The headers were not complete in time.
    Slow,
    /// The head is too large.
    TooLarge,
    /// The head is invalid, for this reason.
    Malformed(String),
}

impl ConnectionSetup {
    /// Creates the settings from the configuration, with TLS if `tls` is set.
    pub(crate) fn new(config: &EdgeConfig, tls: Option<TlsAcceptor>, stats: Arc<EdgeStats>) -> Self {
        let mut http1 = http1::Builder::new();
        // The library's own header timeout also ends idle connections, and sends nothing to the peer. `watch` handles
        // both.
        http1
            .header_read_timeout(None)
            .max_header_size(config.max_header_bytes)
            .max_buf_size(config.http_buffer_bytes());
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            // Above this size the library itself answers, without a body.
            .max_header_list_size(
                u32::try_from(config.max_header_bytes.saturating_mul(2)).unwrap_or(u32::MAX),
            )
            .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
            .max_frame_size(HTTP2_FRAME_BYTES)
            .header_table_size(HTTP2_HEADER_TABLE_BYTES)
            .max_concurrent_streams(config.max_concurrent_streams)
            .max_pending_accept_reset_streams(config.max_pending_reset_streams)
            .max_local_error_reset_streams(config.max_local_reset_streams)
            .max_send_buf_size(config.http_buffer_bytes())
            .keep_alive_interval(HTTP2_PING_EVERY)
            .keep_alive_timeout(HTTP2_PING_WAIT);
        Self {
            http1,
            http2,
            tls,
            tls_buffer_bytes: config.tls_buffer_bytes(),
            patience: ConnectionTimeouts {
                header: config.header_timeout,
                write: config.write_timeout,
                idle: config.idle_timeout,
            },
            stats,
        }
    }

    /// Returns whether the listener uses TLS.
    pub(crate) const fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns how long a peer may leave its waiting bytes unread.
    pub(crate) const fn write_patience(&self) -> Duration {
        self.patience.write
    }

    /// Serves one peer until the connection ends. If the connection switches to another protocol, `switch` serves
    /// it. `refusal_bytes` creates the HTTP/1.1 answer for a peer whose request was not read to the end.
    pub(crate) async fn serve<S, B>(
        &self,
        tcp: TcpStream,
        activity: &Arc<ConnectionActivity>,
        service: S,
        (refusal_bytes, switch): (impl FnOnce(UnreadRequest) -> Vec<u8>, &dyn ProtocolSwitch),
    ) where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Unpin,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let tcp = WatchedSocket::new(tcp, Arc::clone(activity));
        match &self.tls {
            None => self.serve_over(tcp, None, activity, service, (refusal_bytes, switch)).await,
            // Boxed, so that a plain connection does not reserve memory for it.
            Some(acceptor) => {
                Box::pin(self.serve_over_tls(acceptor, tcp, activity, service, (refusal_bytes, switch)))
                    .await;
            }
        }
    }

    async fn serve_over_tls<S, B>(
        &self,
        acceptor: &TlsAcceptor,
        tcp: WatchedSocket<TcpStream>,
        activity: &Arc<ConnectionActivity>,
        service: S,
        (refusal_bytes, switch): (impl FnOnce(UnreadRequest) -> Vec<u8>, &dyn ProtocolSwitch),
    ) where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Unpin,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let buffer = self.tls_buffer_bytes;
        let shaking = acceptor.accept_with(tcp, |tls| tls.set_buffer_limit(Some(buffer)));
        let mut shaking = pin!(timeout(self.patience.header, shaking));
        let shaken = loop {
            tokio::select! {
                shaken = shaking.as_mut() => break shaken,
                () = activity.next_wish() => if activity.wished() >= ServerWish::Finish {
                    return;
                },
            }
        };
        if let Ok(Err(error)) = &shaken {
            tracing::debug!(%error, "a TLS handshake failed");
        }
        let Ok(Ok(tls)) = shaken else {
            count(&self.stats.tls_failures);
            return;
        };
        let shown = tls.get_ref().1.peer_certificates().and_then(<[_]>::first);
        if let Some(certificate) = shown.and_then(client_certificate) {
            activity.show_certificate(certificate);
        }
        let protocol = match tls.get_ref().1.alpn_protocol() {
            Some(ALPN_H2) => Some(HttpVersion::Http2),
            Some(ALPN_HTTP11) => Some(HttpVersion::Http1),
            _ => None,
        };
        self.serve_over(tls, protocol, activity, service, (refusal_bytes, switch)).await;
    }

    async fn serve_over<I, S, B>(
        &self,
        mut io: I,
        protocol: Option<HttpVersion>,
        activity: &Arc<ConnectionActivity>,
        service: S,
        (refusal_bytes, switch): (impl FnOnce(UnreadRequest) -> Vec<u8>, &dyn ProtocolSwitch),
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send,
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Unpin,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (protocol, ahead) = match protocol {
            Some(protocol) => (protocol, Bytes::new()),
            None => match self.first_bytes(&mut io, activity).await {
                Some(sniffed) => sniffed,
                None => return,
            },
        };
        match protocol {
            HttpVersion::Http1 => {
                let mut transport = WatchedTransport::http1(io, ahead, Arc::clone(activity));
                let end = self.speak_http1(&mut transport, service, activity).await;
                if matches!(end, ConnectionEnd::Switched) {
                    return switch.serve(&mut transport).await;
                }
                // Boxed, because it holds a buffer for what the peer still sends.
                Box::pin(self.finish(&mut transport, end, activity, refusal_bytes)).await;
            }
            HttpVersion::Http2 => {
                let mut transport = WatchedTransport::http2(io, ahead, Arc::clone(activity));
                // Boxed, so that connections of other kinds do not reserve memory for it.
                let mut connection =
                    Box::pin(self.http2.serve_connection(TokioIo::new(&mut transport), service));
                let finish = http2::Connection::graceful_shutdown;
                let watched = (HttpVersion::Http2, &**activity, false);
                let end = Box::pin(self.watch(connection.as_mut(), finish, watched)).await;
                self.tally(&end);
            }
        }
    }

    /// Reads the first bytes of a connection. Returns `None` if none came in time. A connection that is displaced
    /// meanwhile is still served if its request was already on its way.
    async fn first_bytes<I: AsyncRead + Unpin>(
        &self,
        io: &mut I,
        activity: &ConnectionActivity,
    ) -> Option<(HttpVersion, Bytes)> {
        let mut sniffed = pin!(timeout(self.patience.header, sniff(io)));
        loop {
            tokio::select! {
                biased;
                result = sniffed.as_mut() => return result.ok()?.ok()?,
                () = activity.next_wish() => match activity.wished() {
                    ServerWish::Serve | ServerWish::Retire => {}
                    ServerWish::Close => return None,
                    ServerWish::Finish | ServerWish::Yield => {
                        let result = timeout(LAST_CHANCE, sniffed).await.ok()?;
                        // The request is read and answered first. Then the connection acts on the wish.
                        activity.remind();
                        return result.ok()?.ok()?;
                    }
                },
            }
        }
    }

    /// Serves HTTP/1. While the peer is idle, the library's buffers are freed. An idle connection then has memory only
    /// for its first bytes.
    async fn speak_http1<I, S, B>(
        &self,
        transport: &mut WatchedTransport<I>,
        mut service: S,
        activity: &Arc<ConnectionActivity>,
    ) -> ConnectionEnd
    where
        I: AsyncRead + AsyncWrite + Unpin + Send,
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Unpin,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut rests = true;
        loop {
            let mut connection =
                Box::new(self.http1.serve_connection(TokioIo::new(&mut *transport), service));
            let finish = http1::Connection::graceful_shutdown;
            let watched = (HttpVersion::Http1, &**activity, rests);
            let end = Box::pin(self.watch(Pin::new(&mut *connection), finish, watched)).await;
            if matches!(end, ConnectionEnd::Closed) && activity.has_switched() {
                let read = connection.into_parts().read_buf;
                transport.switch(read);
                return ConnectionEnd::Switched;
            }
            if !matches!(end, ConnectionEnd::Resting) {
                return end;
            }
            let parts = connection.into_parts();
            let read = parts.read_buf;
            service = parts.service;
            // If a peer leaves bytes between two requests, its connection is not put to rest again for them.
            rests = read.is_empty();
            transport.take_back(read);
            if !self.rest(transport, activity).await {
                // The library would have ended the connection in the same way.
                let _ = timeout(LINGER, transport.shutdown()).await;
                return ConnectionEnd::Closed;
            }
        }
    }

    /// Waits for more bytes of a peer with nothing in flight. Returns whether any came.
    async fn rest<I: AsyncRead + Unpin>(
        &self,
        transport: &mut WatchedTransport<I>,
        activity: &ConnectionActivity,
    ) -> bool {
        let mut look = pin!(sleep_until(Instant::now()));
        loop {
            tokio::select! {
                biased;
                came = transport.more_came() => return came,
                () = activity.next_wish() => if activity.wished() >= ServerWish::Finish {
                    return false;
                },
                () = look.as_mut() => match activity.judge(&self.patience) {
                    TimeoutVerdict::Fine(next) => look.as_mut().reset(next),
                    TimeoutVerdict::SlowHeaders | TimeoutVerdict::SlowReader | TimeoutVerdict::Idle => return false,
                },
            }
        }
    }

    /// Drives a connection and enforces its limits. If `rests` is set, returns [`ConnectionEnd::Resting`] once the connection has
    /// been idle for a while.
    async fn watch<C>(
        &self,
        mut connection: Pin<&mut C>,
        finish: impl Fn(Pin<&mut C>),
        (protocol, activity, rests): (HttpVersion, &ConnectionActivity, bool),
    ) -> ConnectionEnd
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let timer = pin!(sleep_until(Instant::now()));
        let mut look = TimeoutCheck::at(timer);
        let mut wish = pin!(activity.next_wish());
        let mut is_asked_to_finish = false;
        loop {
            tokio::select! {
                biased;
                result = connection.as_mut() => {
                    let Err(error) = result else { return ConnectionEnd::Closed };
                    tracing::debug!(%error, "a connection ended");
                    return ended_by(&error);
                }
                () = wish.as_mut() => {
                    match activity.wished() {
                        ServerWish::Serve => {}
                        // HTTP/2: sends GOAWAY, and the streams that are on their way are served. A peer without a
                        // request yet receives GOAWAY with its first one, because clients open no stream after GOAWAY
                        // and would lose that request. HTTP/1: each answer says `connection: close`.
                        ServerWish::Retire if protocol == HttpVersion::Http2 && activity.requests() > 0 => {
                            finish(connection.as_mut());
                        }
                        ServerWish::Retire => {}
                        ServerWish::Finish => {
                            is_asked_to_finish = true;
                            finish(connection.as_mut());
                            look.reset(Instant::now());
                        }
                        ServerWish::Yield if activity.gives_way_since().is_none() => finish(connection.as_mut()),
                        ServerWish::Yield => return ConnectionEnd::Closed,
                        ServerWish::Close => {
                            activity.set_abort_reason(AbortReason::ShuttingDown);
                            return ConnectionEnd::Closed;
                        }
                    }
                    wish.set(activity.next_wish());
                }
                () = &mut look => match activity.judge(&self.patience) {
                    TimeoutVerdict::Fine(_) if rests && activity.may_rest() => return ConnectionEnd::Resting,
                    TimeoutVerdict::Fine(next) => look.reset(next),
                    TimeoutVerdict::SlowHeaders => return ConnectionEnd::Unread(UnreadRequest::Slow),
                    TimeoutVerdict::SlowReader => {
                        activity.set_abort_reason(AbortReason::ReaderStalled);
                        return ConnectionEnd::SlowReader;
                    }
                    TimeoutVerdict::Idle if is_asked_to_finish => return ConnectionEnd::Closed,
                    TimeoutVerdict::Idle => {
                        is_asked_to_finish = true;
                        finish(connection.as_mut());
                        look.reset(Instant::now() + activity.parting(&self.patience));
                    }
                },
            }
        }
    }

    /// Ends an HTTP/1 connection, with a last answer if one is due.
    async fn finish<I>(
        &self,
        transport: &mut WatchedTransport<I>,
        end: ConnectionEnd,
        activity: &ConnectionActivity,
        refusal_bytes: impl FnOnce(UnreadRequest) -> Vec<u8>,
    ) where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        self.tally(&end);
        match end {
            ConnectionEnd::SlowReader | ConnectionEnd::Resting | ConnectionEnd::Switched => {}
            ConnectionEnd::Unread(UnreadRequest::Slow)
                if activity.is_in_head() && !activity.is_answering() =>
            {
                refuse_and_close(transport, &refusal_bytes(UnreadRequest::Slow)).await;
            }
            ConnectionEnd::Unread(fault) if transport.owes_a_refusal() => {
                refuse_and_close(transport, &refusal_bytes(fault)).await;
            }
            ConnectionEnd::Closed | ConnectionEnd::Unread(_) => {
                if activity.left_body_unread() && activity.wished() < ServerWish::Yield {
                    // The bytes are discarded, so they are not parsed any more.
                    transport.switch(Bytes::new());
                    linger(transport).await;
                }
            }
        }
    }

    fn tally(&self, end: &ConnectionEnd) {
        match end {
            ConnectionEnd::Unread(UnreadRequest::Slow) => count(&self.stats.header_timeouts),
            ConnectionEnd::Closed
            | ConnectionEnd::Unread(_)
            | ConnectionEnd::Resting
            | ConnectionEnd::Switched => {}
            ConnectionEnd::SlowReader => count(&self.stats.write_timeouts),
        }
    }
}

/// A timer for the next check of a connection. It is polled together with the connection, far more often than a check
/// is due. It therefore polls the underlying timer only when that has elapsed or another task must be woken.
struct TimeoutCheck<'a> {
    timer: Pin<&'a mut Sleep>,
    /// The task that the timer wakes.
    wakes: Option<Waker>,
}

impl<'a> TimeoutCheck<'a> {
    fn at(timer: Pin<&'a mut Sleep>) -> Self {
        Self { timer, wakes: None }
    }

    fn reset(&mut self, at: Instant) {
        self.timer.as_mut().reset(at);
        self.wakes = None;
    }
}

impl Future for TimeoutCheck<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if !self.timer.is_elapsed() && self.wakes.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        // Without `unconstrained`, a task that has used up its budget would not be registered with the timer.
        let polled = pin!(unconstrained(self.timer.as_mut())).poll(cx);
        self.wakes = polled.is_pending().then(|| cx.waker().clone());
        polled
    }
}

fn ended_by(error: &hyper::Error) -> ConnectionEnd {
    if error.is_parse_too_large() {
        ConnectionEnd::Unread(UnreadRequest::TooLarge)
    } else if error.is_parse() {
        ConnectionEnd::Unread(UnreadRequest::Malformed(error.to_string()))
    } else {
        ConnectionEnd::Closed
    }
}

/// Detects HTTP/2 or HTTP/1 by the first bytes, and returns those bytes. Returns `None` if the peer left.
async fn sniff<I: AsyncRead + Unpin>(io: &mut I) -> io::Result<Option<(HttpVersion, Bytes)>> {
    let mut ahead = BytesMut::with_capacity(SNIFF_BYTES);
    loop {
        if io.read_buf(&mut ahead).await? == 0 {
            return Ok(None);
        }
        let seen = ahead.len().min(HTTP2_PREFACE.len());
        if ahead.get(..seen) != HTTP2_PREFACE.get(..seen) {
            return Ok(Some((HttpVersion::Http1, ahead.freeze())));
        }
        if seen == HTTP2_PREFACE.len() {
            return Ok(Some((HttpVersion::Http2, ahead.freeze())));
        }
    }
}

/// Writes a whole HTTP/1.1 response, as far as the peer accepts it, and closes.
pub(crate) async fn refuse_and_close<I: AsyncRead + AsyncWrite + Unpin>(io: &mut I, response: &[u8]) {
    let closed = timeout(LINGER, async {
        io.write_all(response).await?;
        io.shutdown().await
    });
    if matches!(closed.await, Ok(Ok(()))) {
        linger(io).await;
    }
}

/// Reads and discards what a refused peer still sends, for a bounded time and a bounded number of bytes.
pub(crate) async fn linger<I: AsyncRead + Unpin + ?Sized>(io: &mut I) {
    let mut scratch = [0; 4 * 1024];
    let mut left = MOST_LINGER_BYTES;
    let reading = async {
        while left > 0
            && let Ok(read @ 1..) = io.read(&mut scratch).await
        {
            left = left.saturating_sub(read);
        }
    };
    let _ = timeout(LINGER, reading).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_comes_when_it_is_due_and_wakes_whoever_asked_last() {
        let second = Duration::from_secs(1);
        let timer = pin!(sleep_until(Instant::now() + second));
        let mut look = TimeoutCheck::at(timer);
        let (first, other) = (Arc::new(WakeCounter::default()), Arc::new(WakeCounter::default()));
        let (first_waker, other_waker) = (Waker::from(Arc::clone(&first)), Waker::from(Arc::clone(&other)));
        let poll =
            |look: &mut TimeoutCheck<'_>, by: &Waker| Pin::new(look).poll(&mut Context::from_waker(by));
        let woken = || (first.0.load(Ordering::Acquire), other.0.load(Ordering::Acquire));
        for _ in 0..3 {
            assert!(poll(&mut look, &first_waker).is_pending());
        }
        assert!(poll(&mut look, &other_waker).is_pending());
        tokio::time::sleep(2 * second).await;
        assert_eq!(woken(), (0, 1));
        assert!(poll(&mut look, &other_waker).is_ready());
        look.reset(Instant::now() + second);
        assert!(poll(&mut look, &other_waker).is_pending());
        look.reset(Instant::now() + 3 * second);
        assert!(poll(&mut look, &other_waker).is_pending());
        tokio::time::sleep(2 * second).await;
        assert_eq!(woken(), (0, 1), "not before its new time");
        assert!(poll(&mut look, &other_waker).is_pending());
        tokio::time::sleep(2 * second).await;
        assert_eq!(woken(), (0, 2));
        assert!(poll(&mut look, &other_waker).is_ready());
    }
}
