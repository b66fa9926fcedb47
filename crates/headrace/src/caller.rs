//! A server as its clients reach it: where it is, with which key, and what to do where it cannot be reached. On the server's own machine it
//! lends a key (`house`). Must not know what it is asked.

use headrace_client::{ClientConfig, ClientError};

use crate::ca::read_ca;
use crate::cli::At;
use crate::cli::caller::Caller;
use crate::house::House;

/// Where a server of ours listens unless it is told otherwise.
const USUAL_URL: &str = "http://127.0.0.1:8080";

/// How a server is called.
pub(crate) struct Reached {
    pub(crate) config: ClientConfig,
    /// Who lent the key, where none was given.
    pub(crate) house: Option<House>,
}

/// The server that is meant, and a key.
///
/// # Errors
/// A file of certificates that cannot be read.
pub(crate) async fn reach(caller: &Caller) -> Result<Reached, ClientError> {
    let ca_pem = caller.ca.as_deref().map(read_ca).transpose().map_err(ClientError::Config)?;
    let house = match &caller.key {
        Some(_) => None,
        None => lender(caller).await,
    };
    let url = house.as_ref().map(|house| house.url.clone()).or_else(|| caller.url.clone());
    let key = caller.key.clone().or_else(|| house.as_ref().map(|house| house.key.clone()));
    let url = url.unwrap_or_else(|| USUAL_URL.to_owned());
    Ok(Reached { config: ClientConfig { key, ca_pem, ..ClientConfig::new(url) }, house })
}

/// The server of the data directory, if it is the one that is meant.
async fn lender(caller: &Caller) -> Option<House> {
    let at = At { data_dir: caller.data_dir.clone(), config: None, json: false };
    House::of(crate::commands::data_dir(&at).ok()?, caller.url.clone()).await
}

/// What to do about an error that any call can meet, where there is something.
pub(crate) fn advice(error: &ClientError, has_key: bool) -> Option<&'static str> {
    match error {
        ClientError::Api(error) if error.status == Some(401) && !has_key => Some(
            "No key was given: set HEADRACE_API_KEY (the first start of `headrace up` shows the first key).",
        ),
        ClientError::Connection(_) => Some("Is it running? `headrace up` starts one; --url names another."),
        _ => None,
    }
}
