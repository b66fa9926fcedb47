//! Arguments of `headrace ping`. Must not know what is measured.

use std::path::PathBuf;

use clap::Args;
use secrecy::SecretString;

use crate::geo::GeoPlace;

/// `headrace ping`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace ping http://127.0.0.1:8080 --count 50\n  headrace ping http://127.0.0.1:8080 --from zurich --to us-east-1      the time that light needs for the distance\n  headrace ping http://127.0.0.1:8080 --call      the network's share of a call"
)]
pub(crate) struct PingArgs {
    /// Server address [default: http://127.0.0.1:8080]
    #[arg(
        value_name = "URL",
        env = "HEADRACE_BASE_URL",
        hide_env = true,
        default_value = "http://127.0.0.1:8080",
        hide_default_value = true
    )]
    pub(crate) url: String,
    /// Number of measurements of each step
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
    /// Location of this machine: a city, a cloud region, or LATITUDE,LONGITUDE
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub(crate) from: Option<GeoPlace>,
    /// Location of the server [default: the region in the server's name, if any]
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub(crate) to: Option<GeoPlace>,
    /// Also ask a model for a few tokens, and show the network's share of the call. The call is charged as usual
    #[arg(long)]
    pub(crate) call: bool,
    /// Model to ask [default: the first one that the server lists]
    #[arg(long, value_name = "NAME", env = "HEADRACE_MODEL")]
    pub(crate) model: Option<String>,
    /// API key for the call. Prefer the variable: other users of this machine can see command lines
    #[arg(long, value_name = "KEY", env = "HEADRACE_API_KEY", hide_env_values = true, value_parser = secret)]
    pub(crate) key: Option<SecretString>,
    /// Data directory of a server on this machine. The directory provides a key for the call [default: ./headrace-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<String>,
    /// Certificate authority (PEM) or self-signed certificate to trust instead of this machine's authorities
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(text.trim().into())
}
