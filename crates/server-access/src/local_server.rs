//! The server of a data directory on this machine, and the key that it lends to users who may read that directory. A
//! lent key is sent only to the server that lent it. Knows the control socket, and nothing of conversations.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use headrace_admin::{AdminCommand, AdminReply, control};
use secrecy::SecretString;

/// A running server on this machine, with a lent key for its API.
pub struct LocalServer {
    /// Its address.
    pub url: String,
    /// The lent key.
    pub key: SecretString,
    data_dir: PathBuf,
}

impl LocalServer {
    /// Finds the server that runs on `data_dir` and borrows a key from it. Returns `None` if no server runs there, if
    /// that server does not listen at `url`, or if it lends no key. The caller then treats the server like any other.
    pub async fn of(data_dir: PathBuf, url: Option<String>) -> Option<Self> {
        // The control socket is read on a blocking thread, because this thread serves a user.
        tokio::task::spawn_blocking(move || Self::find(data_dir, url.as_deref())).await.ok()?
    }

    /// Finds the same server again and borrows a fresh key, because a lent key expires after some hours.
    pub async fn again(&self) -> Option<Self> {
        Self::of(self.data_dir.clone(), Some(self.url.clone())).await
    }

    /// The address of the server that runs on `data_dir`, as this machine reaches it. `None` if no server runs there.
    pub(crate) async fn address(data_dir: PathBuf) -> Option<String> {
        tokio::task::spawn_blocking(move || own_address(&data_dir)).await.ok()?
    }

    fn find(data_dir: PathBuf, url: Option<&str>) -> Option<Self> {
        if !is_ours(&data_dir) {
            return None;
        }
        let own = own_address(&data_dir)?;
        let url = match url {
            Some(asked) if !same_server(asked, &own) => return None,
            Some(asked) => asked.to_owned(),
            None => own,
        };
        match control::call(&data_dir, &AdminCommand::LendKey { project: None }).ok()? {
            AdminReply::KeyLent { secret, .. } => {
                Some(Self { url, key: secret.expose().to_owned().into(), data_dir })
            }
            _ => None,
        }
    }
}

fn own_address(data_dir: &Path) -> Option<String> {
    match control::call(data_dir, &AdminCommand::Status).ok()? {
        AdminReply::Status(status) => reachable(&status.listen),
        _ => None,
    }
}

/// Whether this user owns the directory and no other user can write to it. Another user could place a socket of their
/// own in a shared directory.
fn is_ours(data_dir: &Path) -> bool {
    let found = std::fs::metadata(data_dir);
    found.is_ok_and(|found| {
        found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0
    })
}

/// A server's address as this machine reaches it. Wildcard addresses become loopback addresses.
fn reachable(listen: &str) -> Option<String> {
    let (scheme, host, port) = parts(listen)?;
    let host = match host {
        "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        host => host,
    };
    Some(format!("{scheme}://{host}:{port}"))
}

/// Whether `asked` is the address of the server that listens at `own`, on this machine. Scheme and port must be the
/// same, and the hosts must be equal or both be this machine.
fn same_server(asked: &str, own: &str) -> bool {
    let asked = asked.trim().trim_end_matches('/');
    let asked = asked.strip_suffix("/v1").unwrap_or(asked);
    let with_scheme = if asked.contains("://") { asked.to_owned() } else { format!("http://{asked}") };
    let (Some(asked), Some(own)) = (parts(&with_scheme), parts(own)) else { return false };
    let is_here = |host: &str| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare == "localhost" || bare.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    };
    (asked.0, asked.2) == (own.0, own.2) && (asked.1 == own.1 || is_here(asked.1) && is_here(own.1))
}

/// Scheme, host and port of an address that has these three parts and no others.
fn parts(url: &str) -> Option<(&str, &str, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let (host, port) = rest.rsplit_once(':')?;
    let plain = !host.is_empty() && !host.contains(['/', '@', '?', '#']);
    plain.then_some((scheme, host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_goes_to_its_own_server_alone() {
        let own = "http://127.0.0.1:8080";
        for same in
            ["http://127.0.0.1:8080", "127.0.0.1:8080/v1/", "http://localhost:8080", "http://[::1]:8080"]
        {
            assert!(same_server(same, own), "{same}");
        }
        for other in [
            "http://127.0.0.1:8081",
            "https://127.0.0.1:8080",
            "http://example.com:8080",
            "http://localhost.example.com:8080",
            "http://127.0.0.1:8080@example.com:8080",
            "http://example.com/127.0.0.1:8080",
            "http://10.0.0.1:8080",
            "",
        ] {
            assert!(!same_server(other, own), "{other}");
        }
        assert!(same_server("http://10.0.0.1:1", "http://10.0.0.1:1"), "the address that it listens at");
        assert!(!same_server("http://127.0.0.1:1", "http://10.0.0.1:1"), "something else may listen there");
    }

    #[test]
    fn an_address_that_is_everywhere_is_here() {
        assert_eq!(reachable("http://0.0.0.0:80").as_deref(), Some("http://127.0.0.1:80"));
        assert_eq!(reachable("https://[::]:443").as_deref(), Some("https://[::1]:443"));
        assert_eq!(reachable("http://10.1.2.3:80").as_deref(), Some("http://10.1.2.3:80"));
        assert_eq!(reachable("nonsense"), None);
    }

    #[test]
    fn a_directory_that_others_write_to_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let set = |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o700);
        assert!(is_ours(dir.path()));
        set(0o770);
        assert!(!is_ours(dir.path()));
        assert!(!is_ours(Path::new("/nowhere/at/all")));
        if !rustix::process::geteuid().is_root() {
            assert!(!is_ours(Path::new("/etc")), "another user's");
        }
    }
}
