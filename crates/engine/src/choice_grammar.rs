//! The grammar of one choice as the engine sees it: which ids are forced, which may come next, and whether that is
//! known yet. Mask tasks do the grammar's own work. Must not know: logits or text.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use headrace_engine_api::{CompiledGrammar, GrammarFailed, GrammarState};

use crate::masks::{MaskRunner, MaskTask, Reply, TaskLink, Wake, WorkBudget};

/// The grammar of one choice.
pub(crate) struct ChoiceGrammar {
    tenant: u64,
    /// The state and its mask with one bit per id. `None` while a task has them.
    state_and_mask: Option<(Box<dyn GrammarState>, Vec<u32>)>,
    /// Whether the mask is for the position after `ahead`.
    fresh: bool,
    /// Forced ids that the state has accepted and the answer has not.
    ahead: VecDeque<u32>,
    /// Whether only the end can follow `ahead`.
    over: bool,
    /// Ids that the answer has accepted and the state has not.
    unsent: Vec<u32>,
    /// Whether a task is accepting ids.
    accepting: bool,
    /// Whether the answer continued before the state could report that the grammar is complete.
    ends_unseen: bool,
    /// Number of ids that the answer has accepted.
    taken: u64,
    failed: Option<GrammarFailed>,
    /// Whether the failure happened while the state accepted the answer's ids.
    failed_accept: bool,
    budget: WorkBudget,
    /// Units of work that are not charged yet.
    uncharged: u64,
    /// Units of work that the state had counted when it last returned.
    counted: u64,
    link: Arc<TaskLink>,
    to: Sender<Reply>,
    back: Receiver<Reply>,
}

impl ChoiceGrammar {
    /// Creates the grammar at the start of an answer, over a vocabulary of `vocab` ids.
    pub(crate) fn new(
        grammar: &dyn CompiledGrammar,
        (vocab, tenant): (u32, u64),
        budget: WorkBudget,
        wake: &Wake,
    ) -> Self {
        let (to, back) = channel();
        let (dropped, awaited) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            tenant,
            state_and_mask: Some((grammar.begin(), vec![0; vocab.div_ceil(32) as usize])),
            fresh: false,
            ahead: VecDeque::new(),
            over: false,
            unsent: Vec::new(),
            accepting: false,
            ends_unseen: false,
            taken: 0,
            failed: None,
            failed_accept: false,
            budget,
            uncharged: 0,
            counted: 0,
            link: Arc::new(TaskLink { dropped, awaited, wake: Arc::clone(wake) }),
            to,
            back,
        }
    }

    /// Accepts an id that another engine generated, on this thread. No task is running.
    ///
    /// # Errors
    /// The grammar forbids the id, or the work budget is exhausted.
    pub(crate) fn accept_here(&mut self, id: u32) -> Result<(), GrammarFailed> {
        let Some((state, _)) = &mut self.state_and_mask else {
            return Err(GrammarFailed { why: "its state is away".to_owned() });
        };
        state.accept(id)?;
        self.taken += 1;
        self.over = state.is_over();
        self.budget.check(state.work_units(), self.taken)
    }

    /// Accepts the answer's next id. It is either the forced id, or the next task passes it to the state.
    ///
    /// # Errors
    /// Another id is forced.
    pub(crate) fn take(&mut self, id: u32) -> Result<(), GrammarFailed> {
        match self.ahead.front() {
            Some(next) if *next == id => drop(self.ahead.pop_front()),
            Some(_) => return Err(GrammarFailed { why: "an id that it forbids".to_owned() }),
            None => {
                self.unsent.push(id);
                self.fresh = false;
            }
        }
        self.taken += 1;
        Ok(())
    }

    /// Hands the state to a task if there are ids to accept or the mask is unknown.
    pub(crate) fn send(&mut self, masks: &mut dyn MaskRunner) {
        let done = self.fresh || !self.ahead.is_empty();
        if self.unsent.is_empty() && done {
            return;
        }
        if let Some(state_and_mask) = self.state_and_mask.take() {
            let ids = std::mem::take(&mut self.unsent);
            let link = (self.to.clone(), Arc::clone(&self.link));
            self.accepting = true;
            self.over = false;
            masks.submit(MaskTask::new(self.tenant, state_and_mask, (ids, self.taken), self.budget, link));
        }
    }

    /// As [`Self::send`], after an answer accepted ids without waiting for the state.
    pub(crate) fn send_behind(&mut self, masks: &mut dyn MaskRunner) {
        self.ends_unseen |= !self.unsent.is_empty();
        self.send(masks);
    }

    fn receive(&mut self, reply: Reply) {
        match reply {
            Reply::Accepted { run, over } => {
                self.ahead.extend(run);
                self.over = over;
                self.accepting = false;
            }
            Reply::Done { state, mask, fresh } => {
                let counted = state.work_units();
                self.uncharged += counted.saturating_sub(self.counted);
                self.counted = counted;
                self.state_and_mask = Some((state, mask));
                self.fresh = fresh && self.unsent.is_empty();
            }
            Reply::Failed(failed) => {
                self.failed_accept |= std::mem::take(&mut self.accepting);
                self.failed = Some(failed);
            }
        }
    }

    /// Processes all available replies.
    pub(crate) fn poll(&mut self) {
        while let Ok(reply) = self.back.try_recv() {
            self.receive(reply);
        }
    }

    /// Processes all available replies, then hands the state to a task if ids came while it was away. The ids that
    /// end a reasoning section are forced without asking the grammar.
    pub(crate) fn poll_and_send(&mut self, masks: &mut dyn MaskRunner) {
        self.poll();
        self.send(masks);
    }

    /// Processes replies until `enough` returns true or until `until`, and hands on the state as
    /// [`Self::poll_and_send`] does. Returns whether `enough` was reached.
    pub(crate) fn wait(
        &mut self,
        until: Instant,
        masks: &mut dyn MaskRunner,
        enough: impl Fn(&Self) -> bool,
    ) -> bool {
        self.poll_and_send(masks);
        while !enough(self) {
            let left = until.saturating_duration_since(Instant::now());
            match self.back.recv_timeout(left) {
                Ok(reply) => self.receive(reply),
                Err(_) => return false,
            }
            self.poll_and_send(masks);
        }
        true
    }

    /// Whether it is known what follows the answer's ids: forced ids, the end, or a free choice.
    pub(crate) fn has_accepted(&self) -> bool {
        self.failed.is_some() || !self.ahead.is_empty() || (self.unsent.is_empty() && !self.accepting)
    }

    /// Whether the next id can be chosen, or the grammar has failed.
    pub(crate) fn is_ready(&self) -> bool {
        self.failed.is_some() || !self.ahead.is_empty() || (self.state_and_mask.is_some() && self.fresh)
    }

    /// Whether the answer's ids complete the grammar.
    pub(crate) fn is_complete(&self) -> bool {
        self.over && self.ahead.is_empty() && self.unsent.is_empty() && !self.accepting
    }

    /// Whether the grammar turned out to be complete after the answer had accepted its last id.
    pub(crate) fn is_complete_behind(&self) -> bool {
        self.ends_unseen && self.is_complete()
    }

    /// Returns the id that must come next.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.ahead.front().copied()
    }

    /// Returns why the state could not accept the answer's last ids.
    pub(crate) fn accept_failure(&self) -> Option<&GrammarFailed> {
        self.failed.as_ref().filter(|_| self.failed_accept)
    }

    /// Returns why no further id can come. `None` while forced ids are left.
    pub(crate) fn failure(&self) -> Option<&GrammarFailed> {
        self.failed.as_ref().filter(|_| self.ahead.is_empty())
    }

    /// Returns the mask of ids that may come next.
    ///
    /// # Errors
    /// The answer cannot continue, or the mask is not known yet.
    pub(crate) fn mask(&mut self) -> Result<&[u32], GrammarFailed> {
        if let Some(failed) = self.failure() {
            return Err(failed.clone());
        }
        self.ends_unseen = false;
        match &self.state_and_mask {
            Some((_, mask)) if self.fresh => Ok(mask),
            _ => Err(GrammarFailed { why: "its mask is not there".to_owned() }),
        }
    }

    /// Sets whether a reply wakes the engine.
    pub(crate) fn wakes(&mut self, wakes: bool) {
        self.link.awaited.store(wakes, Ordering::SeqCst);
    }

    /// Returns the units of work since the last call.
    pub(crate) fn take_work(&mut self) -> u64 {
        std::mem::take(&mut self.uncharged)
    }
}

