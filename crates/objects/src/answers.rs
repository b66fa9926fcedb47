//! The bodies of answers to requests with an idempotency key, kept for a while so that a repeated request gets the same
//! bytes. The ledger has the status and a digest of each; a body that is missing here is only not returned again. Knows
//! no SQL and no HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_domain::{HoldId, ProjectId, UnixNanos};
use parking_lot::Mutex;

use crate::ObjectError;

/// The most bytes of one part of a body. A body is stored in parts, so that no row is long.
pub const ANSWER_PART_BYTES: usize = 256 << 10;

/// An answer whose body is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerRecord {
    /// The hold under which the request ran. No other answer has it.
    pub hold: HoldId,
    /// The project of the caller.
    pub project: ProjectId,
    /// When the answer arrived in the store.
    pub created: UnixNanos,
    /// From when on the body is not returned any more.
    pub expires: UnixNanos,
    /// The bytes that went out.
    pub body: Arc<[u8]>,
}

impl AnswerRecord {
    /// The parts of the body in order, each of at most [`ANSWER_PART_BYTES`] bytes. An empty body has one empty part.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let empty = self.body.is_empty().then_some(&[][..]);
        self.body.chunks(ANSWER_PART_BYTES).chain(empty)
    }
}

/// Stores answers. Calls may wait for a disk.
pub trait AnswerStore: Send + Sync {
    /// Stores an answer. It is on the disk when this returns.
    ///
    /// # Errors
    /// [`ObjectError`] if the store has no room or fails.
    fn put(&self, answer: &AnswerRecord) -> Result<(), ObjectError>;

    /// Returns the body of an answer. `None` if it is not stored, or has expired at `now`.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn body(&self, project: &ProjectId, hold: HoldId, now: UnixNanos)
    -> Result<Option<Vec<u8>>, ObjectError>;

    /// Removes expired answers, and the oldest ones of the projects with the most bytes until the store is within its
    /// limit. Returns the number of removed answers.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the store fails.
    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError>;
}

/// Returns the most bytes that each project may keep, so that all of them together have at most `limit`. Projects with
/// fewer bytes keep all, so a project with many answers removes only its own. `None` if all are within the limit.
pub fn fair_share(held: &[u64], limit: u64) -> Option<u64> {
    let total = held.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    if total <= limit {
        return None;
    }
    let mut sorted = held.to_vec();
    sorted.sort_unstable();
    let (mut left, mut others) = (limit, sorted.len() as u64);
    for bytes in sorted {
        let share = left / others.max(1);
        if bytes > share {
            return Some(share);
        }
        left -= bytes;
        others -= 1;
    }
    None
}

/// An [`AnswerStore`] in memory, for tests and for servers that keep nothing across restarts.
#[derive(Debug)]
pub struct MemoryAnswers {
    max_total_bytes: u64,
    all: Mutex<BTreeMap<HoldId, AnswerRecord>>,
}

impl MemoryAnswers {
    /// Creates an empty store that keeps at most `max_total_bytes` after each sweep.
    pub const fn new(max_total_bytes: u64) -> Self {
        Self { max_total_bytes, all: Mutex::new(BTreeMap::new()) }
    }

    /// Returns the number of stored answers.
    pub fn len(&self) -> usize {
        self.all.lock().len()
    }

    /// Returns whether no answer is stored.
    pub fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }
}

impl AnswerStore for MemoryAnswers {
    fn put(&self, answer: &AnswerRecord) -> Result<(), ObjectError> {
        self.all.lock().insert(answer.hold, answer.clone());
        Ok(())
    }

    fn body(
        &self,
        project: &ProjectId,
        hold: HoldId,
        now: UnixNanos,
    ) -> Result<Option<Vec<u8>>, ObjectError> {
        let all = self.all.lock();
        let found = all.get(&hold).filter(|answer| answer.project == *project && answer.expires > now);
        Ok(found.map(|answer| answer.body.to_vec()))
    }

    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        let mut all = self.all.lock();
        let before = all.len();
        all.retain(|_, answer| answer.expires > now);
        let mut held: BTreeMap<ProjectId, u64> = BTreeMap::new();
        for answer in all.values() {
            *held.entry(answer.project.clone()).or_default() += answer.body.len() as u64;
        }
        let sizes: Vec<u64> = held.values().copied().collect();
        if let Some(share) = fair_share(&sizes, self.max_total_bytes) {
            let mut oldest: Vec<_> =
                all.values().map(|answer| (answer.created, answer.hold, answer.project.clone())).collect();
            oldest.sort();
            for (_, hold, project) in oldest {
                let Some(bytes) = held.get_mut(&project).filter(|bytes| **bytes > share) else { continue };
                if let Some(gone) = all.remove(&hold) {
                    *bytes -= gone.body.len() as u64;
                }
            }
        }
        Ok((before - all.len()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: u128, project: &str, at: u64, body: &[u8]) -> AnswerRecord {
        AnswerRecord {
            hold: HoldId::from_bits(id),
            project: ProjectId::new(project).unwrap(),
            created: UnixNanos::new(at),
            expires: UnixNanos::new(at + 100),
            body: body.into(),
        }
    }

    #[test]
    fn a_body_is_cut_into_parts_that_join_to_it() {
        for (bytes, parts) in
            [(0, 1), (1, 1), (ANSWER_PART_BYTES, 1), (ANSWER_PART_BYTES + 1, 2), (3 * ANSWER_PART_BYTES, 3)]
        {
            let body: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            let record = answer(1, "web", 1, &body);
            assert_eq!(record.parts().count(), parts, "{bytes}");
            assert!(record.parts().all(|part| part.len() <= ANSWER_PART_BYTES));
            assert_eq!(record.parts().collect::<Vec<_>>().concat(), body);
        }
    }

    #[test]
    fn the_largest_projects_give_way_first() {
        for (held, limit, share) in [
            (&[][..], 0, None),
            (&[5, 5], 10, None),
            (&[5, 6], 10, Some(5)),
            (&[1, 2, 100], 50, Some(47)),
            (&[1, 60, 100], 51, Some(25)),
            (&[7], 0, Some(0)),
            (&[u64::MAX, u64::MAX], 10, Some(5)),
        ] {
            assert_eq!(fair_share(held, limit), share, "{held:?} {limit}");
            let kept: u64 = held.iter().map(|bytes| (*bytes).min(share.unwrap_or(*bytes))).sum();
            assert!(kept <= limit);
        }
    }

    #[test]
    fn an_answer_is_returned_to_its_project_until_it_expires_or_gives_way() {
        let store = MemoryAnswers::new(10);
        store.put(&answer(1, "web", 1, b"12345678")).unwrap();
        store.put(&answer(2, "web", 2, b"1234")).unwrap();
        store.put(&answer(3, "app", 3, b"123")).unwrap();
        let body = |project: &str, id, now| {
            let project = ProjectId::new(project).unwrap();
            store.body(&project, HoldId::from_bits(id), UnixNanos::new(now)).unwrap()
        };
        assert_eq!(body("web", 1, 100).as_deref(), Some(&b"12345678"[..]));
        assert_eq!((body("app", 1, 100), body("web", 1, 101), body("web", 9, 1)), (None, None, None));
        assert_eq!(store.sweep(UnixNanos::new(50)).unwrap(), 1, "15 bytes and 10 may be kept");
        assert_eq!((body("web", 1, 50), body("web", 2, 50).is_some()), (None, true));
        assert_eq!(store.sweep(UnixNanos::new(102)).unwrap(), 1);
        assert_eq!(store.len(), 1);
    }
}
