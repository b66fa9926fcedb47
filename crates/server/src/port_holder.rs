//! Finds out which program listens on a taken address, as far as this machine shows it. Must not know what the address
//! is wanted for.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// Time limit for each read and write, and for the connection.
const ANSWER_WITHIN: Duration = Duration::from_millis(300);
/// Maximum number of bytes of the answer that are read.
const MOST_READ: u64 = 4096;
/// A route that both listeners of a Headrace server answer, each in its own way.
const ROUTE: &str = "/admin/v1/status";
/// The state code of a listening socket in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// Describes the program on an address, in words that follow "it is taken by".
pub(crate) fn holder(address: SocketAddr) -> String {
    let process = process_of(address.port());
    let of = process.as_ref().map(|(pid, _)| format!(" (process {pid})")).unwrap_or_default();
    match (ask(address), process) {
        (Some(PortUse::Console), _) => {
            format!("the console of another headrace{of}: `--admin-listen off` frees it there")
        }
        (Some(PortUse::Api), _) => format!("another headrace{of}, of another data directory"),
        (None, Some((pid, name))) => format!("`{name}` (process {pid})"),
        (None, None) => "another program".to_owned(),
    }
}

/// The kind of listener that a Headrace server has on an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortUse {
    Api,
    Console,
}

/// Asks the program whether it is a Headrace server.
fn ask(address: SocketAddr) -> Option<PortUse> {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let address = SocketAddr::new(ip, address.port());
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN).ok()?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).ok()?;
    stream.set_write_timeout(Some(ANSWER_WITHIN)).ok()?;
    write!(stream, "GET {ROUTE} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    // The part that arrived before a read timed out is enough.
    let _ = stream.take(MOST_READ).read_to_end(&mut answer);
    recognized(&String::from_utf8_lossy(&answer))
}

fn recognized(answer: &str) -> Option<PortUse> {
    let head = answer.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase();
    if answer.contains("\"not_signed_in\"") {
        Some(PortUse::Console)
    } else if head.contains("x-request-id: req_") {
        Some(PortUse::Api)
    } else {
        None
    }
}

/// The process that listens on a port, with its name. `None` if this machine does not show it, or if the process
/// belongs to another user.
fn process_of(port: u16) -> Option<(u32, String)> {
    let listeners = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).ok());
    let inode = listeners.iter().flatten().find_map(|table| inode_of(table, port))?;
    let socket = format!("socket:[{inode}]");
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        let is_socket = |file: std::fs::DirEntry| {
            std::fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&socket))
        };
        if files.flatten().any(is_socket) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim().chars().filter(|c| !c.is_control()).collect()));
        }
    }
    None
}

/// The inode of the socket that listens on a port, from a kernel table.
fn inode_of(table: &str, port: u16) -> Option<&str> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (local, state) = (fields.nth(1)?, fields.nth(1)?);
        let (_, of) = local.rsplit_once(':')?;
        let listens = state == LISTENS && u16::from_str_radix(of, 16).ok()? == port;
        fields.nth(5).filter(|_| listens)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_headrace_is_recognized_by_its_answer() {
        let console = "HTTP/1.1 401 Unauthorized\r\n\r\n{\"code\":\"not_signed_in\"}";
        assert_eq!(recognized(console), Some(PortUse::Console));
        let api = "HTTP/1.1 404 Not Found\r\nX-Request-Id: req_01\r\n\r\n{}";
        assert_eq!(recognized(api), Some(PortUse::Api));
        for other in ["", "SSH-2.0-OpenSSH\r\n", "HTTP/1.1 200 OK\r\n\r\nx-request-id: req_"] {
            assert_eq!(recognized(other), None, "{other}");
        }
    }

    #[test]
    fn the_kernel_s_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1F90 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
             1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2222 1\n";
        assert_eq!(inode_of(table, 8080), Some("2222"), "the one that listens");
        assert_eq!(inode_of(table, 8081), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_found_by_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(process_of(address.port()).map(|(pid, _)| pid), Some(std::process::id()));
        // A program that accepts connections and does not answer.
        assert!(holder(address).contains(&std::process::id().to_string()));
    }
}
