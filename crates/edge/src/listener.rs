//! Listening sockets, and accepting connections from them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::EdgeError;
use crate::stats::{EdgeStats, count, value};

/// Maximum number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1_024;
/// Idle time in both directions after which the kernel checks whether the peer still lives.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
/// Pause after the kernel failed to accept a connection, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Opens a listening socket. Connections inherit its options.
///
/// # Errors
/// [`EdgeError::Bind`] if the address cannot be bound.
pub(crate) fn listen(address: SocketAddr, send_buffer_bytes: usize) -> Result<TcpListener, EdgeError> {
    let open = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_send_buffer_size(send_buffer_bytes)?;
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_AFTER))?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    open().map_err(|source| EdgeError::Bind { address, source })
}

/// Accepts the next connection and returns it with its peer address. Calls `short` if no file descriptor is left for
/// it.
pub(crate) async fn accept(
    listener: &TcpListener,
    stats: &EdgeStats,
    short: impl Fn(),
) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                // Tokens are small and must not be delayed. This fails only if the peer is gone, which the next read
                // reports as well.
                let _ = stream.set_nodelay(true);
                return (stream, address);
            }
            Err(error) => {
                count(&stats.accept_errors);
                if !is_of_the_peer(&error) {
                    let failures = value(&stats.accept_errors);
                    // Logged rarely, because during a shortage this fails twenty times a second.
                    if failures.is_power_of_two() {
                        tracing::warn!(%error, failures, "a connection could not be taken");
                    }
                    if is_shortage(&error) {
                        short();
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Returns whether the process or the machine has no file descriptor left (EMFILE and ENFILE, which have the same
/// values on all Unix systems).
fn is_shortage(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}
