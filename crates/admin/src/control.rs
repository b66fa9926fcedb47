//! The control socket: a Unix socket in the data directory, open only to its owner, with one JSON value per line.
//! Carries commands and replies. Must not know what they do.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{AdminCode, Clock};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::command::{AdminCommand, AdminReply};
use crate::content_act::ContentAct;
use crate::error::{AdminError, ControlError};
use crate::service::AdminService;

/// The socket's name in the data directory.
const SOCKET: &str = "control.sock";
/// The longest path that fits `sockaddr_un`, in bytes (Linux: 108 with its zero byte; BSD and macOS: 104).
const MAX_SOCKET_PATH_BYTES: usize = if cfg!(target_os = "linux") { 107 } else { 103 };
/// Maximum length of a line, in bytes. A reply may list tens of thousands of keys.
const MAX_COMMAND_BYTES: u64 = 256 * 1024;
const MAX_REPLY_BYTES: u64 = 64 * 1024 * 1024;
/// How long a client waits for a reply. Longer than an `fsync` on a slow disk.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum silence of a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of connections served at once. Further ones wait.
const MAX_CONNECTIONS: usize = 16;

/// The protocol's version, sent with every command.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    version: u32,
    command: AdminCommand,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ok(Box<AdminReply>),
    Error(AdminError),
}

/// Sends a command to the server that runs on `data_dir`, and returns its reply. Blocks.
///
/// # Errors
/// [`ControlError::NotRunning`] if no server runs, [`ControlError::Refused`] with the server's reason, or another error
/// that names the socket.
pub fn call(data_dir: &Path, command: &AdminCommand) -> Result<AdminReply, ControlError> {
    let path = data_dir.join(SOCKET);
    let address = Address::of(data_dir)?;
    let io = |doing| {
        let path = path.clone();
        move |source| ControlError::Io { doing, path, source }
    };
    let mut stream = match UnixStream::connect(&address.path) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Err(ControlError::NotRunning { data_dir: data_dir.to_owned() });
        }
        Err(error) => return Err(io("connect to")(error)),
    };
    // A reload has no time limit, because loading models takes long. If the server ends, the connection closes.
    // Nor has forgetting a user, because files are written anew.
    let is_long =
        matches!(command, AdminCommand::Reload | AdminCommand::Contents { act: ContentAct::Forget { .. } });
    let patience = (!is_long).then_some(CALL_TIMEOUT);
    stream.set_read_timeout(patience).map_err(io("set up"))?;
    stream.set_write_timeout(Some(CALL_TIMEOUT)).map_err(io("set up"))?;
    let request = Request { version: VERSION, command: command.clone() };
    let mut line = serde_json::to_vec(&request).map_err(|error| protocol(&error))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(io("write to"))?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_REPLY_BYTES)).read_line(&mut answer).map_err(io("read from"))?;
    if answer.is_empty() {
        return Err(ControlError::Protocol { why: "it closed the connection without an answer".to_owned() });
    }
    match serde_json::from_str(&answer).map_err(|error| protocol(&error))? {
        Answer::Ok(reply) => Ok(*reply),
        Answer::Error(error) => Err(ControlError::Refused(error)),
    }
}

