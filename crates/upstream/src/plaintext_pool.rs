//! The plaintext pool: reusable HTTP/1.1 connections to a server without TLS and without a proxy. Most servers in an
//! operator's own network are reached like this. At a few hundred thousand events per second, the layers of a general
//! HTTP client cost more than the call. Must not know a call or a dialect.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderValue};
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tower_service::Service;

use crate::address::ServerAddress;
use crate::spec::{UpstreamSpec, UseHttp2};

/// A plaintext pool for one server.
pub(crate) struct PlaintextPool {
    /// Target of the connections: scheme, host and port.
    to: Uri,
    host: HeaderValue,
    connector: HttpConnector,
    connect_within: Duration,
    most_idle: usize,
    idle_for: Duration,
    kept: Mutex<PoolState>,
    own: Weak<Self>,
}

#[derive(Default)]
struct PoolState {
    /// The most recently used connection is last.
    idle: Vec<IdleConnection>,
    /// A task removes expired connections.
    is_swept: bool,
    /// Number of times that all connections were renewed.
    renewed: u64,
}

struct IdleConnection {
    line: Line,
    since: Instant,
}

/// One connection.
type Line = SendRequest<Full<Bytes>>;

/// Why a request got no head of an answer.
#[derive(Debug)]
pub(crate) enum ClearError {
    /// The connection was not established in time.
    Late,
    /// The connection failed. `unresolved`: the server's name has no address.
    Connect { unresolved: bool, cause: Box<dyn Error + Send + Sync> },
    /// The connection broke, or the server's bytes were not HTTP.
    Http(hyper::Error),
}

impl fmt::Display for ClearError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Late => "no connection in time",
            Self::Connect { .. } => "no connection",
            Self::Http(_) => "the connection broke",
        })
    }
}

impl Error for ClearError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Late => None,
            Self::Connect { cause, .. } => Some(&**cause),
            Self::Http(error) => Some(error),
        }
    }
}

impl PlaintextPool {
    /// Creates the pool for a server. Returns `None` if the server must be reached in another way.
    pub(crate) fn of(spec: &UpstreamSpec, address: &ServerAddress) -> Option<Arc<Self>> {
        if address.is_tls() || spec.proxy.is_some() || spec.http2.when == UseHttp2::Always {
            return None;
        }
        let authority = address.authority();
        let to = match spec.ip {
            Some(ip) => SocketAddr::new(ip, address.host().1).to_string(),
            None => authority.clone(),
        };
        let to = Uri::try_from(format!("http://{to}")).ok()?;
        // Like other clients, leaves out the default port.
        let host = HeaderValue::try_from(authority.strip_suffix(":80").unwrap_or(&authority)).ok()?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(spec.timeouts.connect));
        Some(Arc::new_cyclic(|own| Self {
            to,
            host,
            connector,
            connect_within: spec.timeouts.connect,
            most_idle: spec.pool.idle_connections,
            idle_for: spec.pool.idle_for.unwrap_or_else(|| spec.kind.pool_idle()),
            kept: Mutex::default(),
            own: own.clone(),
        }))
    }

    /// Returns the `Host` header.
    pub(crate) const fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Posts a body to a path and waits for the head of the answer. If a pooled connection was closed before anything
    /// was sent on it, the next one is used.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<PooledBody>, ClearError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::try_from(path).unwrap_or_default();
        *request.headers_mut() = headers;
        request.headers_mut().entry(HOST).or_insert_with(|| self.host.clone());
        loop {
            let (idle, renewed) = self.idle_line();
            let (mut line, is_fresh) = match idle {
                Some(line) => (line, false),
                None => (self.connect().await?, true),
            };
            match line.try_send_request(request).await {
                Ok(response) => {
                    let back = self.own.upgrade().map(|pool| PoolReturn { line, renewed, pool });
                    return Ok(response.map(|incoming| PooledBody { incoming, back }));
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if !is_fresh => request = unsent,
                    _ => return Err(ClearError::Http(failed.into_error())),
                },
            }
        }
    }

    /// Makes new calls use new connections, because the open ones lead to an outdated address.
    pub(crate) fn renew(&self) {
        let mut kept = self.kept.lock();
        kept.renewed += 1;
        kept.idle.clear();
    }

    /// Takes an idle connection from the pool. Also returns the number of renewals so far. Drops connections that were
    /// closed or have been idle for too long.
    fn idle_line(&self) -> (Option<Line>, u64) {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        let is_old = |idle: &IdleConnection| now.saturating_duration_since(idle.since) >= self.idle_for;
        let mut busy = Vec::new();
        let mut found = None;
        while let Some(idle) = kept.idle.pop() {
            if idle.line.is_closed() || is_old(&idle) {
                continue;
            }
            if idle.line.is_ready() {
                found = Some(idle.line);
                break;
            }
            // The connection has not finished its last call, but will in a moment.
            busy.push(idle);
        }
        kept.idle.extend(busy.into_iter().rev());
        (found, kept.renewed)
    }

    async fn connect(&self) -> Result<Line, ClearError> {
        let broken = |cause: Box<dyn Error + Send + Sync>| {
            let unresolved = cause.to_string().contains("dns");
            ClearError::Connect { unresolved, cause }
        };
        let mut connector = self.connector.clone();
        let connecting = async {
            poll_fn(|cx| connector.poll_ready(cx)).await.map_err(|error| broken(error.into()))?;
            connector.call(self.to.clone()).await.map_err(|error| broken(error.into()))
        };
        let io = timeout(self.connect_within, connecting).await.map_err(|_| ClearError::Late)??;
        let (line, connection) = http1::handshake(io).await.map_err(ClearError::Http)?;
        // The task ends when its `Line` is dropped or the server closes the connection.
        tokio::spawn(async move { drop(connection.await) });
        Ok(line)
    }

    fn keep(self: Arc<Self>, line: Line, renewed: u64) {
        if line.is_closed() {
            return;
        }
        let mut kept = self.kept.lock();
        if kept.idle.len() >= self.most_idle || kept.renewed != renewed {
            return;
        }
        kept.idle.push(IdleConnection { line, since: Instant::now() });
        if !std::mem::replace(&mut kept.is_swept, true) {
            drop(kept);
            self.sweep();
        }
    }

    /// Starts a task that drops expired connections, for as long as the pool holds any.
    fn sweep(self: Arc<Self>) {
        let (own, every) = (Arc::downgrade(&self), self.idle_for.max(Duration::from_millis(100)));
        let sweeping = async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(pool) = own.upgrade() else { return };
                let now = Instant::now();
                let mut kept = pool.kept.lock();
                let fresh = |idle: &IdleConnection| {
                    now.saturating_duration_since(idle.since) < pool.idle_for && !idle.line.is_closed()
                };
                kept.idle.retain(fresh);
                kept.is_swept = !kept.idle.is_empty();
                if !kept.is_swept {
                    return;
                }
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(sweeping)),
            Err(_) => self.kept.lock().is_swept = false,
        }
    }
}

