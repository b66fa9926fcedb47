//! Items that a call only names, as they are stored: of responses and conversations of its project. Must not know how they are read.

use std::collections::HashMap;

use bytes::Bytes;
use headrace_domain::{Code, ProjectId, Stage, UnixNanos};
use headrace_identity::Principal;
use headrace_objects::{ItemRecord, ObjectError, ObjectStore, items_with_ids};
use headrace_wire::relay::response_state;
use headrace_wire::{item_references, with_items};

use crate::Gateway;
use crate::catalog::Catalog;
use crate::refused::Why;

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

impl Gateway {
    /// The body of a response with the items of ours that it names, and whether it may go as it is to servers that speak the Responses
    /// API: not where it asks for what is done here alone, or goes on from a response that is kept here.
    ///
    /// # Errors
    /// It names items that are not here, or too many; what is stored cannot be read.
    pub(crate) async fn with_state(
        &self,
        body: Bytes,
        catalog: &Catalog,
        principal: &Principal,
    ) -> Result<(Bytes, bool), Why> {
        let may_pass = passes(catalog) && !self.is_ours(&body, principal).await?;
        if !may_refer(&body) {
            return Ok((body, may_pass));
        }
        match self.with_items(body.clone(), principal).await {
            // Its server may know them.
            Err(why) if may_pass && why.code == Code::ItemNotFound => Ok((body, true)),
            found => Ok((found?, may_pass)),
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
        let kept = self.objects().ask(move |store| store.response(&project, &id, now)).await?;
        Ok(kept.is_some())
    }

    /// The body with the items that it names in it.
    ///
    /// # Errors
    /// One is not there, or it names too many.
    async fn with_items(&self, body: Bytes, principal: &Principal) -> Result<Bytes, Why> {
        let limits = &self.config().wire;
        let ids = item_references(&body, limits);
        if ids.is_empty() {
            return Ok(body);
        }
        if ids.len() > MOST_REFERENCES {
            let message =
                format!("`input` may name at most {MOST_REFERENCES} items. Send the items themselves.");
            return Err(refusal(Code::ArrayAboveMaxLength, message));
        }
        let (project, now) = (principal.project.clone(), self.parts().clock.now());
        let asked = ids.clone();
        let found = self.objects().ask(move |store| find(store, &project, &asked, now)).await?;
        if let Some(index) = ids.iter().position(|id| !found.contains_key(id)) {
            let message = format!(
                "Item {index} of those that `input` names is not there for your project. Send the item itself, or store the \
                 response that it is of."
            );
            return Err(refusal(Code::ItemNotFound, message));
        }
        Ok(with_items(&body, &found, limits).map_or(body, Bytes::from))
    }
}

fn refusal(code: Code, message: String) -> Why {
    Why::new(code, message).at(Stage::Parse).with_param("input")
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
        let Some(digits) = id.split_once('_').and_then(|(_, rest)| rest.get(..DIGITS)) else { continue };
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
