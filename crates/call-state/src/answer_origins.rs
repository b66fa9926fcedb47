//! The prompts of earlier answers, kept for a while. A later call that names such an answer can learn what it changed
//! since. Keeps ids of prompts, no texts. Must not know what is cached where.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use headrace_domain::{ModelName, ProjectId, RequestId, UnixNanos};
use parking_lot::Mutex;

/// The most bytes of prompts that are kept.
const MOST_BYTES: usize = 64 << 20;
/// The most answers that are known.
const MOST_ANSWERS: usize = 16_384;
/// How long an answer is known, in nanoseconds. Equal to the longest retention of a cached prefix.
const KNOWN_FOR_NS: u64 = 3_600_000_000_000;
/// Approximate bytes that an entry takes besides its prompt.
const EACH_BYTES: usize = 512;

/// The prompt and the tools of an earlier answer.
#[derive(Debug, Clone)]
pub struct AnswerOrigin {
    /// The project of the answer.
    pub project: ProjectId,
    /// The model that answered.
    pub model: ModelName,
    /// The ids of the prompt.
    pub prompt: Arc<[u32]>,
    /// Hash of the tools, independent of the order of their properties.
    pub tools: [u8; 16],
    /// When the answer was given.
    pub at: UnixNanos,
}

/// The earlier answers that are known.
#[derive(Debug, Default)]
pub struct AnswerOrigins(Mutex<OriginTable>);

#[derive(Debug, Default)]
struct OriginTable {
    by_answer: HashMap<RequestId, AnswerOrigin>,
    /// In order of arrival.
    order: VecDeque<RequestId>,
    bytes: usize,
}

fn bytes_of(past: &AnswerOrigin) -> usize {
    EACH_BYTES + size_of_val(&*past.prompt)
}

impl AnswerOrigins {
    /// Stores the prompt of an answer. Evicts expired entries, and the oldest ones while a bound is exceeded.
    pub fn put(&self, answer: RequestId, past: AnswerOrigin) {
        let now = past.at;
        let mut inner = self.0.lock();
        inner.bytes = inner.bytes.saturating_add(bytes_of(&past));
        match inner.by_answer.insert(answer, past) {
            Some(former) => inner.bytes = inner.bytes.saturating_sub(bytes_of(&former)),
            None => inner.order.push_back(answer),
        }
        while let Some(oldest) = inner.order.front().copied() {
            let is_old = inner.by_answer.get(&oldest).is_none_or(|past| is_over(past, now));
            if !is_old && inner.bytes <= MOST_BYTES && inner.order.len() <= MOST_ANSWERS {
                return;
            }
            inner.order.pop_front();
            if let Some(gone) = inner.by_answer.remove(&oldest) {
                inner.bytes = inner.bytes.saturating_sub(bytes_of(&gone));
            }
        }
    }

    /// The prompt of an answer of this project. `None` if it is unknown, expired or of another project.
    pub fn get(&self, answer: RequestId, project: &ProjectId, now: UnixNanos) -> Option<AnswerOrigin> {
        let inner = self.0.lock();
        let past = inner.by_answer.get(&answer)?;
        (past.project == *project && !is_over(past, now)).then(|| past.clone())
    }
}

fn is_over(past: &AnswerOrigin, now: UnixNanos) -> bool {
    now.get().saturating_sub(past.at.get()) > KNOWN_FOR_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(project: &str, ids: usize, at: u64) -> AnswerOrigin {
        AnswerOrigin {
            project: ProjectId::new(project).unwrap(),
            model: ModelName::new("m").unwrap(),
            prompt: vec![7; ids].into(),
            tools: [0; 16],
            at: UnixNanos::new(at),
        }
    }

    #[test]
    fn an_answer_is_known_to_its_project_for_an_hour() {
        let pasts = AnswerOrigins::default();
        let (own, other) = (ProjectId::new("a").unwrap(), ProjectId::new("b").unwrap());
        let answer = RequestId::from_bits(1);
        pasts.put(answer, past("a", 10, 5));
        let at = |ns: u64| UnixNanos::new(ns);
        assert!(pasts.get(answer, &own, at(5 + KNOWN_FOR_NS)).is_some());
        assert!(pasts.get(answer, &own, at(6 + KNOWN_FOR_NS)).is_none());
        assert!(pasts.get(answer, &other, at(5)).is_none());
        assert!(pasts.get(RequestId::from_bits(2), &own, at(5)).is_none());
        // An expired entry goes when another one arrives.
        pasts.put(RequestId::from_bits(2), past("a", 10, 6 + KNOWN_FOR_NS));
        assert_eq!(pasts.0.lock().by_answer.len(), 1);
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let pasts = AnswerOrigins::default();
        let mut most = 0;
        for n in 0..3_000_u128 {
            // One entry alone exceeds the bound.
            let ids = if n == 700 { MOST_BYTES } else { 20_000 + n as usize };
            pasts.put(RequestId::from_bits(n + 1), past("a", ids, 1));
            let inner = pasts.0.lock();
            let bytes: usize = inner.by_answer.values().map(bytes_of).sum();
            assert_eq!((bytes, inner.order.len()), (inner.bytes, inner.by_answer.len()));
            assert!(bytes <= MOST_BYTES && inner.order.len() <= MOST_ANSWERS);
            most = most.max(inner.order.len());
        }
        assert!(most > 500);
    }
}
