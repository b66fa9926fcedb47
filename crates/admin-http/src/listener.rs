//! The socket: a listener of its own, bounds on connections and on the time of a head. Knows bytes and HTTP, no route.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower_service::Service;

/// Ports that are tried, one after the other, where the first is taken.
pub const MAX_PORTS_TRIED: u16 = 20;
/// Connections at once; more wait.
const MAX_CONNECTIONS: usize = 256;
/// How long a head may take, and a connection may be silent between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest request line and headers together, in bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Most headers.
const MAX_HEADERS: usize = 64;
/// How long to wait where no connection can be taken: file descriptors come back.
const PAUSE: Duration = Duration::from_millis(50);

/// The other end's address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// How long a handshake may take before HTTP begins.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, whatever it travels in.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A connection once its handshake is over.
pub type Secured = Pin<Box<dyn Future<Output = io::Result<Box<dyn Connection>>> + Send>>;

/// What stands between a socket and HTTP, such as TLS.
pub type Secure = Arc<dyn Fn(TcpStream) -> Secured + Send + Sync>;

/// A socket that listens, and is not served yet.
#[derive(Debug)]
pub struct Listener {
    socket: std::net::TcpListener,
    at: SocketAddr,
}

impl Listener {
    /// Takes an address; with `or_next`, one of the ports behind it where it is taken.
    ///
    /// # Errors
    /// The operating system's.
    pub fn bind(wanted: SocketAddr, or_next: bool) -> io::Result<Self> {
        let further = if or_next && wanted.port() != 0 { MAX_PORTS_TRIED } else { 1 };
        let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
        for step in 0..further {
            let Some(port) = wanted.port().checked_add(step) else { break };
            match std::net::TcpListener::bind(SocketAddr::new(wanted.ip(), port)) {
                Ok(socket) => {
                    socket.set_nonblocking(true)?;
                    let at = socket.local_addr()?;
                    return Ok(Self { socket, at });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Where it listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.at
    }

    /// Answers until the future is dropped. Within a Tokio runtime.
    pub(crate) async fn serve(self, router: Router, secure: Option<Secure>) -> io::Result<()> {
        let listener = TcpListener::from_std(self.socket)?;
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        // Dropping the set ends its connections.
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let (router, secure) = (router.clone(), secure.clone());
            connections.spawn(async move {
                // Small answers should not wait for one another.
                let _ = stream.set_nodelay(true);
                match secure {
                    None => converse(stream, peer, router).await,
                    Some(secure) => {
                        // Whoever speaks no TLS, or is too slow, is let go of.
                        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, secure(stream)).await;
                        if let Ok(Ok(stream)) = handshake {
                            converse(stream, peer, router).await;
                        }
                    }
                }
                drop(place);
            });
        }
    }
}

async fn converse(stream: impl Connection + 'static, peer: SocketAddr, router: Router) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer.ip()));
        router.clone().call(request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS);
    // Whoever breaks off has seen why.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_free_port_is_taken_where_that_is_wanted() {
        let first = Listener::bind(([127, 0, 0, 1], 0).into(), true).unwrap();
        let taken = first.local_addr();
        assert!(Listener::bind(taken, false).is_err());
        match Listener::bind(taken, true) {
            Ok(next) => {
                let step = next.local_addr().port() - taken.port();
                assert!((1..MAX_PORTS_TRIED).contains(&step), "{step}");
            }
            // At the end of the ports there is none behind.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::AddrInUse),
        }
    }
}
