//! Arguments of `headrace ping`. Must not know what is measured.

use std::path::PathBuf;

use clap::Args;
use secrecy::SecretString;

use crate::geo::GeoPlace;

/// `headrace ping`
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace ping http://127.0.0.1:8080 --count 50\n  headrace ping http://127.0.0.1:8080 --from zurich --to us-east-1      what light would need for that way\n  headrace ping http://127.0.0.1:8080 --call      what of a call was network"
)]
pub(crate) struct PingArgs {
    /// The server [default: http://127.0.0.1:8080]
    #[arg(
        value_name = "URL",
        env = "HEADRACE_BASE_URL",
        hide_env = true,
        default_value = "http://127.0.0.1:8080",
        hide_default_value = true
    )]
    pub(crate) url: String,
    /// How often each thing is measured
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
    /// Where this machine is: a city, a cloud's region, or LATITUDE,LONGITUDE
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub(crate) from: Option<GeoPlace>,
    /// Where the server is [default: what its name says, where it names a region]
    #[arg(long, value_name = "PLACE", allow_hyphen_values = true)]
    pub(crate) to: Option<GeoPlace>,
    /// Ask a model for a few tokens, too, and say what of that was network. It costs what such a call costs
    #[arg(long)]
    pub(crate) call: bool,
    /// Model to ask [default: the first one that the server lists]
    #[arg(long, value_name = "NAME", env = "HEADRACE_MODEL")]
    pub(crate) model: Option<String>,
    /// API key for the call (other users of this machine see it on a command line: prefer the variable)
    #[arg(long, value_name = "KEY", env = "HEADRACE_API_KEY", hide_env_values = true, value_parser = secret)]
    pub(crate) key: Option<SecretString>,
    /// Data directory of the server, if it runs on this machine: it lends a key for the call [default: ./headrace-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<String>,
    /// Trust this authority (PEM), or this self-signed certificate, instead of this machine's list
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(text.trim().into())
}
