//! Arguments of commands that call a server as its clients do. Must not know the purpose of the calls.

use std::path::PathBuf;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};

/// A server, and the key for it.
#[derive(Debug, Args)]
pub(crate) struct CallerArgs {
    /// Server to talk to [default: the one of --data-dir, else http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", env = "HEADRACE_BASE_URL", global = true)]
    pub(crate) url: Option<String>,
    /// API key (other users of this machine see it on a command line: prefer the variable). On the server's own machine the user who
    /// may read its data directory needs none
    #[arg(long, value_name = "KEY", env = "HEADRACE_API_KEY", hide_env_values = true, value_parser = secret, global = true)]
    pub(crate) key: Option<SecretString>,
    /// Data directory of the server, if it runs on this machine: it lends a key for some hours [default: ./headrace-data]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<String>,
    /// Trust this authority (PEM), or this self-signed certificate, instead of this machine's list
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) ca: Option<PathBuf>,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(text.trim().into())
}

/// Returns the given key. `None` if it is empty.
pub(crate) fn given_key(key: &Option<SecretString>) -> Option<&SecretString> {
    key.as_ref().filter(|key| !key.expose_secret().trim().is_empty())
}
