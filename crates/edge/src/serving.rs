//! The edge as a whole: bound first, so that every fault shows before anything is served; then serving until told to
//! stop; then draining.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headrace_call_api::{Annex, EdgeRefusal, Front, Memory, Peer};
use headrace_domain::{Clock, Dialect};
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::activity::{Activity, Wish};
use crate::answers::{cut_short, written_out};
use crate::connection::{Afterwards, MOST_HTTP1_HEADERS, Unheard, Wiring, refuse_and_close};
use crate::handshake::Upgraded;
use crate::home::Home;
use crate::listener::{accept, listen};
use crate::operations::{self, MOST_CONNECTIONS, Metrics, MetricsPage};
use crate::registry::{Full, Registered, Registry};
use crate::service::{Shared, answer};
use crate::sockets::Sockets;
use crate::stats::{Stats, count, value};
use crate::tls::Certificate;
use crate::transport::Duplex;
use crate::turns::Turns;
use crate::upload::{BodyLimits, whole_seconds};
use crate::{EdgeConfig, EdgeError, tls};

/// Refusals of connections over the limit that are being written at once; one more is closed without a word.
const REFUSALS_AT_ONCE: usize = 64;
/// A socket is still open for a while after its connection lost its place or was refused. One such socket is allowed for this many
/// places, within the bounds below. Beyond them the server takes no connection.
const PLACES_PER_CLOSING: usize = 4;
const LEAST_CLOSING: usize = 8;
const MOST_CLOSING: usize = 2 * REFUSALS_AT_ONCE;
/// Idle connections that give way at once where there are no descriptors left.
const LET_GO_AT_ONCE: usize = 16;
/// After all calls have ended, how long their last bytes may take to the peers at least.
const FLUSH_WAIT: Duration = Duration::from_secs(2);

/// Bound sockets before a [`Front`].
pub struct Edge<F> {
    shared: Arc<Shared<F>>,
    wiring: Arc<Wiring>,
    listener: TcpListener,
    local_addr: SocketAddr,
    operations: Option<Operations>,
    registry: Arc<Registry>,
    header_timeout: Duration,
    warnings: Vec<String>,
    certificate: Option<Arc<Certificate>>,
}

struct Operations {
    listener: TcpListener,
    local_addr: SocketAddr,
    wiring: Arc<Wiring>,
    metrics: Metrics,
}

/// What happened while it was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServeReport {
    /// Connections taken.
    pub connections_accepted: u64,
    /// Connections over the limit.
    pub connections_refused: u64,
    /// Requests whose headers were whole.
    pub requests: u64,
    /// Calls that did not end by themselves in the time given for draining.
    pub calls_cut_off: usize,
    /// Connections that had to be closed under their peers after that.
    pub connections_cut_off: usize,
}

