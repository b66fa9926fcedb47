//! Sign-in of API callers with JWTs from identity providers: keys of the providers, verification, and rules from claims
//! to a principal. Must not know the HTTP of callers, status codes, money or API keys.

mod algorithm;
mod authenticator;
mod cache;
mod claims;
mod config;
mod documents;
mod http_documents;
mod issuer;
mod json;
mod key_set;
mod mapping;
mod refusal;
mod token;

pub use authenticator::{KeyWait, TokenAuthenticator};
pub use config::{AccessRule, ClaimCondition, GrantValue, IssuerConfig, JwtConfigError};
pub use documents::{DocumentError, DocumentFuture, DocumentSource, FetchedDocument};
pub use http_documents::HttpDocuments;
pub use refusal::TokenRefusal;
