//! Item references: replaces references in a call's input by the stored items of its project's responses and
//! conversations. Must not know how items are parsed.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use headrace_call_api::MemoryReservation;
use headrace_call_state::{Rejection, reading_bytes};
use headrace_domain::{Code, ProjectId, Stage, UnixNanos};
use headrace_identity::Principal;
use headrace_objects::{ItemRecord, ObjectError, ObjectStore, StoredLookup, items_with_ids};
use headrace_relay::response_state;
use headrace_wire::responses::{item_references, with_items};

use crate::resources::StoredResources;

/// A string that every body with item references contains.
const MARK: &[u8] = b"item_reference";
/// The most items that one call may reference.
const MOST_REFERENCES: usize = 256;
/// The number of digits in the id of a response or conversation. The ids of their items contain the same digits.
const DIGITS: usize = 32;

/// Whether a body may contain references. Most bodies do not, and are not parsed for them.
pub fn may_refer(body: &[u8]) -> bool {
    memchr::memmem::find(body, MARK).is_some()
}

/// A response's body with the items that it references.
pub struct ReferencedBody {
    /// The body.
    pub body: Bytes,
    /// The body may be forwarded unchanged to a server that speaks the Responses API.
    pub may_pass: bool,
    /// The memory of the items. `None` if the body references none.
    pub memory: Option<MemoryReservation>,
}

impl StoredResources {
    /// Inserts the referenced items that are stored here. `passes_responses` says whether any server speaks the
    /// Responses API. Also decides whether the body may be forwarded unchanged to
    /// servers that speak the Responses API. It may not if it uses a feature that only this server provides, or
    /// continues a response that is stored here.
    ///
    /// # Errors
    /// It references items that are not here, or too many. The store failed, or there is no memory for the items.
    pub async fn with_state(
        &self,
        body: Bytes,
        passes_responses: bool,
        principal: &Principal,
    ) -> Result<ReferencedBody, Rejection> {
        let may_pass = passes_responses && !self.is_ours(&body, principal).await?;
        if !may_refer(&body) {
            return Ok(ReferencedBody { body, may_pass, memory: None });
        }
        match self.with_items(body.clone(), principal).await {
            // The upstream may know the items.
            Err(rejection) if may_pass && rejection.code == Code::ItemNotFound => {
                Ok(ReferencedBody { body, may_pass: true, memory: None })
            }
            found => found.map(|(body, memory)| ReferencedBody { body, may_pass, memory }),
        }
    }

    async fn is_ours(&self, body: &Bytes, principal: &Principal) -> Result<bool, Rejection> {
        let whole = body.clone();
        let state = match body.len() > self.config().inline_bytes {
            true => tokio::task::spawn_blocking(move || response_state(&whole)).await.unwrap_or_default(),
            false => response_state(&whole),
        };
        let Some(id) = state.previous.filter(|_| !state.ours) else { return Ok(state.ours) };
        let (project, now) = (principal.project.clone(), self.now());
        let kept =
            self.objects().ask(move |store| store.size(&project, StoredLookup::Response(&id), now)).await?;
        Ok(kept.is_some())
    }

    /// Inserts the items that the body references. Also returns the memory that parsing the result takes.
    ///
    /// # Errors
    /// An item is missing, there are too many, or there is no memory for them.
    async fn with_items(
        &self,
        body: Bytes,
        principal: &Principal,
    ) -> Result<(Bytes, Option<MemoryReservation>), Rejection> {
        let limits = &self.config().wire;
        let named = item_references(&body, limits);
        if named.is_empty() {
            return Ok((body, None));
        }
        if named.len() > MOST_REFERENCES {
            let message =
                format!("`input` may name at most {MOST_REFERENCES} items. Send the items themselves.");
            return Err(refusal(Code::ArrayAboveMaxLength, message));
        }
        let (project, now) = (principal.project.clone(), self.now());
        let (whose, ids) = (project.clone(), named.clone());
        let sizes = self.objects().ask(move |store| size(store, &whose, &ids, now)).await?;
        let memory = self.reserve_read(&principal.key, sizes)?;
        let ids = named.clone();
        let finding = move |store: &dyn ObjectStore| Ok((find(store, &project, &ids, now)?, memory));
        let (found, memory) = self.objects().ask(finding).await?;
        if let Some(index) = named.iter().position(|id| !found.contains_key(id)) {
            let message = format!(
                "Item {index} of those that `input` names is not there for your project. Send the item itself, or store the \
                 response that it is of."
            );
            return Err(refusal(Code::ItemNotFound, message));
        }
        // The body contains an item as often as it is referenced.
        let more = named.iter().filter_map(|id| found.get(id)).map(String::len);
        let bytes = more.fold(body.len(), usize::saturating_add);
        let items = found.values().map(|item| item.len() as u64).sum::<u64>();
        // The memory for trees of its elements is reserved when the body is parsed.
        let needed = reading_bytes(bytes, 0).saturating_add(items);
        self.memory().resize(&memory, needed).map_err(|full| full.at(Stage::Parse).with_param("input"))?;
        Ok((with_items(&body, &found, limits).map_or(body, Bytes::from), Some(memory)))
    }
}

fn refusal(code: Code, message: String) -> Rejection {
    Rejection::new(code, message).at(Stage::Parse).with_param("input")
}

/// The digits of the response or conversation that an item belongs to, according to the item's id.
fn digits_of(id: &str) -> Option<&str> {
    id.split_once('_').and_then(|(_, rest)| rest.get(..DIGITS))
}

/// The bytes that [`find`] would read for these ids: each response once, and each item of a conversation as often as
/// it is referenced.
fn size(
    store: &dyn ObjectStore,
    project: &ProjectId,
    ids: &[String],
    now: UnixNanos,
) -> Result<u64, ObjectError> {
    let (mut bytes, mut responses) = (0_u64, HashSet::new());
    for id in ids {
        let Some(digits) = digits_of(id) else { continue };
        if responses.insert(digits) {
            let response = format!("resp_{digits}");
            bytes = bytes.saturating_add(
                store.size(project, StoredLookup::Response(&response), now)?.unwrap_or_default(),
            );
        }
        let conversation = format!("conv_{digits}");
        let item = store.size(project, StoredLookup::Item(&conversation, id), now)?;
        bytes = bytes.saturating_add(item.unwrap_or_default());
    }
    Ok(bytes)
}

/// The stored items with these ids. The id of an item says which response or conversation it belongs to.
fn find(
    store: &dyn ObjectStore,
    project: &ProjectId,
    ids: &[String],
    now: UnixNanos,
) -> Result<HashMap<String, String>, ObjectError> {
    let mut found = HashMap::new();
    let mut seen: HashMap<String, Vec<ItemRecord>> = HashMap::new();
    for id in ids {
        let Some(digits) = digits_of(id).filter(|_| !found.contains_key(id)) else { continue };
        if !seen.contains_key(digits) {
            let response = store.response(project, &format!("resp_{digits}"), now)?;
            let items = response.map(|response| {
                let mut items = items_with_ids(&response.input, &response.id);
                items.extend(items_with_ids(&response.output, &response.id));
                items
            });
            seen.insert(digits.to_owned(), items.unwrap_or_default());
        }
        let of_response = seen.get(digits).and_then(|items| items.iter().find(|item| item.id == *id));
        let json = match of_response {
            Some(item) => Some(item.json.clone()),
            None => store.item(project, &format!("conv_{digits}"), id, now)?.map(|item| item.json),
        };
        found.extend(json.map(|json| (id.clone(), json)));
    }
    Ok(found)
}
