//! The admin API over HTTP: sign-in, the roles that each route needs, and a route for every admin command. The OpenAPI
//! document is generated from the router. Must not know client sockets, engines, SQL or the look of pages.

mod access;
mod app;
mod connections;
mod guard;
mod input;
mod listener;
mod names;
mod page;
mod pages;
mod places;
mod plays;
mod problem;
mod router;
mod routes;
mod seams;
mod server;
mod sessions;
mod throttle;
mod values;
mod who;

#[cfg(test)]
mod test_request;
#[cfg(test)]
mod tests;

pub use app::Parts;
pub use listener::{Connection, Listener, MAX_PORTS_TRIED, Secure, Secured};
pub use pages::{Asset, Pages};
pub use router::openapi;
pub use seams::{
    Ask, AskedIn, Calls, Ended, Hold, House, Look, ModelPrices, Pieces, Played, Playground, Prompts,
    RenderAsk, ServedModel, Setting, StoredCheckpoint, TokenizeAsk, Verified, VerifyFinding,
};
pub use server::AdminHttp;
pub use sessions::{LINK_LIFETIME, SESSION_IDLE, SESSION_LIFETIME, SessionStore, Sessions, StoredSession};
pub use values::{Money, Time};
