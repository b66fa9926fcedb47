//! Items that a call only names, as they are stored: of responses and conversations of its project. Must not know how they are read.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use headrace_call_api::Reserved;
use headrace_domain::{Code, ProjectId, Stage, UnixNanos};
use headrace_identity::Principal;
use headrace_objects::{ItemRecord, ObjectError, ObjectStore, Stored, items_with_ids};
use headrace_wire::relay::response_state;
use headrace_wire::{item_references, with_items};

use crate::Gateway;
use crate::catalog::Catalog;
use crate::refused::Why;
use crate::stages::render::estimate;

/// What a body that names items has somewhere.
const MARK: &[u8] = b"item_reference";
/// How many items one call may name.
const MOST_REFERENCES: usize = 256;
/// Digits of the id of a response or a conversation, as the ids of their items have them.
const DIGITS: usize = 32;

/// Whether a body may name items: most do not, and are not looked into.
fn may_refer(body: &[u8]) -> bool {
    memchr::memmem::find(body, MARK).is_some()
}

/// Whether anything of a response's body may be found here, or be left to a server that speaks the Responses API.
pub(crate) fn concern(body: &[u8], catalog: &Catalog) -> bool {
    passes(catalog) || may_refer(body)
}

fn passes(catalog: &Catalog) -> bool {
    catalog.models().any(|model| model.lane.passes_responses())
}

/// A response's body with the items that it names.
pub(crate) struct WithState {
    pub(crate) body: Bytes,
    /// The body may go unchanged to a server that speaks the Responses API.
    pub(crate) may_pass: bool,
    /// The memory of the items. `None` if the body names none.
    pub(crate) memory: Option<Reserved>,
}

impl Gateway {
    /// The body of a response with the items of ours that it names, and whether it may go as it is to servers that speak the Responses
    /// API: not where it asks for what is done here alone, or goes on from a response that is kept here.
    ///
    /// # Errors
    /// It names items that are not here, or too many; what is stored cannot be read, or there is no memory for it.
    pub(crate) async fn with_state(
        &self,
        body: Bytes,
        catalog: &Catalog,
        principal: &Principal,
    ) -> Result<WithState, Why> {
        let may_pass = passes(catalog) && !self.is_ours(&body, principal).await?;
        if !may_refer(&body) {
            return Ok(WithState { body, may_pass, memory: None });
        }
        match self.with_items(body.clone(), principal).await {
            // Its server may know them.
            Err(why) if may_pass && why.code == Code::ItemNotFound => {
                Ok(WithState { body, may_pass: true, memory: None })
            }
            found => found.map(|(body, memory)| WithState { body, may_pass, memory }),
        }
    }

    async fn is_ours(&self, body: &Bytes, principal: &Principal) -> Result<bool, Why> {
        let whole = body.clone();
        let state = match body.len() > self.config().render_inline_bytes {
            true => tokio::task::spawn_blocking(move || response_state(&whole)).await.unwrap_or_default(),
            false => response_state(&whole),
        };
        let Some(id) = state.previous.filter(|_| !state.ours) else { return Ok(state.ours) };
        let (project, now) = (principal.project.clone(), self.parts().clock.now());
        let kept = self.objects().ask(move |store| store.size(&project, Stored::Response(&id), now)).await?;
        Ok(kept.is_some())
    }

    /// The body with the items that it names, and the memory that reading it takes.
    ///
    /// # Errors
    /// One is not there, or it names too many; there is no memory for them.
    async fn with_items(&self, body: Bytes, principal: &Principal) -> Result<(Bytes, Option<Reserved>), Why> {
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
        let (project, now) = (principal.project.clone(), self.parts().clock.now());
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
        // An item stands in the body as often as it is named.
        let more = named.iter().filter_map(|id| found.get(id)).map(String::len);
        let bytes = more.fold(body.len(), usize::saturating_add);
        let items = found.values().map(|item| item.len() as u64).sum::<u64>();
        // What its elements take as trees is reserved where the body is parsed.
        let needed = estimate::reading(bytes, 0).saturating_add(items);
        self.memory().resize(&memory, needed).map_err(|full| full.at(Stage::Parse).with_param("input"))?;
        Ok((with_items(&body, &found, limits).map_or(body, Bytes::from), Some(memory)))
    }
}

fn refusal(code: Code, message: String) -> Why {
    Why::new(code, message).at(Stage::Parse).with_param("input")
}

/// The digits of the response or conversation that an item's id says it is a part of.
fn digits_of(id: &str) -> Option<&str> {
    id.split_once('_').and_then(|(_, rest)| rest.get(..DIGITS))
}

/// The bytes that finding the items of these ids would read: each response once, each item of a conversation as often as it is named.
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
            bytes = bytes
                .saturating_add(store.size(project, Stored::Response(&response), now)?.unwrap_or_default());
        }
        let conversation = format!("conv_{digits}");
        let item = store.size(project, Stored::Item(&conversation, id), now)?;
        bytes = bytes.saturating_add(item.unwrap_or_default());
    }
    Ok(bytes)
}

/// The items of these ids, as far as they are there. An id says of what it is a part.
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
