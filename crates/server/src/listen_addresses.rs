//! Listen addresses: whether they are free, whether a server already runs there, and how they are written. Must not
//! know what is served.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;

use headrace_admin::{AdminCommand, AdminReply, control};
use headrace_config::ServerSettings;
use headrace_config::admin::AdminListen;

use crate::port_holder::holder;

/// Returns an error with the server's address if one already runs on the directory.
pub(crate) fn not_running(data_dir: &Path) -> Result<(), String> {
    // For any other answer, the lock and the listener give a better error later.
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

/// Checks that the addresses are free, before loading a model takes minutes.
pub(crate) fn can_listen(config: &ServerSettings) -> Result<(), String> {
    let edge = &config.server.edge;
    let admin = match config.admin.listen {
        AdminListen::At(at) => Some(at),
        AdminListen::Usual | AdminListen::Off => None,
    };
    let wanted = [
        (Some(edge.listen), "--listen"),
        (edge.metrics_listen, "--metrics-listen"),
        (admin, "--admin-listen"),
    ];
    for (address, flag) in wanted {
        let Some(address) = address.filter(|at| at.port() != 0) else { continue };
        TcpListener::bind(address).map_err(|error| cannot(address, flag, &error))?;
    }
    Ok(())
}

/// Explains why an address cannot be listened on, and what to do.
pub(crate) fn cannot(address: SocketAddr, flag: &str, error: &Error) -> String {
    let port = address.port();
    let (why, way_out) = match error.kind() {
        ErrorKind::AddrInUse => (
            format!("it is taken by {}", holder(address)),
            format!("choose another address with {flag}, such as {}", SocketAddr::new(address.ip(), 0)),
        ),
        ErrorKind::PermissionDenied => (
            format!("this user may not listen on port {port}"),
            format!("choose a port from 1024 on with {flag}, or give the program CAP_NET_BIND_SERVICE"),
        ),
        ErrorKind::AddrNotAvailable => (
            format!("no network interface of this machine has the address {}", address.ip()),
            format!("choose 127.0.0.1, 0.0.0.0 or an address of this machine with {flag}"),
        ),
        _ => (error.to_string(), format!("choose another address with {flag}")),
    };
    format!("cannot listen on {address}: {why}; {way_out}")
}

/// The URL of an address as this machine reaches it.
pub(crate) fn url(address: SocketAddr, tls: bool) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_names_its_own_way_out() {
        let at = SocketAddr::from(([127, 0, 0, 1], 80));
        let said = |kind: ErrorKind, flag| cannot(at, flag, &Error::from(kind));
        let denied = said(ErrorKind::PermissionDenied, "--listen");
        assert!(denied.contains("may not listen on port 80") && !denied.contains("headrace"), "{denied}");
        let missing = said(ErrorKind::AddrNotAvailable, "--metrics-listen");
        assert!(
            missing.contains("no network interface") && missing.contains("--metrics-listen"),
            "{missing}"
        );
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = cannot(taken.local_addr().unwrap(), "--admin-listen", &ErrorKind::AddrInUse.into());
        assert!(
            taken.contains("taken by") && taken.contains("--admin-listen, such as 127.0.0.1:0"),
            "{taken}"
        );
        assert!(!taken.contains("another headrace"), "{taken}");
    }
}
