//! Sign-in with identity providers: of API callers with JWTs, and of operators by an authorization code. Keys of the
//! providers, verification, and rules from claims to a principal or a role. Also signs texts and webhooks that this program
//! makes. Must not know the HTTP of callers, status codes, money or API keys.

mod algorithm;
mod authenticator;
mod cache;
mod certificate_users;
mod claims;
mod code_exchange;
mod config;
mod discovery;
mod documents;
mod http_documents;
mod issuer;
mod json;
mod key_set;
mod mapping;
mod refusal;
mod sign_in;
mod sign_in_config;
mod sign_in_error;
mod sign_in_providers;
mod signed_text;
mod token;
mod webhook_signature;

pub use authenticator::{KeyWait, ShownCertificate, TokenAuthenticator};
pub use certificate_users::{CertificateHolder, CertificateRule, CertificateUsers};
pub use code_exchange::{CodeRequest, ProviderClient};
pub use config::{AccessRule, ClaimCondition, GrantValue, IssuerConfig, JwtConfigError, UnknownUsers};
pub use documents::{DocumentError, DocumentFuture, DocumentSource, FetchedDocument};
pub use http_documents::HttpDocuments;
pub use refusal::TokenRefusal;
pub use sign_in::{ProviderUser, SignInProvider, SignInSecrets};
pub use sign_in_config::{OperatorRule, SignInConfig};
pub use sign_in_error::SignInError;
pub use sign_in_providers::SignInProviders;
pub use signed_text::{
    MAX_SIGNED_TEXT_BYTES, SignedTextError, TextKeySet, TextSigningKey, TextVerificationKey,
};
pub use webhook_signature::WebhookSecret;
