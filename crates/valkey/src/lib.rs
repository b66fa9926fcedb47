//! Rate limits of several gateways, in a Valkey or Redis server of version 7 or later. One function call decides all
//! limits of a request, all or nothing. While the server cannot be reached, a gateway lets nothing pass, or its own share
//! of each limit. Must not know how admission is decided.

mod connection;
mod functions;
mod own_share;
mod settings;
mod source;
mod state;
mod supervisor;

pub use connection::{ServerAddress, ServerAddressError};
pub use settings::{UnreachablePolicy, ValkeySettings, ValkeyStatus};
pub use source::ValkeyQuota;
