//! Arguments of commands that call a server as its clients do. Must not know the purpose of the calls.

use std::path::PathBuf;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};

/// A server, and the key for it.
#[derive(Debug, Args)]
pub struct CallerArgs {
    /// Server address [default: the server of --data-dir, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", env = "HEADRACE_BASE_URL", global = true)]
    pub url: Option<String>,
    /// API key. Prefer the variable: other users of this machine can see command lines. On the server's machine, a user who can
    /// read the server's data directory needs no key
    #[arg(long, value_name = "KEY", env = "HEADRACE_API_KEY", hide_env_values = true, value_parser = secret, global = true)]
    pub key: Option<SecretString>,
    /// Data directory of a server on this machine. The directory provides a temporary key, valid for some hours [default: ./headrace-data]
    #[arg(long, value_name = "DIR", global = true)]
    pub data_dir: Option<String>,
    /// Certificate authority (PEM) or self-signed certificate to trust instead of this machine's authorities
    #[arg(long, value_name = "FILE", global = true)]
    pub ca: Option<PathBuf>,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(text.trim().into())
}

/// Returns the given key. `None` if it is empty.
pub fn given_key(key: &Option<SecretString>) -> Option<&SecretString> {
    key.as_ref().filter(|key| !key.expose_secret().trim().is_empty())
}
