//! How a command reaches a server as its clients do: its address, a key, and advice on errors. On the server's own
//! machine, the server lends a key. Must not know what the server is asked.

pub mod arguments;
pub mod local_server;

use std::path::PathBuf;

use headrace_client::{Client, ClientConfig, ClientError};
use headrace_config::ServerSettings;
use headrace_config::ca::read_ca;
use headrace_terminal::output;
use secrecy::{ExposeSecret, SecretString};

use self::arguments::{CallerArgs, given_key};
use self::local_server::LocalServer;

/// The variable that holds a caller's key.
const KEY_VARIABLE: &str = "HEADRACE_API_KEY";

/// The default address of a server.
const USUAL_URL: &str = "http://127.0.0.1:8080";

/// How to reach a server.
pub struct ReachedServer {
    /// Its address, the key and the authorities to trust.
    pub config: ClientConfig,
    /// The server that lent the key, if the key is lent.
    pub lender: Option<LocalServer>,
}

/// Finds the server and a key. A named data directory decides which server it is, unless an address is named too. If
/// the server does not know a key from the environment, a lent key replaces it.
///
/// # Errors
/// Returns an error if a certificate file cannot be read, or if no server runs on a named data directory.
pub async fn reach(caller: &CallerArgs) -> Result<ReachedServer, ClientError> {
    let ca_pem = caller.ca.as_deref().map(read_ca).transpose().map_err(ClientError::Config)?;
    let key = given_key(&caller.key).cloned();
    let named = match &caller.data_dir {
        Some(dir) if caller.url.is_none() => Some(server_of(dir).await?),
        Some(_) | None => None,
    };
    let url = named.clone().or_else(|| caller.url.clone()).unwrap_or_else(|| USUAL_URL.to_owned());
    let config = ClientConfig { key, ca_pem, ..ClientConfig::new(url) };
    let wants_lent = match &config.key {
        None => true,
        Some(key) => named.is_some() && is_of_environment(key) && !is_known(&config).await,
    };
    let lender = if wants_lent { lender(caller).await } else { None };
    let Some(lender) = lender else { return Ok(ReachedServer { config, lender: None }) };
    if config.key.is_some() {
        output::note(&format!(
            "note: the key in {KEY_VARIABLE} is none of this server's: asking with a lent key"
        ));
    }
    let (url, key) = (lender.url.clone(), Some(lender.key.clone()));
    let config = ClientConfig { key, ca_pem: config.ca_pem, ..ClientConfig::new(url) };
    Ok(ReachedServer { config, lender: Some(lender) })
}

/// The address of the server that runs on a data directory.
async fn server_of(dir: &str) -> Result<String, ClientError> {
    let address = LocalServer::address(PathBuf::from(dir)).await;
    address.ok_or_else(|| {
        ClientError::Config(format!(
            "no server runs on the data directory {dir}; start one with `headrace up --data-dir {dir}`, or name a server with --url"
        ))
    })
}

/// Whether the key came from the environment. A key on the command line was chosen for this call and is never replaced.
fn is_of_environment(key: &SecretString) -> bool {
    std::env::var(KEY_VARIABLE).is_ok_and(|value| value.trim() == key.expose_secret())
}

/// Whether the server accepts the key. `true` if the server cannot be asked; the call itself then reports the error.
async fn is_known(config: &ClientConfig) -> bool {
    let Ok(client) = Client::new(config.clone()) else { return true };
    !matches!(client.models().await, Err(ClientError::Api(error)) if error.status == Some(401))
}

/// The server of the data directory with a lent key, if it is the intended server.
async fn lender(caller: &CallerArgs) -> Option<LocalServer> {
    let settings = ServerSettings::of_command(None, caller.data_dir.as_deref()).ok()?;
    LocalServer::of(settings.data_dir, caller.url.clone()).await
}

/// What to do about an error that any call can meet. `None` if there is no advice.
pub fn advice(error: &ClientError, has_key: bool) -> Option<&'static str> {
    match error {
        ClientError::Api(error) if error.status == Some(401) && !has_key => Some(
            "No key was given: set HEADRACE_API_KEY or --key (the first start of `headrace up` shows the first key). On the server's own machine --data-dir names its data directory, and it lends a key.",
        ),
        ClientError::Api(error) if error.status == Some(401) => Some(
            "The server does not know the key of HEADRACE_API_KEY or --key: name another one, or leave both out on the server's own machine, with --data-dir.",
        ),
        ClientError::Connection(_) => Some("Is it running? `headrace up` starts one; --url names another."),
        _ => None,
    }
}
