//! The edge as a whole: binds first, so that every error shows before anything is served, then serves until it is
//! stopped, then drains.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{CallAnswer, CallService, InternalApi, MemoryAccount, PeerAddress};
use headrace_domain::{Clock, Dialect, TraceSink};
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::activity::{ConnectionActivity, ServerWish};
use crate::answers::{cut_short, written_out};
use crate::connection::{
    ConnectionSetup, MOST_HTTP1_HEADERS, ProtocolSwitch, UnreadRequest, refuse_and_close,
};
use crate::handshake::{AdmittedSocket, PendingSocket};
use crate::home::HomePage;
use crate::listener::{accept, listen};
use crate::operations::{self, MOST_CONNECTIONS, Metrics, MetricsPage};
use crate::peer::RefusalAllowances;
use crate::proxy_protocol::read_header;
use crate::published::PublishedKeys;
use crate::refusal::{EdgeRefusal, HeadTime, RefusalWriter};
use crate::registry::{ConnectionRegistry, RegisteredConnection, RegistryFull};
use crate::responses_socket::ResponsesSocket;
use crate::service::{EdgeShared, answer};
use crate::sockets::WebSocketTable;
use crate::stats::{EdgeStats, count, value};
use crate::tls::TlsCertificate;
use crate::transport::DuplexStream;
use crate::trusted_proxies::TrustedProxies;
use crate::upload::{BodyLimits, whole_seconds};
use crate::{EdgeConfig, EdgeError, tls};

/// Maximum number of refusals that are being written to connections over the limit. Further connections are closed
/// without an answer.
const REFUSALS_AT_ONCE: usize = 64;
/// A socket stays open for a while after its connection was displaced or refused. One such socket is allowed per this
/// many places, within the limits below. Beyond that, the server accepts no connection.
const PLACES_PER_CLOSING: usize = 4;
const LEAST_CLOSING: usize = 8;
const MOST_CLOSING: usize = 2 * REFUSALS_AT_ONCE;
/// Number of idle connections that are closed when no file descriptors are left.
const CLOSED_AT_ONCE: usize = 16;
/// Minimum time for the last bytes to reach the peers after all calls have ended.
const FLUSH_WAIT: Duration = Duration::from_secs(2);

/// Bound sockets in front of a [`CallService`].
pub struct Edge<F> {
    shared: Arc<EdgeShared<F>>,
    wiring: Arc<ConnectionSetup>,
    listener: TcpListener,
    local_addr: SocketAddr,
    operations: Option<OperationsListener>,
    registry: Arc<ConnectionRegistry>,
    header_timeout: Duration,
    warnings: Vec<String>,
    certificate: Option<Arc<TlsCertificate>>,
}

struct OperationsListener {
    listener: TcpListener,
    local_addr: SocketAddr,
    wiring: Arc<ConnectionSetup>,
    metrics: Metrics,
}

/// Totals of a serving run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServeReport {
    /// Connections accepted.
    pub connections_accepted: u64,
    /// Connections over the limit.
    pub connections_refused: u64,
    /// Requests with complete headers.
    pub requests: u64,
    /// Calls that did not end by themselves within the drain time.
    pub calls_cut_off: usize,
    /// Connections that were closed under their peers after that.
    pub connections_cut_off: usize,
}

impl<F: CallService> Edge<F> {
    /// Binds the sockets and reads the TLS files. `internal_api` has paths of its own. `metrics` renders the operators'
    /// page and receives the edge's own metrics. `traces` receives the records of requests that the edge refuses.
    ///
    /// # Errors
    /// [`EdgeError`]: invalid values, unusable TLS files, an address that cannot be bound.
    pub async fn bind(
        config: EdgeConfig,
        service: Arc<F>,
        internal_api: Option<Arc<dyn InternalApi>>,
        metrics: Arc<MetricsPage>,
        traces: Arc<dyn TraceSink>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, EdgeError> {
        config.check()?;
        let (clients, secret) = (config.client_authorities.as_ref(), config.session_secret.as_ref());
        let read = |files| TlsCertificate::read(files, clients, secret, &clock);
        let certificate = config.tls.as_ref().map(read).transpose()?;
        let acceptor = certificate.as_ref().map(tls::acceptor).transpose()?;
        let send_buffer = config.kernel_buffer_request_bytes();
        let (listener, local_addr) = listen_at(config.listen, send_buffer)?;
        let stats = Arc::new(EdgeStats::default());
        let wiring = |tls| Arc::new(ConnectionSetup::new(&config, tls, Arc::clone(&stats)));
        let operations = match config.metrics_listen {
            None => None,
            Some(address) => {
                let (listener, local_addr) = listen_at(address, send_buffer)?;
                Some(OperationsListener { listener, local_addr, wiring: wiring(None), metrics })
            }
        };
        let limits = BodyLimits {
            most_bytes: config.max_body_bytes,
            pause: config.body_progress_timeout,
            total: config.body_total_timeout,
        };
        let memory = MemoryAccount::new(config.memory_bytes, config.memory_bytes_per_key);
        let wiring = wiring(acceptor);
        let registry = ConnectionRegistry::new(
            config.max_connections,
            config.max_connections_per_peer,
            config.max_refusals_per_peer,
        );
        let max_header_bytes = config.max_header_bytes;
        let sockets = WebSocketTable::new();
        let origins = config.origins.clone();
        let trusted_proxies = config.trusted_proxies.clone();
        let forwarded_allowances = RefusalAllowances::new(config.max_refusals_per_peer);
        let shared = EdgeShared {
            service,
            internal_api,
            refusals: RefusalWriter::new(Arc::clone(&clock), traces),
            clock,
            limits,
            max_header_bytes,
            memory,
            stats,
            sockets,
            origins,
            trusted_proxies,
            proxy_protocol: config.proxy_protocol,
            forwarded_allowances,
            stops: Arc::new(AtomicBool::new(false)),
            home: HomePage::default(),
            receipt_keys: PublishedKeys::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            wiring,
            listener,
            local_addr,
            operations,
            registry,
            header_timeout: config.header_timeout,
            warnings: config.warnings(),
            certificate,
        })
    }

