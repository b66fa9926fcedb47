//! The edge: sockets, TLS 1.3, HTTP/1.1 and HTTP/2, limits on bytes and time, and the status codes of violations. Knows
//! bytes, routes and the shape of errors. Must not know tokens, prices, the meaning of keys, limits on tenants, or
//! engines: it passes heads and bodies to a [`CallService`](headrace_call_api::CallService), and returns that service's
//! answers.

mod activity;
mod answers;
mod body;
mod caller_headers;
mod client_certificates;
mod config;
mod connection;
mod cors;
mod framing;
mod handshake;
mod home;
mod listener;
mod operations;
mod peer;
mod proxy_protocol;
mod published;
mod refusal;
mod registry;
mod responses_socket;
mod routes;
mod service;
mod serving;
mod socket;
mod sockets;
mod stats;
mod streams;
mod tickets;
mod tls;
mod transport;
mod trusted_proxies;
mod upload;

pub use config::{ClientAuthorities, EdgeConfig, EdgeError, TlsFiles};
pub use cors::{AllowedOrigins, BadOrigin};
pub use operations::{MetricsPage, no_metrics};
pub use routes::{EdgeRoute, ROUTES, RouteAccess, RouteTarget};
pub use service::STOPS_SOON;
pub use serving::{Edge, ServeReport};
pub use stats::EdgeNumber;
pub use tickets::SessionSecret;
pub use tls::TlsCertificate;
pub use trusted_proxies::{AddressHeader, BadNetwork, TrustedProxies};
