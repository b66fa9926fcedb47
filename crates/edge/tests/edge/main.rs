//! The edge on real sockets, in front of a stub that does what the request's body says. Every limit is short.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of this is test code; a failure is to stop the test"
)]

mod abuse;
mod clients;
mod cors;
mod drain;
mod http1;
mod http2;
mod internal_api;
mod limits;
mod notice;
mod proxies;
mod routes;
mod stub;
mod tls;
mod websocket;
