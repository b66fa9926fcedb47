//! The admin listener's socket, with limits on connections and on the time for a request head. Knows bytes and HTTP,
//! but no route.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower_service::Service;

use crate::connections::{AdminConnection, ConnectionEntry, ConnectionTable};

/// Maximum number of ports that are tried in turn if the first one is taken.
pub const MAX_PORTS_TRIED: u16 = 20;
/// Maximum number of open connections, unless the program sets fewer. If one more arrives, the connection that has had
/// no operator's request for longest is closed.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of displaced connections that are not closed yet. Beyond it no new connection is accepted.
const MAX_CLOSING: usize = 16;
/// Connections to close at once if there are no file descriptors left.
const CLOSED_AT_ONCE: usize = 4;
/// Maximum time for a request head, and maximum silence between requests. A full table closes connections earlier.
/// earlier.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for which a peer may accept none of the bytes that wait for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between checks of [`WRITE_TIMEOUT`].
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Maximum size of request line and headers together, in bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Maximum number of headers.
const MAX_HEADERS: usize = 64;
/// Pause after a failed `accept`, in which file descriptors may become free.
const PAUSE: Duration = Duration::from_millis(50);

/// The connection that a request came on.
#[derive(Debug, Clone)]
pub(crate) struct OnConnectionLine(pub(crate) Arc<AdminConnection>);

/// Maximum time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, with or without TLS.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A future of a connection that is ready after its handshake.
pub type Secured = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send>>;

/// Wraps a socket before HTTP begins, for example with TLS.
pub type Secure = Arc<dyn Fn(TcpStream) -> Secured + Send + Sync>;

/// A listening socket that is not served yet.
#[derive(Debug)]
pub struct AdminSocket {
    socket: std::net::TcpListener,
    at: SocketAddr,
    most_connections: usize,
}

