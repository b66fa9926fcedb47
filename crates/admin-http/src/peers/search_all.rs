//! A search for calls at all live gateways, for a program that reads the store of one of them itself. Must not know how calls
//! are stored or shown.

use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use super::find::{CALL, found_in};
use super::merge::{FleetCursor, GatewayPage, MissingGateway, merge};
use super::{DEADLINE, GatewayPeer, PeerAccess, no_answer};
use crate::seams::CallView;

/// The path of a search. Only other gateways call it. It is not part of the admin API, as [`CALL`] is not.
pub(crate) const SEARCH: &str = "/gateway/v1/search";

/// What a search asks of each gateway.
#[derive(Debug, Clone)]
pub struct FleetSearch {
    /// Filters by name, as in `GET /requests`.
    pub named: Vec<(&'static str, String)>,
    /// `next` of the page before, or that of a page of the own gateway alone. `None` for the newest calls.
    pub cursor: Option<String>,
    /// Maximum number of calls of a page.
    pub limit: usize,
}

/// The gateway whose store this program reads itself.
pub struct OwnGateway<'a> {
    /// Its name. `None` if it does not run. Then no other gateway is taken for it.
    pub name: Option<String>,
    /// Reads its page after a cursor: `data`, `next`, `searched_to` and `unindexed`.
    pub page: &'a mut dyn FnMut(Option<&str>) -> Result<Value, String>,
}

impl PeerAccess {
    /// Searches the calls of all live gateways, and returns one page, newest first, with the name of the gateway in each row
    /// and the silent gateways in `missing_gateways`. Waits for the others on this thread, for some seconds at most. The
    /// thread must not run a Tokio runtime.
    ///
    /// # Errors
    /// If the own store cannot be read, the cursor is none, or there is no runtime.
    pub fn search_all(&self, search: &FleetSearch, own: OwnGateway<'_>) -> Result<Value, String> {
        let FleetSearch { named, cursor, limit } = search;
        let position = match cursor.as_deref() {
            Some(text) => FleetCursor::parse(text)
                .or_else(|| FleetCursor::of_own(text))
                .ok_or("the cursor is no `next` of a page")?,
            None => FleetCursor::default(),
        };
        let (others, mut missing) = match self.peers.others() {
            Ok(others) => (others, Vec::new()),
            Err(why) => (Vec::new(), vec![MissingGateway { gateway: "all others".to_owned(), why }]),
        };
        let mut pages = Vec::new();
        if let Some(after) = position.of("") {
            let page = (own.page)(after.as_deref())?;
            let name = own.name.clone().unwrap_or_else(|| "this directory".to_owned());
            pages.push(GatewayPage { address: String::new(), name, after, page });
        }
        let has_own_name = |peer: &GatewayPeer| own.name.as_deref() == Some(peer.name.as_str());
        // Of several gateways with this name, each is asked: a call that is shown twice is better than none.
        let is_unique = others.iter().filter(|peer| has_own_name(peer)).count() == 1;
        let is_own = |peer: &GatewayPeer| is_unique && has_own_name(peer);
        let asked = others.into_iter().filter(|peer| !is_own(peer)).filter_map(|peer| {
            let address = peer.address.clone().unwrap_or_default();
            // The own gateway has the empty address.
            let after = if address.is_empty() { Some(None) } else { position.of(&address) };
            Some((after?, address, peer))
        });
        let answers = asked.map(|(after, address, peer)| {
            let mut body: Map<String, Value> =
                named.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect();
            body.insert("limit".to_owned(), limit.to_string().into());
            body.insert("cursor".to_owned(), after.as_deref().into());
            async move { (self.ask(&peer, SEARCH, &body.into()).await, after, address, peer.name) }
        });
        let answers = self.wait_for(join_all(answers))?;
        for (answer, after, address, name) in answers.into_iter().flatten() {
            match answer {
                Ok(page) => pages.push(GatewayPage { address, name, after, page }),
                Err(why) => missing.push(MissingGateway { gateway: name, why }),
            }
        }
        Ok(merge(&position, pages, missing, *limit))
    }

    /// Returns the records of calls at other gateways, by the ids of the calls and the names of their gateways, in the same
    /// order. `None` for a call whose gateway does not answer. Waits like [`PeerAccess::search_all`].
    ///
    /// # Errors
    /// If the gateways cannot be read, or there is no runtime.
    pub fn records(&self, calls: &[(String, String)]) -> Result<Vec<Option<Value>>, String> {
        let others = self.peers.others()?;
        let asked = calls.iter().map(|(id, gateway)| {
            let peers: Vec<&GatewayPeer> = others.iter().filter(|peer| peer.name == *gateway).collect();
            let body = json!({ "id": id, "view": CallView::Record.name() });
            async move {
                for peer in peers {
                    if let Ok(Some(found)) = self.ask(peer, CALL, &body).await.and_then(found_in) {
                        return Some(found.view);
                    }
                }
                None
            }
        });
        Ok(self.wait_for(join_all(asked))?.unwrap_or_else(|| vec![None; calls.len()]))
    }

    /// Waits on this thread, for twice the deadline at most. `None` if it is over.
    pub(super) fn wait_for<T>(&self, work: impl Future<Output = T>) -> Result<Option<T>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        Ok(runtime
            .block_on(async { tokio::time::timeout(DEADLINE.saturating_mul(2), work).await })
            .inspect_err(|_| tracing::debug!("{}", no_answer()))
            .ok())
    }
}
