//! Where the server is, and how a connection to it is opened. Must not know what is asked of it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, RedisResult, TlsCertificates};

/// How long the connection and its first commands may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);
const SCHEMES: [&str; 4] = ["redis://", "rediss://", "valkey://", "valkeys://"];

/// The URL of a Valkey or Redis server. Its `Display` form shows no password.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerAddress {
    /// With the scheme `redis` or `rediss`.
    url: String,
    shown: String,
}

/// Why a text is no URL of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddressError {
    why: String,
}

impl fmt::Display for ServerAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for ServerAddressError {}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl FromStr for ServerAddress {
    type Err = ServerAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let failed = |why: String| ServerAddressError { why };
        if !SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            let why =
                "must begin with `redis://`, or with `rediss://` for TLS, such as `redis://10.0.0.5:6379/0`";
            return Err(failed(why.to_owned()));
        }
        let url = text.replacen("valkeys://", "rediss://", 1).replacen("valkey://", "redis://", 1);
        let info = url.as_str().into_connection_info();
        let info = info.map_err(|error| failed(format!("is not a URL of a server: {error}")))?;
        let scheme = if url.starts_with("rediss://") { "rediss" } else { "redis" };
        let shown = format!("{scheme}://{}/{}", info.addr(), info.redis_settings().db());
        Ok(Self { url, shown })
    }
}

/// Opens connections.
#[derive(Debug)]
pub(crate) struct ServerConnector {
    client: Client,
}

impl ServerConnector {
    /// # Errors
    /// The file of the certificate authority cannot be read.
    pub(crate) fn new(address: &ServerAddress, ca_file: Option<&PathBuf>) -> Result<Self, String> {
        // The library takes the process's provider, and there is none if the program names one at each use. An error says
        // that there is one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = match ca_file {
            None => Client::open(address.url.as_str()),
            Some(file) => {
                let root_cert = Some(read(file)?);
                Client::build_with_tls(address.url.as_str(), TlsCertificates { client_tls: None, root_cert })
            }
        };
        client.map(|client| Self { client }).map_err(|error| error.to_string())
    }

    /// Opens a connection.
    pub(crate) async fn open(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(OPEN_TIMEOUT))
            .set_response_timeout(Some(OPEN_TIMEOUT));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_without_secrets() {
        let rows = [
            ("redis://127.0.0.1:6379", Ok("redis://127.0.0.1:6379/0")),
            ("redis://me:secret@db.internal:7000/3", Ok("redis://db.internal:7000/3")),
            ("rediss://:secret@db/", Ok("rediss://db:6379/0")),
            ("valkey://db", Ok("redis://db:6379/0")),
            ("valkeys://db", Ok("rediss://db:6379/0")),
            ("http://db", Err("must begin with `redis://`")),
            ("db:6379", Err("must begin with `redis://`")),
            ("redis://", Err("is not a URL of a server")),
            ("redis://db/x", Err("is not a URL of a server")),
        ];
        for (text, expected) in rows {
            match (text.parse::<ServerAddress>(), expected) {
                (Ok(address), Ok(shown)) => {
                    assert_eq!(address.to_string(), shown, "{text}");
                    assert!(!format!("{address:?}").contains("secret"));
                }
                (Err(error), Err(start)) => assert!(error.to_string().starts_with(start), "{text}: {error}"),
                (read, _) => panic!("{text}: {read:?}"),
            }
        }
    }
}
