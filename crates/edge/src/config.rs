//! Every bound the edge keeps, in one place, units in the names; and what can go wrong before it serves.
//! Reads no file and no environment.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::cors::Origins;
use crate::tickets::SessionSecret;

/// The smallest buffer that hyper works with.
const LEAST_HTTP1_BUFFER_BYTES: usize = 8 * 1024;

/// Where the edge listens and which bounds it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeConfig {
    /// Where calls come in.
    pub listen: SocketAddr,
    /// TLS 1.3 with this certificate; `None`: plain TCP.
    pub tls: Option<TlsFiles>,
    /// What TLS sessions are sealed with that clients resume. `None` for a fresh secret, with which no session survives a restart.
    pub session_secret: Option<SessionSecret>,
    /// Where `/metrics`, `/healthz` and `/readyz` are answered for operators, in plain HTTP; `None`: nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// Connections open at once. For one more, the one that has been idle longest gives way; if none is idle, it is answered
    /// 503 and closed.
    pub max_connections: usize,
    /// Of those, the most that one peer may have: an IPv4 address, or the /64 of an IPv6 one.
    pub max_connections_per_peer: usize,
    /// Refusals that one peer is told in a minute, of requests that show no good key. Beyond them it is answered 429 without
    /// a trace, and its connection ends.
    pub max_refusals_per_peer: u32,
    /// From the first byte of a request (or from the start of a connection, its TLS handshake included) until its
    /// headers are whole.
    pub header_timeout: Duration,
    /// The longest pause within a request's body.
    pub body_progress_timeout: Duration,
    /// The longest that a request's body may take in all, however steadily it drips.
    pub body_total_timeout: Duration,
    /// The longest that a socket may take no bytes. The last resort: the front ends calls that are not read before.
    pub write_timeout: Duration,
    /// The longest that a connection stays open without a request.
    pub idle_timeout: Duration,
    /// Bytes of a request's line and headers, in HTTP/1.1 and HTTP/2 alike.
    pub max_header_bytes: usize,
    /// Bytes of a request's body.
    pub max_body_bytes: u64,
    /// Bytes of heads and bodies of all calls that are being read or answered; a call that needs more is answered 503.
    pub memory_bytes: u64,
    /// Of those, the most that the calls of one key may have; a call that needs more is answered 429.
    pub memory_bytes_per_key: u64,
    /// Requests at once on one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Streams that a peer may open and reset before they were taken up; one more ends the connection
    /// (`ENHANCE_YOUR_CALM`).
    pub max_pending_reset_streams: usize,
    /// Streams that a peer may make us reset; one more ends the connection.
    pub max_local_reset_streams: usize,
    /// Bytes of an answer on their way between the gateway and the network, per connection: what a reader that
    /// stopped reading can be charged for at most without having seen it. Shared between the HTTP library's buffer,
    /// the TLS buffer and the kernel's.
    pub transport_buffer_bytes: usize,
    /// Origins whose pages browsers may let call.
    pub origins: Origins,
}

/// A certificate chain and its key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, the server's own certificate first.
    pub cert: PathBuf,
    /// Its private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// Why the edge could not be set up.
#[derive(Debug)]
pub enum EdgeError {
    /// Values that make no sense; all of them.
    Config(Vec<String>),
    /// An address could not be bound.
    Bind {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The certificate or its key is no good.
    Tls {
        /// Which file.
        file: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
}

impl EdgeConfig {
    /// The usual bounds: plain TCP at `listen`, no listener for operators.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            tls: None,
            session_secret: None,
            metrics_listen: None,
            max_connections: 4_096,
            max_connections_per_peer: 2_048,
            max_refusals_per_peer: 6_000,
            header_timeout: Duration::from_secs(10),
            body_progress_timeout: Duration::from_secs(30),
            body_total_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(35),
            idle_timeout: Duration::from_secs(90),
            max_header_bytes: 16 * 1024,
            max_body_bytes: 8 * 1024 * 1024,
            memory_bytes: 256 * 1024 * 1024,
            memory_bytes_per_key: 64 * 1024 * 1024,
            max_concurrent_streams: 100,
            max_pending_reset_streams: 20,
            max_local_reset_streams: 256,
            transport_buffer_bytes: 64 * 1024,
            origins: Origins::default(),
        }
    }