impl Drop for ChoiceGrammar {
    fn drop(&mut self) {
        self.link.dropped.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::ResponseFormat;

    use super::*;
    use crate::any_ids::AnyIds;

    /// A grammar that allows every id and forces none.
    #[derive(Debug)]
    struct AnyGrammar(Arc<ResponseFormat>);

    impl CompiledGrammar for AnyGrammar {
        fn form(&self) -> &Arc<ResponseFormat> {
            &self.0
        }

        fn begin(&self) -> Box<dyn GrammarState> {
            Box::new(AnyIds)
        }

        fn state_bytes(&self) -> usize {
            0
        }
    }

    /// A runner that keeps tasks until the test runs them.
    #[derive(Default)]
    struct DeferredRunner(Vec<MaskTask>);

    impl MaskRunner for DeferredRunner {
        fn submit(&mut self, task: MaskTask) {
            self.0.push(task);
        }
    }

    impl DeferredRunner {
        fn run(&mut self) {
            for task in std::mem::take(&mut self.0) {
                crate::masks::InlineMasks.submit(task);
            }
        }
    }

    /// The ids that end a reasoning section are accepted without asking the grammar, while a task may have its state.
    #[test]
    fn ids_that_come_while_the_state_is_away_are_sent_once_it_is_back() {
        let grammar = AnyGrammar(Arc::new(ResponseFormat::Regex("a".into())));
        let wake: Wake = Arc::new(|| {});
        let mut held = ChoiceGrammar::new(&grammar, (64, 1), WorkBudget::of_choice(1), &wake);
        let mut masks = DeferredRunner::default();
        held.send(&mut masks);
        for id in [1, 2, 3] {
            held.take(id).unwrap();
            held.send_behind(&mut masks);
        }
        assert_eq!(masks.0.len(), 1, "the first task has the state");
        masks.run();
        held.poll_and_send(&mut masks);
        assert!(!held.is_ready() && masks.0.len() == 1, "the ids are on their way");
        masks.run();
        held.poll_and_send(&mut masks);
        assert!(held.is_ready() && masks.0.is_empty());
    }
}
