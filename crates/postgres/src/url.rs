//! The place of a database as a URL, and which certificate it must show. Knows nothing of tables.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// How long a connection may take to open.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long sent data may stay unacknowledged before the connection counts as broken.
const UNACKNOWLEDGED: Duration = Duration::from_secs(4);

/// A database, such as `postgres://user:password@db.example.com/headrace`.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    pub(crate) config: Config,
    pub(crate) tls: TlsMode,
    /// The place without the password.
    shown: String,
    written: String,
}

impl PostgresUrl {
    /// Returns the URL as it was written, with its password.
    pub fn expose(&self) -> &str {
        &self.written
    }
}

/// Whether a connection is encrypted, and whose certificates are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// Not encrypted.
    Disabled,
    /// Encrypted. The certificate must name the host and come from an authority of this file, or of this machine.
    Verified {
        /// A file of authorities in PEM.
        roots: Option<PathBuf>,
    },
}

/// A text that is no place of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostgresUrlError {
    /// The URL cannot be read.
    Malformed {
        /// What is wrong with it.
        why: String,
    },
    /// The URL names no host, or no database.
    Missing {
        /// The part that is missing.
        part: &'static str,
    },
    /// The mode does not verify the server's certificate.
    UnverifiedTls {
        /// The mode.
        mode: String,
    },
}

impl fmt::Display for PostgresUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { why } => write!(f, "the URL of the database cannot be read: {why}"),
            Self::Missing { part } => {
                write!(
                    f,
                    "the URL of the database names no {part}; write postgres://USER:PASSWORD@HOST/DATABASE"
                )
            }
            Self::UnverifiedTls { mode } => write!(
                f,
                "sslmode={mode} would not verify the database's certificate; write sslmode=verify-full, with sslrootcert=FILE \
                 for an authority of your own, or sslmode=disable for a connection that nobody can listen to"
            ),
        }
    }
}

impl std::error::Error for PostgresUrlError {}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresUrl").field(&self.shown).finish()
    }
}

impl FromStr for PostgresUrl {
    type Err = PostgresUrlError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut roots, mut others) = (None, None, Vec::new());
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value.to_owned()),
                Some(("sslrootcert", value)) => roots = Some(PathBuf::from(value)),
                _ => others.push(option),
            }
        }
        let rest = if others.is_empty() { place.to_owned() } else { format!("{place}?{}", others.join("&")) };
        let parsed = rest.parse::<Config>();
        let mut config = parsed.map_err(|error| PostgresUrlError::Malformed { why: error.to_string() })?;
        if config.get_hosts().is_empty() {
            return Err(PostgresUrlError::Missing { part: "host" });
        }
        let database = config.get_dbname().ok_or(PostgresUrlError::Missing { part: "database" })?.to_owned();
        let hosts: Vec<String> = config.get_hosts().iter().map(shown_host).collect();
        let tls = match mode.as_deref() {
            Some("disable") => TlsMode::Disabled,
            Some("verify-full") => TlsMode::Verified { roots },
            Some(mode) => return Err(PostgresUrlError::UnverifiedTls { mode: mode.to_owned() }),
            None if roots.is_none() && config.get_hosts().iter().all(is_local) => TlsMode::Disabled,
            None => TlsMode::Verified { roots },
        };
        config.ssl_mode(match tls {
            TlsMode::Disabled => SslMode::Disable,
            TlsMode::Verified { .. } => SslMode::Require,
        });
        config.connect_timeout(CONNECT_LIMIT);
        config.tcp_user_timeout(UNACKNOWLEDGED);
        config.keepalives_idle(Duration::from_secs(5));
        config.keepalives_interval(Duration::from_secs(2));
        config.keepalives_retries(2);
        if config.get_application_name().is_none() {
            config.application_name("headrace");
        }
        let ports: Vec<String> = config.get_ports().iter().map(u16::to_string).collect();
        let port = if ports.is_empty() { String::new() } else { format!(":{}", ports.join(",")) };
        let shown = format!("postgres://{}{port}/{database}", hosts.join(","));
        Ok(Self { config, tls, shown, written: url.to_owned() })
    }
}

fn shown_host(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    }
}

/// Whether a connection to a host stays on this machine.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let address = name.parse::<std::net::IpAddr>();
            name == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_database_and_never_shows_its_password() {
        for (url, shown, tls) in [
            ("postgres://me:secret@127.0.0.1:5433/db", "postgres://127.0.0.1:5433/db", TlsMode::Disabled),
            (
                "postgresql://me@db.example.com/db",
                "postgres://db.example.com:5432/db",
                TlsMode::Verified { roots: None },
            ),
            (
                "postgres://me@db/db?sslrootcert=/etc/ca.pem&application_name=x",
                "postgres://db:5432/db",
                TlsMode::Verified { roots: Some("/etc/ca.pem".into()) },
            ),
            ("postgres://me@db/db?sslmode=disable", "postgres://db:5432/db", TlsMode::Disabled),
            (
                "postgres://me@localhost/db?sslmode=verify-full",
                "postgres://localhost:5432/db",
                TlsMode::Verified { roots: None },
            ),
        ] {
            let parsed: PostgresUrl = url.parse().unwrap();
            assert_eq!((parsed.to_string().as_str(), &parsed.tls), (shown, &tls), "{url}");
            assert!(!format!("{parsed:?} {parsed}").contains("secret"));
            assert_eq!(parsed.expose(), url);
        }
        for (url, part) in [
            ("postgres://me@db", "names no database"),
            ("postgres:///db", "names no host"),
            ("postgres://me@db/db?sslmode=require", "sslmode=require would not verify"),
            ("postgres://me@db/db?sslmode=prefer", "sslmode=prefer would not verify"),
            ("postgres://me@db:port/db", "cannot be read"),
        ] {
            let error = url.parse::<PostgresUrl>().unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
