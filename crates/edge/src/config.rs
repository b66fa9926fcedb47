//! All limits of the edge, in one place and with units in their names, and the errors before it serves. Reads no file
//! and no environment variable.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::cors::AllowedOrigins;
use crate::tickets::SessionSecret;
use crate::trusted_proxies::TrustedProxies;

/// The smallest buffer that hyper works with.
const LEAST_HTTP1_BUFFER_BYTES: usize = 8 * 1024;

/// The addresses and limits of the edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeConfig {
    /// The address for calls.
    pub listen: SocketAddr,
    /// Certificate and key for TLS 1.3. `None` for plain TCP.
    pub tls: Option<TlsFiles>,
    /// Whether clients show certificates. Needs `tls`.
    pub client_authorities: Option<ClientAuthorities>,
    /// Secret that seals the TLS sessions which clients resume. `None` uses a fresh secret, so that no session survives
    /// a restart.
    pub session_secret: Option<SessionSecret>,
    /// Address of the operators' listener with `/metrics`, `/healthz` and `/readyz`, in plain HTTP. `None` for no such
    /// listener.
    pub metrics_listen: Option<SocketAddr>,
    /// Maximum number of open connections. If one more arrives, the connection that has been idle longest is closed. If
    /// none is idle, the new one is answered with 503 and closed.
    pub max_connections: usize,
    /// Maximum number of connections per peer: an IPv4 address, or the /64 of an IPv6 address.
    pub max_connections_per_peer: usize,
    /// Maximum number of refusals per peer and minute, for requests without a valid key. Further ones are answered with
    /// 429 and without a trace, and their connection is closed.
    pub max_refusals_per_peer: u32,
    /// Maximum time from the first byte of a request until its headers are complete. The same limit applies to a TLS
    /// handshake, and to a new connection until its first bytes arrive.
    pub header_timeout: Duration,
    /// Maximum pause within a request's body.
    pub body_progress_timeout: Duration,
    /// Maximum time for a request's whole body, however steadily its bytes arrive.
    pub body_total_timeout: Duration,
    /// Maximum time that a socket may accept no bytes. A last resort: the call service ends unread calls earlier.
    pub write_timeout: Duration,
    /// Maximum time that a connection stays open without a request.
    pub idle_timeout: Duration,
    /// Maximum bytes of a request's line and headers, for HTTP/1.1 and HTTP/2.
    pub max_header_bytes: usize,
    /// Maximum bytes of a request's body.
    pub max_body_bytes: u64,
    /// Maximum bytes for the heads and bodies of all calls that are being read or answered. A call beyond that is
    /// answered with 503.
    pub memory_bytes: u64,
    /// Maximum bytes of `memory_bytes` for the calls of one key. A call beyond that is answered with 429.
    pub memory_bytes_per_key: u64,
    /// Maximum number of parallel requests on one HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Maximum number of streams that a peer may open and reset before they are accepted. One more ends the connection
    /// (`ENHANCE_YOUR_CALM`).
    pub max_pending_reset_streams: usize,
    /// Maximum number of streams that a peer may make the server reset. One more ends the connection.
    pub max_local_reset_streams: usize,
    /// Bytes of an answer between the gateway and the network, per connection. A reader that stopped reading can be
    /// charged for at most this many bytes that it has not seen. Divided between the buffers of the HTTP library, the
    /// TLS library and the kernel.
    pub transport_buffer_bytes: usize,
    /// Origins whose web pages may call the API.
    pub origins: AllowedOrigins,
    /// The proxies whose header names the client of a request.
    pub trusted_proxies: TrustedProxies,
    /// Whether the trusted proxies begin each connection with a PROXY header of version 2. Other senders are refused then.
    pub proxy_protocol: bool,
}

/// Whether clients show certificates, and which authorities issue them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuthorities {
    /// PEM file of the authorities.
    pub authorities: PathBuf,
    /// PEM file of revocation lists. `None` to accept every certificate that has not expired.
    pub revocations: Option<PathBuf>,
    /// Whether a connection without a certificate is refused.
    pub is_required: bool,
}

/// A certificate chain and its key, both in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, with the server's own certificate first.
    pub cert: PathBuf,
    /// The private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// Why the edge could not be set up.
#[derive(Debug)]
pub enum EdgeError {
    /// Invalid values. Lists all of them.
    Config(Vec<String>),
    /// An address could not be bound.
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The certificate or its key is invalid.
    Tls {
        /// The file at fault.
        file: PathBuf,
        /// What is wrong with the file.
        detail: String,
    },
}

impl EdgeConfig {
    /// The default limits, plain TCP at `listen`, and no operators' listener.
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            tls: None,
            client_authorities: None,
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
            origins: AllowedOrigins::default(),
            trusted_proxies: TrustedProxies::default(),
            proxy_protocol: false,
        }
    }

    /// Returns warnings for the operator, to be shown before the edge serves.
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

    /// Checks that the values are valid and consistent.
    ///
    /// # Errors
    /// [`EdgeError::Config`] with every invalid value.
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
        if self.proxy_protocol && self.trusted_proxies.is_empty() {
            wrong.push("proxy_protocol needs trusted_proxies: no sender would be let in".to_owned());
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

    /// Returns the bytes of memory that the largest request needs.
    pub const fn least_memory_bytes(&self) -> u64 {
        self.max_body_bytes.saturating_add(2 * self.max_header_bytes as u64)
    }

    /// Returns the bytes of an answer that the HTTP library may hold: half of the transport buffer.
    pub(crate) const fn http_buffer_bytes(&self) -> usize {
        self.transport_buffer_bytes / 2
    }

    /// Returns the bytes that the TLS library may hold.
    pub(crate) const fn tls_buffer_bytes(&self) -> usize {
        self.transport_buffer_bytes / 4
    }

    /// Returns the size to request from the kernel. The kernel doubles it for its own bookkeeping.
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
