//! What it took to get a connection, step by step, for the call that waited for it. Which call that is follows the task: a
//! connection is made within the future of the request that asked for it. Must not know what is sent over it.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::NamedGroup;
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use tower_layer::Layer;
use tower_service::Service;

/// What making a connection took. A call over one that was there already has none of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectTimes {
    /// Looking up the name; `None` for an address that is none.
    pub dns: Option<Duration>,
    /// Until the other machine had answered: about one round trip.
    pub tcp: Duration,
    /// The handshake of TLS, where there is one: a round trip more, and the arithmetic.
    pub tls: Option<Duration>,
}

impl ConnectTimes {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.dns.unwrap_or_default() + self.tcp + self.tls.unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Steps {
    began: Option<Instant>,
    dns: Option<Duration>,
    tls_began: Option<Instant>,
    ended: Option<Instant>,
}

/// What is noted while a call waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<Steps>>);

tokio::task_local! {
    static WATCH: Watch;
}

impl Watch {
    /// Runs a future, and notes the connection that is made within it.
    pub(crate) async fn over<F: Future>(&self, future: F) -> F::Output {
        WATCH.scope(self.clone(), future).await
    }

    /// What was noted; `None`: no connection had to be made.
    pub(crate) fn times(&self) -> Option<ConnectTimes> {
        let steps = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, ended) = (steps.began?, steps.ended?);
        let dns = steps.dns.unwrap_or_default();
        let tcp_ended = steps.tls_began.unwrap_or(ended);
        let tcp = tcp_ended.saturating_duration_since(began).saturating_sub(dns);
        let tls = steps.tls_began.map(|began| ended.saturating_duration_since(began));
        Some(ConnectTimes { dns: steps.dns, tcp, tls })
    }

    /// Notes something for the call that waits in this task. Where none does, it is nobody's.
    fn note(note: impl FnOnce(&mut Steps)) {
        // Outside of a call there is nothing to note.
        let _ = WATCH.try_with(|watch| note(&mut watch.0.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

/// Looks names up as the system does, and notes how long that took.
#[derive(Debug)]
pub(crate) struct TimedNames;

impl Resolve for TimedNames {
    fn resolve(&self, name: Name) -> Resolving {
        let began = Instant::now();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            Watch::note(|steps| steps.dns = Some(began.elapsed()));
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Notes when a connection is begun, and when it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedConnections;

impl<S> Layer<S> for TimedConnections {
    type Service = TimedConnector<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TimedConnector(inner)
    }
}

/// A connector that is watched.
#[derive(Debug, Clone)]
pub(crate) struct TimedConnector<S>(S);

impl<S, R> Service<R> for TimedConnector<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, to: R) -> Self::Future {
        // A second one for the same call takes the place of the first.
        Watch::note(|steps| *steps = Steps { began: Some(Instant::now()), ..Steps::default() });
        let connecting = self.0.call(to);
        Box::pin(async move {
            let connected = connecting.await?;
            Watch::note(|steps| steps.ended = Some(Instant::now()));
            Ok(connected)
        })
    }
}

/// Sessions of TLS, kept in memory. A handshake begins with a look in here, and so it is known when.
#[derive(Debug)]
pub(crate) struct TimedSessions(ClientSessionMemoryCache);

impl TimedSessions {
    /// Servers whose sessions are kept.
    const MAX_SERVERS: usize = 32;

    pub(crate) fn new() -> Self {
        Self(ClientSessionMemoryCache::new(Self::MAX_SERVERS))
    }
}

impl ClientSessionStore for TimedSessions {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.0.set_kx_hint(server_name, group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        Watch::note(|steps| {
            steps.tls_began.get_or_insert_with(Instant::now);
        });
        self.0.kx_hint(server_name)
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.0.set_tls12_session(server_name, value);
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.tls12_session(server_name)
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.0.remove_tls12_session(server_name);
    }

    fn insert_tls13_ticket(&self, server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.0.insert_tls13_ticket(server_name, value);
    }

    fn take_tls13_ticket(&self, server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.take_tls13_ticket(server_name)
    }
}