impl<F: Front> Edge<F> {
    /// Binds the sockets and reads the TLS files. `annex` answers beside the front, at paths of its own. `metrics` writes
    /// the page for operators, which the edge gives its own numbers.
    ///
    /// # Errors
    /// [`EdgeError`]: bad values, unusable TLS files, an address that cannot be bound.
    pub async fn bind(
        config: EdgeConfig,
        front: Arc<F>,
        annex: Option<Arc<dyn Annex>>,
        metrics: Arc<MetricsPage>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, EdgeError> {
        config.check()?;
        let read = |files| Certificate::read(files, config.session_secret.as_ref(), &clock);
        let certificate = config.tls.as_ref().map(read).transpose()?;
        let acceptor = certificate.as_ref().map(tls::acceptor).transpose()?;
        let send_buffer = config.kernel_buffer_request_bytes();
        let (listener, local_addr) = listen_at(config.listen, send_buffer)?;
        let stats = Arc::new(Stats::default());
        let wiring = |tls| Arc::new(Wiring::new(&config, tls, Arc::clone(&stats)));
        let operations = match config.metrics_listen {
            None => None,
            Some(address) => {
                let (listener, local_addr) = listen_at(address, send_buffer)?;
                Some(Operations { listener, local_addr, wiring: wiring(None), metrics })
            }
        };
        let limits = BodyLimits {
            most_bytes: config.max_body_bytes,
            pause: config.body_progress_timeout,
            total: config.body_total_timeout,
        };
        let memory = Memory::new(config.memory_bytes, config.memory_bytes_per_key);
        let wiring = wiring(acceptor);
        let registry = Registry::new(
            config.max_connections,
            config.max_connections_per_peer,
            config.max_refusals_per_peer,
        );
        let max_header_bytes = config.max_header_bytes;
        let sockets = Sockets::new();
        let origins = config.origins.clone();
        let shared = Shared {
            front,
            annex,
            clock,
            limits,
            max_header_bytes,
            memory,
            stats,
            sockets,
            origins,
            stops: Arc::new(AtomicBool::new(false)),
            home: Home::default(),
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

    /// Where calls come in; the port is the real one if 0 was asked for.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Where operators come in.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.operations.as_ref().map(|operations| operations.local_addr)
    }

    /// Whether the server stops soon, for those that report readiness elsewhere.
    pub fn stops_soon(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.stops)
    }

    /// The certificate that connections are shown, to be read again.
    pub fn certificate(&self) -> Option<Arc<Certificate>> {
        self.certificate.clone()
    }

    /// Tells the page at `/` where the console is. The first address stays.
    pub fn show_console(&self, url: &str) {
        self.shared.home.console.get_or_init(|| url.to_owned());
    }

    /// What an operator should be told, such as that keys will cross a network in clear.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Serves until `shutdown` resolves. Then takes no more connections, lets what is in flight finish for at most
    /// `drain`, has the front cut off the rest, and closes.
    ///
    /// Dropping the future stops taking connections at once; those that are open end with the runtime.
    pub async fn serve(self, shutdown: impl Future<Output = ()>, drain: Duration) -> ServeReport {
        self.serve_with_notice(std::future::pending(), shutdown, drain).await
    }

    /// Serves until `shutdown` resolves, as [`Self::serve`] does. From when `notice` resolves, readiness is denied and clients are
    /// asked to leave, while connections and calls are still taken: load balancers have that time to send new calls elsewhere.
    /// HTTP/1 answers say `connection: close`, HTTP/2 connections get a graceful GOAWAY, and WebSockets close after their next turn.
    pub async fn serve_with_notice(
        self,
        notice: impl Future<Output = ()>,
        shutdown: impl Future<Output = ()>,
        drain: Duration,
    ) -> ServeReport {
        let operations_registry = Registry::new(MOST_CONNECTIONS, MOST_CONNECTIONS, u32::MAX);
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
        let public = Public {
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
                let taking = pin!(public.take_all(&listener));
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
        operations_registry.wish_all(Wish::Close);
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

/// Returns the most sockets that a listener with `places` may have open.
fn most_sockets(places: usize) -> usize {
    places.saturating_add((places / PLACES_PER_CLOSING).clamp(LEAST_CLOSING, MOST_CLOSING))
}

/// A connection that was taken. The descriptor is given back after the socket is closed: fields drop in order.
struct Taken {
    stream: TcpStream,
    _descriptor: OwnedSemaphorePermit,
}

/// The public listener at work.
struct Public<F> {
    shared: Arc<Shared<F>>,
    wiring: Arc<Wiring>,
    refusals: Arc<Semaphore>,
    /// One for each socket that is open, whether it has a place, gives way or is refused.
    descriptors: Arc<Semaphore>,
    registry: Arc<Registry>,
    tasks: TaskTracker,
    header_timeout: Duration,
}

impl<F: Front> Public<F> {
    async fn take_all(&self, listener: &TcpListener) {
        loop {
            // Never closed.
            let Ok(descriptor) = Arc::clone(&self.descriptors).acquire_owned().await else { return };
            let short = || self.registry.let_go_of(LET_GO_AT_ONCE);
            let (stream, address) = accept(listener, &self.shared.stats, short).await;
            let taken = Taken { stream, _descriptor: descriptor };
            match self.registry.register(address.ip().into()) {
                Ok(registered) => self.take(taken, address, registered),
                Err(full) => self.turn_away(taken, full),
            }
        }
    }

    fn take(&self, taken: Taken, address: SocketAddr, registered: Registered) {
        count(&self.shared.stats.connections_accepted);
        let (shared, wiring) = (Arc::clone(&self.shared), Arc::clone(&self.wiring));
        let (seconds, limit_bytes) = (whole_seconds(self.header_timeout), self.shared.max_header_bytes);
        self.tasks.spawn(async move {
            // Counted and given back on every way out, a panic in the front included.
            let open = OpenConnection(Arc::clone(&shared.stats));
            let Taken { stream, _descriptor } = taken;
            let activity = Arc::clone(&registered.activity);
            let front = Arc::clone(&shared);
            // In flight from the head on, not only from when its task first runs: its connection may not give way.
            let peer = Peer { address };
            let turns = Arc::new(OnceLock::new());
            let switch = Arc::clone(&turns);
            let service = service_fn(move |request| {
                answer(Arc::clone(&front), (peer, Arc::clone(&switch)), activity.request(), request)
            });
            let last_words = |why| {
                let activity = &registered.activity;
                if activity.is_refused_too_often() {
                    return written_out(&cut_short::<F::Stream>(&shared.stats));
                }
                activity.refused();
                last_words(&shared, &refusal(why, seconds, limit_bytes, activity))
            };
            let patience = wiring.write_patience();
            let afterwards = Conversation {
                shared: &shared,
                peer,
                turns: &turns,
                activity: &registered.activity,
                patience,
            };
            wiring.speak(stream, &registered.activity, service, (last_words, &afterwards)).await;
            drop(open);
        });
    }

    /// Says 503 to a connection over the limit, without giving it a place.
    fn turn_away(&self, mut taken: Taken, full: Full) {
        count(&self.shared.stats.connections_refused);
        tracing::debug!(?full, "a connection over the limit");
        if self.wiring.is_tls() {
            return;
        }
        let Ok(turn) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let refusal = match full {
                Full::OfPeer(limit) => EdgeRefusal::TooManyConnections { limit, of_peer: true },
                Full::All(limit) => EdgeRefusal::TooManyConnections { limit, of_peer: false },
            };
            let words = last_words(&shared, &refusal);
            refuse_and_close(&mut taken.stream, &words).await;
            drop((taken, turn));
        });
    }

    /// Denies readiness, and asks all clients to leave.
    fn retire(&self) {
        self.shared.stops.store(true, Ordering::Release);
        self.registry.retire_all();
    }

    /// Returns the calls and the connections that were cut off.
    async fn drain(&self, within: Duration) -> (usize, usize) {
        let began = Instant::now();
        self.registry.wish_all(Wish::Finish);
        let calls = self.shared.front.drain(within).await;
        self.tasks.close();
        // Calls may be over long before their last bytes are with a slow reader: it has the time that calls would have.
        let flush = within.saturating_sub(began.elapsed()).max(FLUSH_WAIT);
        if timeout(flush, self.tasks.wait()).await.is_ok() {
            return (calls, 0);
        }
        let connections = self.registry.wish_all(Wish::Close);
        let _ = timeout(FLUSH_WAIT, self.tasks.wait()).await;
        (calls, connections)
    }
}

/// What a connection goes on with that has become one of turns.
struct Conversation<'c, F> {
    shared: &'c Shared<F>,
    peer: Peer,
    turns: &'c OnceLock<Upgraded>,
    activity: &'c Arc<Activity>,
    patience: Duration,
}

impl<F: Front> Afterwards for Conversation<'_, F> {
    fn go_on<'a>(&'a self, io: &'a mut dyn Duplex) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let &Self { shared, peer, turns, activity, patience } = self;
        Box::pin(async move {
            if let Some(upgraded) = turns.get() {
                Turns { shared, peer, upgraded, activity, patience }.take_all(io).await;
            }
        })
    }
}

struct OpenConnection(Arc<Stats>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        count(&self.0.connections_closed);
    }
}

/// What is wrong with the head of a peer that was not heard out.
fn refusal(why: Unheard, seconds: u64, limit_bytes: usize, activity: &Activity) -> EdgeRefusal {
    match why {
        Unheard::Slow => EdgeRefusal::HeaderTimeout { seconds },
        Unheard::TooLarge => EdgeRefusal::HeadTooLarge { limit_bytes, most_headers: MOST_HTTP1_HEADERS },
        Unheard::Malformed(_) if activity.is_ambiguous(activity.requests()) => EdgeRefusal::AmbiguousLength,
        Unheard::Malformed(what) => EdgeRefusal::BadHead { what },
    }
}

/// A refusal as the bytes of an HTTP/1.1 response, for peers whose request was not understood as far as its dialect.
fn last_words<F: Front>(shared: &Shared<F>, refusal: &EdgeRefusal) -> Vec<u8> {
    let reply = shared.front.refuse(Dialect::OpenAi, refusal, None, shared.clock.now());
    written_out(&reply)
}
