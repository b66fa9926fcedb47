//! A request for stored objects, as the edge parsed it. Must not know an HTTP library or the objects.

use crate::Credentials;

/// The method of a request for stored objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectMethod {
    /// Reads an object or a list.
    Get,
    /// Creates or changes an object.
    Post,
    /// Deletes an object.
    Delete,
}

/// The head of a request for stored objects.
#[derive(Debug)]
pub struct ObjectAsk {
    /// The method.
    pub method: ObjectMethod,
    /// The path after `/v1/`, decoded.
    pub path: String,
    /// The query fields, decoded, in order.
    pub query: Vec<(String, String)>,
    /// The caller's credential headers.
    pub credentials: Credentials,
}