/// The body of an answer. If it is read to its end, its connection returns to the pool. If it is dropped earlier, the
/// connection is closed.
pub(crate) struct PooledBody {
    incoming: Incoming,
    back: Option<PoolReturn>,
}

struct PoolReturn {
    line: Line,
    /// Number of renewals when the connection was taken.
    renewed: u64,
    pool: Arc<PlaintextPool>,
}

impl Body for PooledBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => self.is_over(),
            // If the length is known, the reader may never poll for the end after the last byte.
            Poll::Ready(Some(Ok(_))) if self.incoming.is_end_stream() => self.is_over(),
            Poll::Ready(Some(Err(_))) => self.back = None,
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl PooledBody {
    fn is_over(&mut self) {
        if let Some(PoolReturn { line, renewed, pool }) = self.back.take() {
            pool.keep(line, renewed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::kind::UpstreamKind;

    /// Starts a server that closes a connection after `answers` answers. Also returns the number of connections it
    /// accepted.
    async fn served(answers: usize) -> (Arc<PlaintextPool>, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, made) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&made);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut bytes = [0; 4096];
                    for _ in 0..answers {
                        if stream.read(&mut bytes).await.unwrap() == 0 {
                            return;
                        }
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                    }
                });
            }
        });
        let mut spec = UpstreamSpec::new("near", UpstreamKind::OpenAi, &format!("http://{at}"));
        spec.pool.idle_for = Some(Duration::from_millis(400));
        let address = ServerAddress::parse(&spec.url).unwrap();
        (PlaintextPool::of(&spec, &address).unwrap(), made)
    }

    async fn call(clear: &PlaintextPool) {
        let answer = clear.post("/v1/x", HeaderMap::new(), Bytes::from_static(b"{}")).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "{}");
        // The connection's task needs a turn to notice that the answer is complete.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    #[tokio::test]
    async fn a_connection_serves_call_after_call_until_it_is_old_or_renewed() {
        let (clear, made) = served(usize::MAX).await;
        for _ in 0..5 {
            call(&clear).await;
        }
        assert_eq!(made.load(Ordering::SeqCst), 1);
        clear.renew();
        call(&clear).await;
        assert_eq!(made.load(Ordering::SeqCst), 2);
        let answer = clear.post("/", HeaderMap::new(), Bytes::new()).await.unwrap();
        clear.renew();
        answer.into_body().collect().await.unwrap();
        assert!(clear.kept.lock().idle.is_empty(), "one that was under way is not kept either");
        call(&clear).await;
        assert_eq!(made.load(Ordering::SeqCst), 3);
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert!(clear.kept.lock().idle.is_empty(), "an idle connection is closed after its time");
    }

    #[tokio::test]
    async fn one_that_the_server_closed_is_passed_over_and_one_that_is_not_read_to_its_end_is_not_kept() {
        let (clear, made) = served(1).await;
        for _ in 0..3 {
            call(&clear).await;
        }
        assert_eq!(made.load(Ordering::SeqCst), 3);
        let (clear, made) = served(usize::MAX).await;
        drop(clear.post("/", HeaderMap::new(), Bytes::new()).await.unwrap());
        call(&clear).await;
        assert_eq!(made.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn who_is_not_there_is_told_as_no_connection() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let spec = UpstreamSpec::new("none", UpstreamKind::OpenAi, &format!("http://{free}"));
        let clear = PlaintextPool::of(&spec, &ServerAddress::parse(&spec.url).unwrap()).unwrap();
        let failed = clear.post("/", HeaderMap::new(), Bytes::new()).await;
        assert!(matches!(failed.err(), Some(ClearError::Connect { unresolved: false, .. })));
    }

    #[test]
    fn only_what_is_reached_in_clear_and_directly_is_reached_so() {
        let of = |url: &str, change: fn(&mut UpstreamSpec)| {
            let mut spec = UpstreamSpec::new("x", UpstreamKind::OpenAi, url);
            change(&mut spec);
            PlaintextPool::of(&spec, &ServerAddress::parse(url).unwrap()).is_some()
        };
        assert!(of("http://10.0.0.1:8000", |_| ()));
        assert!(!of("https://10.0.0.1:8000", |_| ()));
        assert!(!of("http://10.0.0.1:8000", |spec| spec.http2.when = UseHttp2::Always));
        assert!(!of("http://10.0.0.1:8000", |spec| spec.proxy = Some("http://10.0.0.2".into())));
    }
}