    /// Returns the address for calls. The port is the real one if 0 was configured.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns the address of the operators' listener.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.operations.as_ref().map(|operations| operations.local_addr)
    }

    /// Returns the flag that is set when the server stops soon, for other readiness reports.
    pub fn stops_soon(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.stops)
    }

    /// Returns the certificate of the listener, so that it can be reloaded.
    pub fn certificate(&self) -> Option<Arc<TlsCertificate>> {
        self.certificate.clone()
    }

    /// Sets the console's URL on the page at `/`. Only the first call has an effect.
    pub fn show_console(&self, url: &str) {
        self.shared.home.console.get_or_init(|| url.to_owned());
    }

    /// Returns a function that publishes the keys that sign receipts, as JSON, in place of those before.
    pub fn receipt_keys(&self) -> impl Fn(Bytes) + Send + Sync + use<F> {
        let shared = Arc::clone(&self.shared);
        move |set| shared.receipt_keys.publish(set)
    }

    /// Returns warnings for the operator, such as that keys cross a network in clear.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Serves until `shutdown` resolves. Then accepts no more connections, lets requests in flight finish for at most
    /// `drain`, makes the call service cancel the rest, and closes.
    ///
    /// Dropping the future stops accepting connections at once. Open ones end with the runtime.
    pub async fn serve(self, shutdown: impl Future<Output = ()>, drain: Duration) -> ServeReport {
        self.serve_with_notice(std::future::pending(), shutdown, drain).await
    }

    /// Like [`Self::serve`], with a notice period. When `notice` resolves, readiness is denied and clients are asked to
    /// leave. Connections and calls are still accepted, so that load balancers have time to send new calls elsewhere.
    /// HTTP/1 answers say `connection: close`, HTTP/2 connections get a graceful GOAWAY, and WebSockets close after
    /// their next answer.
    pub async fn serve_with_notice(
        self,
        notice: impl Future<Output = ()>,
        shutdown: impl Future<Output = ()>,
        drain: Duration,
    ) -> ServeReport {
        let operations_registry = ConnectionRegistry::new(MOST_CONNECTIONS, MOST_CONNECTIONS, u32::MAX);
        let operations_tasks = TaskTracker::new();
        let operate = async {
            let Some(operations) = &self.operations else { return std::future::pending().await };
            operations::serve(
                &operations.listener,
                Arc::clone(&operations.wiring),
                Arc::clone(&self.shared),
                Arc::clone(&operations.metrics),
                Arc::clone(&operations_registry),
                operations_tasks.clone(),
            )
            .await;
        };
        let shared = Arc::clone(&self.shared);
        let public = PublicListener {
            shared: Arc::clone(&self.shared),
            wiring: Arc::clone(&self.wiring),
            refusals: Arc::new(Semaphore::new(REFUSALS_AT_ONCE)),
            descriptors: Arc::new(Semaphore::new(most_sockets(self.registry.most()))),
            registry: self.registry,
            tasks: TaskTracker::new(),
            header_timeout: self.header_timeout,
        };
        let listener = self.listener;
        let serve = async {
            {
                let taking = pin!(public.accept_all(&listener));
                let noticed = pin!(async {
                    notice.await;
                    public.retire();
                    std::future::pending::<()>().await;
                });
                let shutdown = pin!(shutdown);
                tokio::select! {
                    biased;
                    () = shutdown => {}
                    () = noticed => {}
                    () = taking => {}
                }
            }
            public.retire();
            drop(listener);
            public.drain(drain).await
        };
        let (calls_cut_off, connections_cut_off) = tokio::select! {
            cut_off = serve => cut_off,
            () = operate => (0, 0),
        };
        operations_registry.wish_all(ServerWish::Close);
        operations_tasks.close();
        let _ = timeout(FLUSH_WAIT, operations_tasks.wait()).await;
        ServeReport {
            connections_accepted: value(&shared.stats.connections_accepted),
            connections_refused: value(&shared.stats.connections_refused),
            requests: value(&shared.stats.requests),
            calls_cut_off,
            connections_cut_off,
        }
    }
}