/// The server's side of the socket. Dropping it removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    listener: tokio::net::UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Creates the socket, and replaces one that an earlier process left. The process must hold the directory's lock.
    /// Needs a Tokio runtime.
    ///
    /// # Errors
    /// [`ControlError::Io`] or [`ControlError::PathTooLong`].
    pub fn bind(data_dir: &Path) -> Result<Self, ControlError> {
        let path = data_dir.join(SOCKET);
        let io = |doing| {
            let path = path.clone();
            move |source| ControlError::Io { doing, path, source }
        };
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(io("replace")(error)),
            _ => {}
        }
        let address = Address::of(data_dir)?;
        let listener = tokio::net::UnixListener::bind(&address.path).map_err(io("listen on"))?;
        let socket = Self { listener, path: path.clone() };
        // Only the owner can open the directory. This protects the socket if the directory's permissions are ever
        // loosened.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(io("protect"))?;
        Ok(socket)
    }

    /// Executes commands until this future is dropped.
    pub async fn serve(self, service: Arc<AdminService>, clock: Arc<dyn Clock>) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                // Most likely there are no file descriptors left, which is temporary.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let (service, clock) = (Arc::clone(&service), Arc::clone(&clock));
            tokio::spawn(async move {
                // An error ends only this connection, and its client sees it.
                let _ = converse(stream, service, clock).await;
                drop(place);
            });
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // The next server replaces a socket that could not be removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn converse(
    stream: tokio::net::UnixStream,
    service: Arc<AdminService>,
    clock: Arc<dyn Clock>,
) -> std::io::Result<()> {
    let actor = stream.peer_cred().map_or_else(|_| "local".to_owned(), |peer| format!("uid {}", peer.uid()));
    let (reader, mut writer) = stream.into_split();
    let mut reader = tokio::io::BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut reader).take(MAX_COMMAND_BYTES);
        let read = tokio::time::timeout(IDLE_TIMEOUT, limited.read_until(b'\n', &mut line)).await;
        match read {
            Ok(Ok(0)) | Err(_) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) => {}
        }
        let whole = line.last() == Some(&b'\n');
        let answer = if whole {
            answer(&line, Arc::clone(&service), actor.clone(), Arc::clone(&clock)).await
        } else {
            Answer::Error(AdminError::new(
                AdminCode::TooLong,
                "a command must be one line of at most 256 KiB",
                "",
            ))
        };
        let mut out = serde_json::to_vec(&answer).map_err(std::io::Error::other)?;
        out.push(b'\n');
        tokio::time::timeout(IDLE_TIMEOUT, writer.write_all(&out)).await??;
        if !whole {
            return Ok(());
        }
    }
}

async fn answer(line: &[u8], service: Arc<AdminService>, actor: String, clock: Arc<dyn Clock>) -> Answer {
    let request: Request = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => {
            return Answer::Error(AdminError::new(
                AdminCode::NotUnderstood,
                format!("the running server does not understand this command: {error}"),
                "use the same version of headrace for both",
            ));
        }
    };
    if request.version != VERSION {
        let message = format!("the running server speaks version {VERSION}, not {}", request.version);
        return Answer::Error(AdminError::new(
            AdminCode::Version,
            message,
            "use the same version of headrace for both",
        ));
    }
    let work = move || service.execute(request.command, &actor, clock.now());
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(reply)) => Answer::Ok(Box::new(reply)),
        Ok(Err(error)) => Answer::Error(error),
        Err(_) => {
            Answer::Error(AdminError::new(AdminCode::Internal, "the command failed within the server", ""))
        }
    }
}

/// A path of the socket that is short enough for the operating system.
struct Address {
    path: PathBuf,
    /// Keeps `/proc/self/fd/N` alive.
    _dir: Option<std::fs::File>,
}

impl Address {
    fn of(data_dir: &Path) -> Result<Self, ControlError> {
        let path = data_dir.join(SOCKET);
        if path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
            return Ok(Self { path, _dir: None });
        }
        if !cfg!(target_os = "linux") {
            return Err(ControlError::PathTooLong { path, limit_bytes: MAX_SOCKET_PATH_BYTES });
        }
        // Reach a long path through an open directory, which has a short name under `/proc`.
        use std::os::fd::AsRawFd;
        let dir = match std::fs::File::open(data_dir) {
            Ok(dir) => dir,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(ControlError::NotRunning { data_dir: data_dir.to_owned() });
            }
            Err(source) => return Err(ControlError::Io { doing: "open", path: data_dir.to_owned(), source }),
        };
        let short = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()));
        Ok(Self { path: short, _dir: Some(dir) })
    }
}

fn protocol(error: &serde_json::Error) -> ControlError {
    ControlError::Protocol { why: error.to_string() }
}

#[cfg(test)]
mod tests;
