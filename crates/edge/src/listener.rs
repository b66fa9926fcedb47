//! Listening sockets, and how connections come in through them.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};

use crate::EdgeError;
use crate::stats::{Stats, count, value};

/// Connections that the kernel keeps until they are taken.
const BACKLOG: i32 = 1_024;
/// After this long without a byte either way the kernel asks whether the peer still lives.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
/// The pause after the kernel could not hand over a connection, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening socket. What is set here, connections inherit.
///
/// # Errors
/// [`EdgeError::Bind`]
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

/// The next connection, and where it comes from. Calls `short` where there is no descriptor left for it.
pub(crate) async fn accept(
    listener: &TcpListener,
    stats: &Stats,
    short: impl Fn(),
) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                // Tokens are small and wait for nothing. Fails only if the peer is gone, which the next read says too.
                let _ = stream.set_nodelay(true);
                return (stream, address);
            }
            Err(error) => {
                count(&stats.accept_errors);
                if !is_of_the_peer(&error) {
                    let failures = value(&stats.accept_errors);
                    // Seldom: under a shortage it fails twenty times a second.
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

/// Whether the process, or the machine, has no file descriptor left (EMFILE and ENFILE, the same on all Unix systems).
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