fn listen_at(address: SocketAddr, send_buffer: usize) -> Result<(TcpListener, SocketAddr), EdgeError> {
    let listener = listen(address, send_buffer)?;
    let local = listener.local_addr().map_err(|source| EdgeError::Bind { address, source })?;
    Ok((listener, local))
}

/// Returns the maximum number of open sockets of a listener with `places` places.
fn most_sockets(places: usize) -> usize {
    places.saturating_add((places / PLACES_PER_CLOSING).clamp(LEAST_CLOSING, MOST_CLOSING))
}

/// An accepted connection. Fields are dropped in order, so the permit is released after the socket is closed.
struct AcceptedConnection {
    stream: TcpStream,
    _descriptor: OwnedSemaphorePermit,
}

/// The running public listener.
struct PublicListener<F> {
    shared: Arc<EdgeShared<F>>,
    wiring: Arc<ConnectionSetup>,
    refusals: Arc<Semaphore>,
    /// One permit per open socket, whether it has a place, was displaced or is being refused.
    descriptors: Arc<Semaphore>,
    registry: Arc<ConnectionRegistry>,
    tasks: TaskTracker,
    header_timeout: Duration,
}

impl<F: CallService> PublicListener<F> {
    async fn accept_all(&self, listener: &TcpListener) {
        loop {
            // The semaphore is never closed.
            let Ok(descriptor) = Arc::clone(&self.descriptors).acquire_owned().await else { return };
            let short = || self.registry.close_idle(CLOSED_AT_ONCE);
            let (stream, address) = accept(listener, &self.shared.stats, short).await;
            let taken = AcceptedConnection { stream, _descriptor: descriptor };
            match self.registry.register(address.ip().into()) {
                Ok(registered) => self.take(taken, address, registered),
                Err(full) => self.turn_away(taken, full),
            }
        }
    }

    fn take(&self, taken: AcceptedConnection, address: SocketAddr, registered: RegisteredConnection) {
        count(&self.shared.stats.connections_accepted);
        let (shared, wiring) = (Arc::clone(&self.shared), Arc::clone(&self.wiring));
        let (seconds, limit_bytes) = (whole_seconds(self.header_timeout), self.shared.max_header_bytes);
        let header_timeout = self.header_timeout;
        self.tasks.spawn(async move {
            // The connection is counted and uncounted on every path, including a panic in the call service.
            let open = OpenConnection(Arc::clone(&shared.stats));
            let AcceptedConnection { mut stream, _descriptor } = taken;
            let activity = Arc::clone(&registered.activity);
            let address = if shared.proxy_protocol {
                let trusted = &shared.trusted_proxies;
                match proxied_client(&mut stream, address, trusted, header_timeout, &activity).await {
                    Some(client) => client,
                    None => return drop(open),
                }
            } else {
                address
            };
            let answering = Arc::clone(&shared);
            // The request is in flight from its head on, not only when its task first runs, so that its connection is
            // not displaced.
            let peer = PeerAddress { address };
            let socket = Arc::new(PendingSocket::default());
            let pending = Arc::clone(&socket);
            let service = service_fn(move |request| {
                answer(Arc::clone(&answering), (peer, Arc::clone(&pending)), activity.request(), request)
            });
            let refusal_bytes = |fault| {
                let activity = &registered.activity;
                if activity.is_refused_too_often() {
                    return written_out(&cut_short::<F::Stream>(&shared.stats));
                }
                activity.refused();
                refusal_bytes(&shared, &refusal(fault, seconds, limit_bytes, activity))
            };
            let patience = wiring.write_patience();
            let switch = SocketConversation {
                shared: &shared,
                socket: &socket,
                activity: &registered.activity,
                patience,
            };
            wiring.serve(stream, &registered.activity, service, (refusal_bytes, &switch)).await;
            drop(open);
        });
    }