    /// What an operator should be told before this is served.
    pub fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        if self.tls.is_none() && !self.listen.ip().is_loopback() {
            out.push(format!(
                "{} is reachable from other machines and not encrypted: API keys and prompts cross the network in \
                 clear. Give --tls-cert and --tls-key, or put a TLS proxy before it.",
                self.listen
            ));
        }
        if let Some(metrics) = self.metrics_listen.filter(|address| !address.ip().is_loopback()) {
            out.push(format!("{metrics} shows metrics to other machines without asking who they are."));
        }
        out
    }

    /// Whether the values make sense together.
    ///
    /// # Errors
    /// [`EdgeError::Config`] with every value that makes no sense.
    pub fn check(&self) -> Result<(), EdgeError> {
        let mut wrong = Vec::new();
        for (name, value) in [
            ("header_timeout", self.header_timeout),
            ("body_progress_timeout", self.body_progress_timeout),
            ("body_total_timeout", self.body_total_timeout),
            ("write_timeout", self.write_timeout),
            ("idle_timeout", self.idle_timeout),
        ] {
            if value.is_zero() {
                wrong.push(format!("{name} must be more than nothing"));
            }
        }
        if self.max_connections == 0 || self.max_connections > MOST_CONNECTIONS {
            wrong.push(format!(
                "max_connections must be 1 to {MOST_CONNECTIONS}, not {}",
                self.max_connections
            ));
        }
        if self.max_connections_per_peer == 0 || self.max_refusals_per_peer == 0 {
            wrong.push("max_connections_per_peer and max_refusals_per_peer must be at least 1".to_owned());
        }
        if self.max_concurrent_streams == 0 {
            wrong.push("max_concurrent_streams must be at least 1".to_owned());
        }
        if self.max_body_bytes == 0 {
            wrong.push("max_body_bytes must be at least 1".to_owned());
        }
        for (name, bytes) in
            [("memory_bytes", self.memory_bytes), ("memory_bytes_per_key", self.memory_bytes_per_key)]
        {
            let least = self.least_memory_bytes();
            if bytes < least {
                wrong.push(format!("{name} must be at least {least} (one body and its head), not {bytes}"));
            }
        }
        if self.max_header_bytes < 1_024 || self.max_header_bytes > 1024 * 1024 {
            wrong.push(format!("max_header_bytes must be 1024 to 1048576, not {}", self.max_header_bytes));
        }
        let least = (2 * LEAST_HTTP1_BUFFER_BYTES).max(self.max_header_bytes.saturating_mul(2));
        if self.transport_buffer_bytes < least || self.transport_buffer_bytes > MOST_BUFFER_BYTES {
            wrong.push(format!(
                "transport_buffer_bytes must be {least} (twice max_header_bytes, and 16384 or more) to \
                 {MOST_BUFFER_BYTES}, not {}",
                self.transport_buffer_bytes
            ));
        }
        if wrong.is_empty() { Ok(()) } else { Err(EdgeError::Config(wrong)) }
    }

    /// Bytes that the largest request takes up.
    pub const fn least_memory_bytes(&self) -> u64 {
        self.max_body_bytes.saturating_add(2 * self.max_header_bytes as u64)
    }

    /// Bytes that the HTTP library may hold of an answer: half of the transport's.
    pub(crate) const fn http_buffer_bytes(&self) -> usize {
        self.transport_buffer_bytes / 2
    }

    /// Bytes that the TLS library may hold.
    pub(crate) const fn tls_buffer_bytes(&self) -> usize {
        self.transport_buffer_bytes / 4
    }

    /// What the kernel is asked for; it takes twice as much, for its own bookkeeping.
    pub(crate) const fn kernel_buffer_request_bytes(&self) -> usize {
        if self.tls.is_some() { self.transport_buffer_bytes / 8 } else { self.transport_buffer_bytes / 4 }
    }
}

const MOST_CONNECTIONS: usize = 1_000_000;
const MOST_BUFFER_BYTES: usize = 64 * 1024 * 1024;

impl fmt::Display for EdgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(wrong) => write!(f, "edge: {}", wrong.join("; ")),
            Self::Bind { address, source } => write!(f, "cannot listen on {address}: {source}"),
            Self::Tls { file, detail } => write!(f, "{}: {detail}", file.display()),
        }
    }
}

impl std::error::Error for EdgeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. } => Some(source),
            Self::Config(_) | Self::Tls { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_bounds_are_in_order_and_every_bad_value_is_named_at_once() {
        let good = EdgeConfig::new(([127, 0, 0, 1], 0).into());
        assert!(good.check().is_ok());
        let bad = EdgeConfig {
            max_connections: 0,
            header_timeout: Duration::ZERO,
            transport_buffer_bytes: 1_000,
            max_header_bytes: 1,
            ..good
        };
        let Err(EdgeError::Config(wrong)) = bad.check() else { panic!("accepted") };
        assert_eq!(wrong.len(), 4, "{wrong:?}");
    }

    #[test]
    fn only_a_public_bind_without_tls_warns() {
        let tls = Some(TlsFiles { cert: "c".into(), key: "k".into() });
        for (listen, tls, warns) in [
            ("127.0.0.1:1", None, false),
            ("[::1]:1", None, false),
            ("0.0.0.0:1", None, true),
            ("10.0.0.1:1", None, true),
            ("0.0.0.0:1", tls, false),
        ] {
            let config = EdgeConfig { tls, ..EdgeConfig::new(listen.parse().unwrap()) };
            assert_eq!(!config.warnings().is_empty(), warns, "{listen}");
        }
    }
}
