//! The admin API over HTTP: sign-in, the roles that each route needs, and a route for every admin command. The OpenAPI
//! document is generated from the router. Must not know client sockets, engines, SQL or the look of pages.

mod access;
mod app;
mod connections;
mod guard;
mod input;
mod listener;
mod names;
mod org_scope;
mod page;
mod pages;
mod peers;
mod places;
mod plays;
mod problem;
mod project_records;
mod provider_operator;
mod router;
mod routes;
mod scim;
mod seams;
mod server;
mod sessions;
mod sign_in_cookie;
mod throttle;
mod values;
mod who;

#[cfg(test)]
mod test_request;
#[cfg(test)]
mod tests;

pub use app::AdminParts;
pub use listener::{AdminSocket, ByteStream, MAX_PORTS_TRIED, Secure, Secured};
pub use pages::{ConsoleAsset, ConsolePages};
pub use peers::find::PeerAnswers;
pub use peers::search_all::{FleetSearch, OwnGateway};
pub use peers::usage::PeerUsage;
pub use peers::{GatewayPeer, GatewayPeers, PeerAccess};
pub use router::openapi;
pub use seams::{
    AskedIn, CallRecords, CallView, Ended, FoundCall, LedgerCheck, ModelPrices, OpenHold, Pieces,
    PlaygroundAnswer, PlaygroundCaller, PlaygroundEndpoint, PromptInspector, RenderAsk, ServedModel,
    ServerAdmin, SettingInForce, StoredCheckpoint, TokenizeAsk, UsageView, VerifyFinding,
};
pub use server::AdminHttp;
pub use sessions::{
    LINK_LIFETIME, OperatorSessions, SESSION_IDLE, SESSION_LIFETIME, SessionStore, StoredSession,
};
pub use values::{Money, Time};
