//! An object store in memory, for tests and for servers that keep nothing across restarts. Knows no disk.

use std::collections::BTreeMap;

use headrace_domain::{ProjectId, UnixNanos};
use parking_lot::Mutex;

use crate::{
    ConversationRecord, HistoryOf, ItemPage, ItemRecord, MOST_ITEMS, ObjectError, ObjectLimits, ObjectStore,
    OnStored, PageAsk, ResponseRecord, ResponseStatus, StoredLookup, list_of, page,
};

/// An in-memory [`ObjectStore`].
#[derive(Debug)]
pub struct MemoryObjects {
    limits: ObjectLimits,
    all: Mutex<MemoryTables>,
}

#[derive(Debug, Default)]
struct MemoryTables {
    /// Responses in order of creation.
    responses: Vec<ResponseRecord>,
    conversations: BTreeMap<String, (ConversationRecord, Vec<ItemRecord>)>,
}

impl MemoryObjects {
    /// Creates an empty store with these limits.
    pub fn new(limits: ObjectLimits) -> Self {
        Self { limits, all: Mutex::default() }
    }
}

impl MemoryTables {
    fn conversation(
        &mut self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Option<&mut (ConversationRecord, Vec<ItemRecord>)> {
        let found = self.conversations.get_mut(id)?;
        (found.0.project == *project && found.0.expires > now).then_some(found)
    }

    /// Total bytes of the items in a project's conversations.
    fn item_bytes(&self, project: &ProjectId) -> usize {
        let own = self.conversations.values().filter(|(has, _)| has.project == *project);
        own.flat_map(|(_, items)| items).map(|item| item.json.len()).sum()
    }

    fn response(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Option<usize> {
        let is_it = |response: &ResponseRecord| {
            response.id == id && response.project == *project && response.expires > now
        };
        self.responses.iter().position(is_it)
    }
}

/// Checks the limits on adding `items` to a conversation with `have` items, in a project whose items have `held` bytes.
fn more(limits: &ObjectLimits, have: usize, items: &[ItemRecord], held: usize) -> Result<(), ObjectError> {
    let bytes: usize = items.iter().map(|item| item.json.len()).sum();
    fits("max_object_bytes", limits.max_object_bytes, bytes as u64)?;
    fits("max_items_per_conversation", limits.max_items_per_conversation, (have + items.len()) as u64)?;
    let most = limits.max_conversation_bytes_per_project;
    fits("max_conversation_bytes_per_project", most, (held + bytes) as u64)
}

fn fits(rule: &'static str, limit: u64, observed: u64) -> Result<(), ObjectError> {
    if observed > limit { Err(ObjectError::Full { rule, limit, observed }) } else { Ok(()) }
}

impl ObjectStore for MemoryObjects {
    fn put_response(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError> {
        fits("max_object_bytes", self.limits.max_object_bytes, response.bytes())?;
        let mut all = self.all.lock();
        if let Some(id) = response.conversation.as_deref().filter(|_| !items.is_empty()) {
            let (later, held) = (self.limits.expiry(response.created), all.item_bytes(&response.project));
            if let Some((conversation, has)) = all.conversation(&response.project, id, response.created) {
                more(&self.limits, has.len(), items, held)?;
                has.extend_from_slice(items);
                conversation.expires = later.max(conversation.expires);
            }
        }
        match all.responses.iter_mut().find(|has| has.id == response.id) {
            Some(has) => {
                // An update keeps these fields as they were first stored.
                let ResponseRecord { created, expires, previous, conversation, .. } = has.clone();
                *has = ResponseRecord { created, expires, previous, conversation, ..response.clone() };
            }
            None => all.responses.push(response.clone()),
        }
        // Remove the project's oldest responses until the limits hold.
        loop {
            let own = |has: &&ResponseRecord| has.project == response.project;
            let (count, bytes) = all
                .responses
                .iter()
                .filter(own)
                .fold((0_u64, 0_u64), |(count, bytes), has| (count + 1, bytes + has.bytes()));
            let fits = count <= self.limits.max_responses_per_project
                && bytes <= self.limits.max_response_bytes_per_project;
            let oldest =
                all.responses.iter().position(|has| has.project == response.project && has.id != response.id);
            match oldest.filter(|_| !fits) {
                Some(at) => drop(all.responses.remove(at)),
                None => return Ok(()),
            }
        }
    }

    /// Returns `true` if responses and items have reached the maximum number of bytes.
    fn is_full(&self) -> bool {
        let all = self.all.lock();
        let responses: u64 = all.responses.iter().map(ResponseRecord::bytes).sum();
        let items = all.conversations.values().flat_map(|(_, items)| items);
        let items: u64 = items.map(|item| item.json.len() as u64).sum();
        responses.saturating_add(items) >= self.limits.max_total_bytes
    }

    fn put_response_then(&self, response: ResponseRecord, items: Vec<ItemRecord>, on_stored: OnStored) {
        on_stored(self.put_response(&response, &items));
    }

    fn response(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ResponseRecord>, ObjectError> {
        let all = self.all.lock();
        Ok(all.response(project, id, now).and_then(|at| all.responses.get(at).cloned()))
    }

    fn delete_response(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError> {
        let mut all = self.all.lock();
        let found = all.response(project, id, now);
        Ok(found.map(|at| all.responses.remove(at)).is_some())
    }

    fn size(
        &self,
        project: &ProjectId,
        what: StoredLookup<'_>,
        now: UnixNanos,
    ) -> Result<Option<u64>, ObjectError> {
        let bytes = |items: Vec<ItemRecord>| {
            items.iter().map(|item| (item.id.len() + item.json.len()) as u64).sum::<u64>()
        };
        match what {
            StoredLookup::Response(id) => {
                Ok(self.response(project, id, now)?.map(|response| response.bytes()))
            }
            StoredLookup::History(of) => {
                let lists = self.history(project, of, u64::MAX, now)?;
                Ok(lists.map(|lists| lists.iter().map(|list| list.len() as u64).sum()))
            }
            StoredLookup::Page(id, ask) => {
                // Include the row that shows whether more follow.
                let ask = PageAsk { limit: ask.rows(), ..ask.clone() };
                Ok(self.items(project, id, &ask, now)?.map(|page| bytes(page.items)))
            }
            StoredLookup::Item(of, id) => Ok(self.item(project, of, id, now)?.map(|item| bytes(vec![item]))),
        }
    }

    fn history(
        &self,
        project: &ProjectId,
        of: HistoryOf<'_>,
        most_bytes: u64,
        now: UnixNanos,
    ) -> Result<Option<Vec<String>>, ObjectError> {
        let (mut lists, mut bytes) = (Vec::new(), 0);
        let mut fit = |more: usize| {
            bytes += more as u64;
            fits("max_history_bytes", self.limits.max_history_bytes, bytes)?;
            if bytes > most_bytes { Err(ObjectError::Grew) } else { Ok(()) }
        };
        let mut next = match of {
            HistoryOf::Response(id) => Some(id.to_owned()),
            HistoryOf::Conversation(id) => {
                let mut all = self.all.lock();
                let Some((_, items)) = all.conversation(project, id, now) else { return Ok(None) };
                for page in items.chunks(MOST_ITEMS) {
                    let list = list_of(page);
                    fit(list.len())?;
                    lists.push(list);
                }
                return Ok(Some(lists));
            }
        };
        while let Some(id) = next {
            let Some(response) = self.response(project, &id, now)? else { return Ok(None) };
            if response.status != ResponseStatus::Ended {
                return Ok(None);
            }
            fits("max_turns", self.limits.max_turns as u64, lists.len() as u64 / 2 + 1)?;
            fit(response.input.len() + response.output.len())?;
            lists.extend([response.output, response.input]);
            next = response.previous;
        }
        lists.reverse();
        Ok(Some(lists))
    }

    fn unfinished(&self, now: UnixNanos) -> Result<Vec<(ProjectId, String)>, ObjectError> {
        let all = self.all.lock();
        let open = |has: &&ResponseRecord| has.status == ResponseStatus::InProgress && has.expires > now;
        Ok(all.responses.iter().filter(open).map(|has| (has.project.clone(), has.id.clone())).collect())
    }

    fn create_conversation(
        &self,
        conversation: &ConversationRecord,
        items: &[ItemRecord],
    ) -> Result<(), ObjectError> {
        let mut all = self.all.lock();
        more(&self.limits, 0, items, all.item_bytes(&conversation.project))?;
        let own = all.conversations.values().filter(|(has, _)| has.project == conversation.project).count();
        fits("max_conversations_per_project", self.limits.max_conversations_per_project, own as u64 + 1)?;
        all.conversations.insert(conversation.id.clone(), (conversation.clone(), items.to_vec()));
        Ok(())
    }

    fn conversation(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError> {
        Ok(self.all.lock().conversation(project, id, now).map(|found| found.0.clone()))
    }

    fn label_conversation(
        &self,
        project: &ProjectId,
        id: &str,
        metadata: &str,
        now: UnixNanos,
    ) -> Result<Option<ConversationRecord>, ObjectError> {
        Ok(self.all.lock().conversation(project, id, now).map(|found| {
            metadata.clone_into(&mut found.0.metadata);
            found.0.clone()
        }))
    }

    fn delete_conversation(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<bool, ObjectError> {
        let mut all = self.all.lock();
        let there = all.conversation(project, id, now).is_some();
        if there {
            all.conversations.remove(id);
        }
        Ok(there)
    }

    fn add_items(
        &self,
        project: &ProjectId,
        conversation: &str,
        items: &[ItemRecord],
        now: UnixNanos,
    ) -> Result<bool, ObjectError> {
        let later = self.limits.expiry(now);
        let mut all = self.all.lock();
        let held = all.item_bytes(project);
        let Some((conversation, has)) = all.conversation(project, conversation, now) else {
            return Ok(false);
        };
        more(&self.limits, has.len(), items, held)?;
        has.extend_from_slice(items);
        conversation.expires = later.max(conversation.expires);
        Ok(true)
    }

    fn items(
        &self,
        project: &ProjectId,
        conversation: &str,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Result<Option<ItemPage>, ObjectError> {
        let mut all = self.all.lock();
        Ok(all.conversation(project, conversation, now).map(|found| page(found.1.clone(), ask)))
    }

    fn item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<ItemRecord>, ObjectError> {
        let mut all = self.all.lock();
        let found = all.conversation(project, conversation, now);
        Ok(found.and_then(|found| found.1.iter().find(|item| item.id == id).cloned()))
    }

    fn delete_item(
        &self,
        project: &ProjectId,
        conversation: &str,
        id: &str,
        now: UnixNanos,
    ) -> Result<bool, ObjectError> {
        let mut all = self.all.lock();
        let Some((_, items)) = all.conversation(project, conversation, now) else { return Ok(false) };
        let found = items.iter().position(|item| item.id == id);
        Ok(found.map(|at| items.remove(at)).is_some())
    }

    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        let mut all = self.all.lock();
        let before = all.responses.len() + all.conversations.len();
        all.responses.retain(|has| has.expires > now);
        all.conversations.retain(|_, (has, _)| has.expires > now);
        Ok((before - all.responses.len() - all.conversations.len()) as u64)
    }
}
