//! A request for what clients store, as an edge has understood it. Knows no HTTP library, and no objects.

use crate::Credentials;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectMethod {
    /// To look.
    Get,
    /// To make or to change something.
    Post,
    /// To remove it.
    Delete,
}

/// The head of such a request.
#[derive(Debug)]
pub struct ObjectAsk {
    /// What is to be done.
    pub method: ObjectMethod,
    /// With what: the path behind `/v1/`, decoded.
    pub path: String,
    /// The fields of the query, decoded, in their order.
    pub query: Vec<(String, String)>,
    /// What the caller shows of itself.
    pub credentials: Credentials,
}