impl AdminSocket {
    /// Binds an address. With `or_next`, tries the following ports if the first one is taken.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn bind(wanted: SocketAddr, or_next: bool) -> io::Result<Self> {
        let further = if or_next && wanted.port() != 0 { MAX_PORTS_TRIED } else { 1 };
        let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
        for step in 0..further {
            let Some(port) = wanted.port().checked_add(step) else { break };
            match std::net::TcpListener::bind(SocketAddr::new(wanted.ip(), port)) {
                Ok(socket) => {
                    socket.set_nonblocking(true)?;
                    let at = socket.local_addr()?;
                    return Ok(Self { socket, at, most_connections: MAX_CONNECTIONS });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Limits the listener to `most` open connections. Values outside 1 to 256 are clamped.
    #[must_use]
    pub fn with_most_connections(self, most: usize) -> Self {
        Self { most_connections: most.clamp(1, MAX_CONNECTIONS), ..self }
    }

    /// Maximum number of open connections.
    pub(crate) const fn most_connections(&self) -> usize {
        self.most_connections
    }

    /// The bound address.
    pub const fn local_addr(&self) -> SocketAddr {
        self.at
    }

    /// Serves `router` until the future is dropped. Needs a Tokio runtime.
    pub(crate) async fn serve(self, router: Router, secure: Option<Secure>) -> io::Result<()> {
        let listener = TcpListener::from_std(self.socket)?;
        let lines = ConnectionTable::new(self.most_connections);
        let descriptors = Arc::new(Semaphore::new(self.most_connections.saturating_add(MAX_CLOSING)));
        // Dropping the set closes its connections.
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let descriptor = tokio::select! {
                descriptor = Arc::clone(&descriptors).acquire_owned() => descriptor,
                Some(_) = connections.join_next() => continue,
            };
            let Ok(descriptor) = descriptor else { return Ok(()) };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let Ok((stream, peer)) = accepted else {
                lines.displace_up_to(CLOSED_AT_ONCE);
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // If every other connection serves an operator, this one is closed.
            let Some(entry) = lines.add(peer.ip()) else { continue };
            let (router, secure) = (router.clone(), secure.clone());
            connections.spawn(async move {
                tokio::select! {
                    () = converse(stream, &entry, router, secure) => {}
                    () = entry.line.gives_way() => {}
                }
                drop((entry, descriptor));
            });
        }
    }
}

async fn converse(stream: TcpStream, entry: &ConnectionEntry, router: Router, secure: Option<Secure>) {
    // Sends small answers without delay.
    let _ = stream.set_nodelay(true);
    match secure {
        None => speak(stream, entry, router).await,
        Some(secure) => {
            // A peer that does not speak TLS, or is too slow, is disconnected.
            let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, secure(stream)).await;
            if let Ok(Ok(stream)) = handshake {
                speak(stream, entry, router).await;
            }
        }
    }
}

async fn speak(stream: impl ByteStream + 'static, entry: &ConnectionEntry, router: Router) {
    let line = Arc::clone(&entry.line);
    let service = service_fn(move |request: Request<Incoming>| {
        line.touch();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(OnConnectionLine(Arc::clone(&line)));
        router.clone().call(request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS);
    let (stream, blocked) = WatchedStream::new(stream);
    tokio::select! {
        // An error ends only this connection, so it is ignored.
        _ = http.serve_connection(TokioIo::new(stream), service) => {}
        () = blocked.for_too_long() => {}
    }
}

/// A stream that records since when its peer has accepted no bytes.
struct WatchedStream<S> {
    stream: S,
    blocked: Arc<BlockedSince>,
}

/// The time since which a peer has accepted no bytes. `None` while it accepts them.
#[derive(Debug, Default)]
struct BlockedSince(Mutex<Option<Instant>>);

impl BlockedSince {
    async fn for_too_long(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.0.lock().is_some_and(|since| since.elapsed() >= WRITE_TIMEOUT) {
                return;
            }
        }
    }
}

impl<S> WatchedStream<S> {
    fn new(stream: S) -> (Self, Arc<BlockedSince>) {
        let blocked = Arc::<BlockedSince>::default();
        (Self { stream, blocked: Arc::clone(&blocked) }, blocked)
    }

    fn note<T>(&self, result: &Poll<io::Result<T>>) {
        let mut since = self.blocked.0.lock();
        *since = result.is_pending().then(|| since.unwrap_or_else(Instant::now));
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.note(&result);
        result
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.note(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn the_next_free_port_is_taken_where_that_is_wanted() {
        let first = AdminSocket::bind(([127, 0, 0, 1], 0).into(), true).unwrap();
        let taken = first.local_addr();
        assert!(AdminSocket::bind(taken, false).is_err());
        match AdminSocket::bind(taken, true) {
            Ok(next) => {
                let step = next.local_addr().port() - taken.port();
                assert!((1..MAX_PORTS_TRIED).contains(&step), "{step}");
            }
            // The last ports of the range have too few successors.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::AddrInUse),
        }
    }

    /// Starts a listener that answers every request with `fine`. Returns its address.
    async fn served(most: usize) -> SocketAddr {
        let listener =
            AdminSocket::bind(([127, 0, 0, 1], 0).into(), false).unwrap().with_most_connections(most);
        let at = listener.local_addr();
        let router = Router::new().fallback(|| async { "fine" });
        tokio::spawn(listener.serve(router, None));
        at
    }

    async fn ask(at: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(at).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn half_heads_and_idle_connections_give_way_to_whoever_asks() {
        let at = served(8).await;
        let mut strangers = Vec::new();
        for n in 0..40 {
            let mut stream = TcpStream::connect(at).await.unwrap();
            let half: &[u8] = if n % 2 == 0 { b"GET / HT" } else { b"" };
            // The oldest connections are already closed.
            let _ = stream.write_all(half).await;
            strangers.push(stream);
        }
        for _ in 0..10 {
            let answer = ask(at).await.unwrap();
            assert!(answer.ends_with("fine"), "{answer}");
        }
        let mut first = strangers.remove(0);
        let closed = first.read(&mut [0; 8]).await;
        assert!(matches!(closed, Ok(0) | Err(_)), "the oldest gave way: {closed:?}");
    }
}
