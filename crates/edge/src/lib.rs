//! The edge: sockets, TLS 1.3, HTTP/1.1 and HTTP/2, byte and time limits, and the status of what goes wrong there.
//! Knows bytes and routes; must not know tokens, prices, keys' meaning, limits on tenants or engines: it hands raw
//! credentials and the way to a body to a [`Front`] and carries the answer back.

mod activity;
mod answers;
mod body;
mod config;
mod connection;
mod cors;
mod framing;
mod handshake;
mod home;
mod listener;
mod operations;
mod peer;
mod registry;
mod routes;
mod service;
mod serving;
mod socket;
mod sockets;
mod stats;
mod streams;
mod tickets;
mod tls;
mod told;
mod transport;
mod turns;
mod upload;

pub use config::{EdgeConfig, EdgeError, TlsFiles};
pub use cors::{BadOrigin, Origins};
pub use operations::{MetricsPage, no_metrics};
pub use routes::{Access, ROUTES, Route, Target};
pub use service::STOPS_SOON;
pub use serving::{Edge, ServeReport};
pub use stats::EdgeNumber;
pub use tickets::SessionSecret;
pub use tls::Certificate;
