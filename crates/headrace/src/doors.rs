//! Addresses: whether they are free, whether a server is there already, and how they are written. Must not know what is served.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;

use headrace_admin::{AdminCommand, AdminReply, control};

use crate::config::Config;
use crate::config::admin::AdminListen;

/// Whether a server runs on the directory already, and then where.
pub(crate) fn not_running(data_dir: &Path) -> Result<(), String> {
    // Whatever else the socket says, the lock and the listener will say it better.
    let Ok(AdminReply::Status(status)) = control::call(data_dir, &AdminCommand::Status) else {
        return Ok(());
    };
    Err(format!(
        "already running at {}, process {}, data directory {}: use it, or stop it with `kill {}`",
        status.listen,
        status.pid,
        data_dir.display(),
        status.pid
    ))
}

/// Whether the addresses are free: known before a model takes minutes to load.
pub(crate) fn can_listen(config: &Config) -> Result<(), String> {
    let edge = &config.server.edge;
    let admin = match config.admin.listen {
        AdminListen::At(at) => Some(at),
        AdminListen::Usual | AdminListen::Off => None,
    };
    let wanted = [Some(edge.listen), edge.metrics_listen, admin].into_iter().flatten();
    for address in wanted.filter(|at| at.port() != 0) {
        TcpListener::bind(address).map_err(|error| {
            format!(
                "cannot listen on {address}: {error}; another server, of another data directory, has it: choose \
                 another address with --listen, such as 127.0.0.1:0"
            )
        })?;
    }
    Ok(())
}

/// How to reach an address from this machine.
pub(crate) fn url(address: SocketAddr, tls: bool) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}
