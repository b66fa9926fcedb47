//! Builds the HTTP client of one server from its spec: pool, TLS, proxy and HTTP versions. Must not know calls.

use std::error::Error;
use std::net::SocketAddr;

use reqwest::redirect::Policy;

use crate::address::ServerAddress;
use crate::spec::{UpstreamSpec, UseHttp2, certificates, proxy};
use crate::trust;

/// Builds a client for a checked spec.
///
/// # Errors
/// Why the client cannot be built, as text. For example, this machine has no root certificates.
pub(crate) fn client(spec: &UpstreamSpec, tls: bool) -> Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        // A redirect must not carry a key to another host.
        .redirect(Policy::none())
        // Retries are decided by the callers of this crate, which know their cost.
        .retry(reqwest::retry::never())
        .connect_timeout(spec.timeouts.connect)
        .pool_max_idle_per_host(spec.pool.idle_connections)
        .pool_idle_timeout(spec.pool.idle_for.unwrap_or_else(|| spec.kind.pool_idle()))
        .tcp_nodelay(true)
        .no_proxy();
    builder = match spec.http2.when {
        UseHttp2::Auto => builder,
        UseHttp2::Off => builder.http1_only(),
        UseHttp2::Always => builder.http2_prior_knowledge(),
    };
    if spec.http2.when != UseHttp2::Off {
        let head_bytes = u32::try_from(spec.bounds.head_bytes).unwrap_or(u32::MAX);
        builder = builder.http2_max_header_list_size(head_bytes).http2_adaptive_window(true);
        if let Some(ping) = spec.http2.ping {
            builder = builder.http2_keep_alive_interval(ping).http2_keep_alive_timeout(ping);
        }
    }
    // Without TLS no root certificates are needed, so a machine without any can still reach servers in its network.
    builder = match &spec.extra_roots_pem {
        _ if tls => {
            let config = trust::config(spec);
            builder.tls_backend_preconfigured(config.map_err(|cause| unbuilt(spec, &cause))?)
        }
        Some(pem) => builder.tls_certs_merge(certificates(pem)?),
        None => builder.tls_certs_only([]),
    };
    if let (Some(ip), Ok(address)) = (spec.ip, ServerAddress::parse(&spec.url)) {
        let (name, port) = address.host();
        builder = builder.resolve(name, SocketAddr::new(ip, port));
    }
    if let Some(url) = &spec.proxy {
        builder = builder.proxy(proxy(url)?);
    }
    builder.build().map_err(|error| {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        unbuilt(spec, &cause)
    })
}

fn unbuilt(spec: &UpstreamSpec, cause: &str) -> String {
    format!("no client for `{}` can be built: {cause}", spec.name)
}