    /// Answers a connection over the limit with 503, without giving it a place.
    fn turn_away(&self, mut taken: AcceptedConnection, full: RegistryFull) {
        count(&self.shared.stats.connections_refused);
        tracing::debug!(?full, "a connection over the limit");
        if self.wiring.is_tls() {
            return;
        }
        let Ok(turn) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let refusal = match full {
                RegistryFull::OfPeer(limit) => EdgeRefusal::TooManyConnections { limit, of_peer: true },
                RegistryFull::All(limit) => EdgeRefusal::TooManyConnections { limit, of_peer: false },
            };
            let bytes = refusal_bytes(&shared, &refusal);
            refuse_and_close(&mut taken.stream, &bytes).await;
            drop((taken, turn));
        });
    }

    /// Denies readiness and asks all clients to leave.
    fn retire(&self) {
        self.shared.stops.store(true, Ordering::Release);
        self.registry.retire_all();
    }

    /// Ends all calls and connections. Returns how many of each were cancelled.
    async fn drain(&self, within: Duration) -> (usize, usize) {
        let began = Instant::now();
        self.registry.wish_all(ServerWish::Finish);
        let calls = self.shared.service.drain(within).await;
        self.tasks.close();
        // The last bytes of a finished call may still be on their way to a slow reader, which gets the remaining drain
        // time.
        let flush = within.saturating_sub(began.elapsed()).max(FLUSH_WAIT);
        if timeout(flush, self.tasks.wait()).await.is_ok() {
            return (calls, 0);
        }
        let connections = self.registry.wish_all(ServerWish::Close);
        let _ = timeout(FLUSH_WAIT, self.tasks.wait()).await;
        (calls, connections)
    }
}

/// Reads the client's address from the PROXY header of a trusted proxy. `None` if the connection must be closed: its sender
/// is not trusted, its header is not valid or did not come in time, or the server is stopping.
async fn proxied_client(
    stream: &mut TcpStream,
    sender: SocketAddr,
    trusted: &TrustedProxies,
    within: Duration,
    activity: &ConnectionActivity,
) -> Option<SocketAddr> {
    if !trusted.trusts(sender.ip()) {
        tracing::debug!(%sender, "a connection of a sender outside of server.trusted_proxies was refused");
        return None;
    }
    let mut reading = pin!(timeout(within, read_header(stream)));
    let read = loop {
        tokio::select! {
            read = reading.as_mut() => break read,
            () = activity.next_wish() => if activity.wished() >= ServerWish::Finish {
                return None;
            },
        }
    };
    match read {
        // A proxy that speaks for itself, as in health checks, is its own client.
        Ok(Ok(client)) => Some(client.unwrap_or(sender)),
        Ok(Err(error)) => {
            tracing::warn!(%sender, %error, "a connection of a trusted proxy was refused (server.proxy_protocol)");
            None
        }
        Err(_) => {
            tracing::debug!(%sender, "a trusted proxy sent no PROXY header in time");
            None
        }
    }
}

/// Continues a connection as a responses socket.
struct SocketConversation<'c, F: CallService> {
    shared: &'c EdgeShared<F>,
    socket: &'c PendingSocket<F::Admission>,
    activity: &'c Arc<ConnectionActivity>,
    patience: Duration,
}

impl<F: CallService> ProtocolSwitch for SocketConversation<'_, F> {
    fn serve<'a>(&'a self, io: &'a mut dyn DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let &Self { shared, socket, activity, patience } = self;
        Box::pin(async move {
            let admitted = socket.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(AdmittedSocket { caller, admission }) = admitted {
                ResponsesSocket { shared, caller: &caller, activity, patience }.serve(io).await;
                // The session ends with the socket.
                drop(admission);
            }
        })
    }
}

struct OpenConnection(Arc<EdgeStats>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        count(&self.0.connections_closed);
    }
}

/// Returns the refusal for a request that was not read to the end.
fn refusal(
    fault: UnreadRequest,
    seconds: u64,
    limit_bytes: usize,
    activity: &ConnectionActivity,
) -> EdgeRefusal {
    match fault {
        UnreadRequest::Slow => EdgeRefusal::HeaderTimeout { seconds },
        UnreadRequest::TooLarge => {
            EdgeRefusal::HeadTooLarge { limit_bytes, most_headers: MOST_HTTP1_HEADERS }
        }
        UnreadRequest::Malformed(_) if activity.is_ambiguous(activity.requests()) => {
            EdgeRefusal::AmbiguousLength
        }
        UnreadRequest::Malformed(what) => EdgeRefusal::BadHead { what },
    }
}

/// Writes a refusal as the bytes of an HTTP/1.1 response, for requests whose dialect is still unknown.
fn refusal_bytes<F: CallService>(shared: &EdgeShared<F>, refusal: &EdgeRefusal) -> Vec<u8> {
    let now = HeadTime::now(&*shared.clock);
    let reply: CallAnswer<F::Stream> = shared.refusals.answer(refusal, Dialect::OpenAi, None, now);
    written_out(&reply)
}
