//! Measures the steps of a connection for the call that waits for it. The call is found by its task, since a connection
//! is made within the future of the request that needs it. Must not know what is sent over the connection.

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

/// The time that making a connection took. A call over an existing connection has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectTimes {
    /// Time of the DNS look-up. `None` if the address is not a name.
    pub dns: Option<Duration>,
    /// Time of the TCP handshake, about one round trip.
    pub tcp: Duration,
    /// Time of the TLS handshake, if there is one: one more round trip, and the cryptography.
    pub tls: Option<Duration>,
}

impl ConnectTimes {
    /// The sum of all steps.
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

/// The steps measured while a call waits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<Steps>>);

tokio::task_local! {
    static WATCH: Watch;
}

impl Watch {
    /// Runs a future and measures the connection that is made within it.
    pub(crate) async fn over<F: Future>(&self, future: F) -> F::Output {
        WATCH.scope(self.clone(), future).await
    }

    /// The measured times. `None` if no connection had to be made.
    pub(crate) fn times(&self) -> Option<ConnectTimes> {
        let steps = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, ended) = (steps.began?, steps.ended?);
        let dns = steps.dns.unwrap_or_default();
        let tcp_ended = steps.tls_began.unwrap_or(ended);
        let tcp = tcp_ended.saturating_duration_since(began).saturating_sub(dns);
        let tls = steps.tls_began.map(|began| ended.saturating_duration_since(began));
        Some(ConnectTimes { dns: steps.dns, tcp, tls })
    }

    /// Records a step for the call that waits in this task, if there is one.
    fn note(note: impl FnOnce(&mut Steps)) {
        // Fails outside of a call, where there is nothing to record.
        let _ = WATCH.try_with(|watch| note(&mut watch.0.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

/// A resolver that uses the system's look-up and records its duration.
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

/// A connector layer that records when a connection starts and when it is established.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedConnections;

impl<S> Layer<S> for TimedConnections {
    type Service = TimedConnector<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TimedConnector(inner)
    }
}

/// The connector of [`TimedConnections`].
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
        // A second connection for the same call replaces the first.
        Watch::note(|steps| *steps = Steps { began: Some(Instant::now()), ..Steps::default() });
        let connecting = self.0.call(to);
        Box::pin(async move {
            let connected = connecting.await?;
            Watch::note(|steps| steps.ended = Some(Instant::now()));
            Ok(connected)
        })
    }
}

/// A TLS session cache in memory. Every handshake starts with a look-up here, which gives its start time.
#[derive(Debug)]
pub(crate) struct TimedSessions(ClientSessionMemoryCache);

impl TimedSessions {
    /// Maximum number of servers whose sessions are kept.
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
