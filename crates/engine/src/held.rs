//! The grammar of one choice as the engine sees it: which ids are forced, which may come next, and whether that is known yet. The
//! grammar's own work is done by mask tasks. Knows no logits and no text.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use headrace_engine_api::{Grammar, GrammarFailed, GrammarState};

use crate::masks::{Link, MaskRunner, MaskTask, Reply, Wake, WorkBudget};

/// The grammar of one choice.
pub(crate) struct Held {
    tenant: u64,
    /// The state and one bit for each id. `None` while a task has them.
    home: Option<(Box<dyn GrammarState>, Vec<u32>)>,
    /// Whether the bits are those of what follows `ahead`.
    fresh: bool,
    /// Forced ids that the state has taken and the answer has not.
    ahead: VecDeque<u32>,
    /// Whether nothing but the end can follow `ahead`.
    over: bool,
    /// Ids that the answer has taken and the state has not.
    unsent: Vec<u32>,
    /// Whether a task is taking ids.
    accepting: bool,
    /// Whether the answer went on before it was known that its form is complete.
    ends_unseen: bool,
    /// Ids that the answer has taken.
    taken: u64,
    failed: Option<GrammarFailed>,
    /// Whether it failed while it took the answer's ids.
    failed_accept: bool,
    budget: WorkBudget,
    /// Units of work that are not charged yet.
    uncharged: u64,
    /// Units of work that the state counted when it was here last.
    counted: u64,
    link: Arc<Link>,
    to: Sender<Reply>,
    back: Receiver<Reply>,
}

impl Held {
    /// At the beginning of an answer, over a vocabulary of `vocab` ids.
    pub(crate) fn new(
        grammar: &dyn Grammar,
        (vocab, tenant): (u32, u64),
        budget: WorkBudget,
        wake: &Wake,
    ) -> Self {
        let (to, back) = channel();
        let (dropped, awaited) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            tenant,
            home: Some((grammar.begin(), vec![0; vocab.div_ceil(32) as usize])),
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
            link: Arc::new(Link { dropped, awaited, wake: Arc::clone(wake) }),
            to,
            back,
        }
    }

    /// Takes an id into the state on this thread: for ids that another engine generated. No task is running.
    ///
    /// # Errors
    /// The form forbids the id, or its work is used up.
    pub(crate) fn accept_here(&mut self, id: u32) -> Result<(), GrammarFailed> {
        let Some((state, _)) = &mut self.home else {
            return Err(GrammarFailed { why: "its state is away".to_owned() });
        };
        state.accept(id)?;
        self.taken += 1;
        self.over = state.is_over();
        self.budget.check(state.work_units(), self.taken)
    }

    /// The answer takes `id`: a forced one, or one that the state learns of with the next task.
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

    /// Hands the state to a task if it is to take ids, or to find what may come next.
    pub(crate) fn send(&mut self, masks: &mut dyn MaskRunner) {
        let done = self.fresh || !self.ahead.is_empty();
        if self.unsent.is_empty() && done {
            return;
        }
        if let Some(home) = self.home.take() {
            let ids = std::mem::take(&mut self.unsent);
            let link = (self.to.clone(), Arc::clone(&self.link));
            self.accepting = true;
            self.over = false;
            masks.submit(MaskTask::new(self.tenant, home, (ids, self.taken), self.budget, link));
        }
    }

    /// [`Self::send`] after an answer took its ids without waiting for the state.
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
                self.home = Some((state, mask));
                self.fresh = fresh && self.unsent.is_empty();
            }
            Reply::Failed(failed) => {
                self.failed_accept |= std::mem::take(&mut self.accepting);
                self.failed = Some(failed);
            }
        }
    }

    /// Takes the replies that are there.
    pub(crate) fn poll(&mut self) {
        while let Ok(reply) = self.back.try_recv() {
            self.receive(reply);
        }
    }

    /// Takes the replies that are there, and hands the state on if ids came while it was away: a thought's ending is forced without a
    /// look at the form.
    pub(crate) fn poll_and_send(&mut self, masks: &mut dyn MaskRunner) {
        self.poll();
        self.send(masks);
    }

    /// Takes replies until `enough` or `until`, and hands the state on as [`Self::poll_and_send`] does. Returns whether it was enough.
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

    /// Whether what follows the ids of the answer is known: forced ids, the end, or that there is a choice.
    pub(crate) fn has_accepted(&self) -> bool {
        self.failed.is_some() || !self.ahead.is_empty() || (self.unsent.is_empty() && !self.accepting)
    }

    /// Whether the next id can be chosen, or never.
    pub(crate) fn is_ready(&self) -> bool {
        self.failed.is_some() || !self.ahead.is_empty() || (self.home.is_some() && self.fresh)
    }

    /// Whether the form is complete with the ids of the answer.
    pub(crate) fn is_complete(&self) -> bool {
        self.over && self.ahead.is_empty() && self.unsent.is_empty() && !self.accepting
    }

    /// Whether the form turned out to be complete after the answer had taken its last id.
    pub(crate) fn is_complete_behind(&self) -> bool {
        self.ends_unseen && self.is_complete()
    }

    /// The id that must come next.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.ahead.front().copied()
    }

    /// Why the state could not take the answer's last ids.
    pub(crate) fn accept_failure(&self) -> Option<&GrammarFailed> {
        self.failed.as_ref().filter(|_| self.failed_accept)
    }

    /// Why nothing more can come.
    pub(crate) fn failure(&self) -> Option<&GrammarFailed> {
        self.failed.as_ref().filter(|_| self.ahead.is_empty())
    }

    /// Which ids may come next, if that is known.
    ///
    /// # Errors
    /// The answer cannot continue, or it is not known.
    pub(crate) fn mask(&mut self) -> Result<&[u32], GrammarFailed> {
        if let Some(failed) = self.failure() {
            return Err(failed.clone());
        }
        self.ends_unseen = false;
        match &self.home {
            Some((_, mask)) if self.fresh => Ok(mask),
            _ => Err(GrammarFailed { why: "its mask is not there".to_owned() }),
        }
    }

    /// From now on a reply wakes the engine, or (`false`) does not any more.
    pub(crate) fn wakes(&mut self, wakes: bool) {
        self.link.awaited.store(wakes, Ordering::SeqCst);
    }

    /// Units of work since they were last asked for.
    pub(crate) fn take_work(&mut self) -> u64 {
        std::mem::take(&mut self.uncharged)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.link.dropped.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use headrace_domain::Form;

    use super::*;
    use crate::any_ids::AnyIds;

    /// Allows every id and forces none.
    #[derive(Debug)]
    struct Free(Arc<Form>);

    impl Grammar for Free {
        fn form(&self) -> &Arc<Form> {
            &self.0
        }

        fn begin(&self) -> Box<dyn GrammarState> {
            Box::new(AnyIds)
        }

        fn state_bytes(&self) -> usize {
            0
        }
    }

    /// Keeps tasks until they are to run.
    #[derive(Default)]
    struct Later(Vec<MaskTask>);

    impl MaskRunner for Later {
        fn submit(&mut self, task: MaskTask) {
            self.0.push(task);
        }
    }

    impl Later {
        fn run(&mut self) {
            for task in std::mem::take(&mut self.0) {
                crate::masks::InlineMasks.submit(task);
            }
        }
    }

    /// The ids that end a thought are taken without a look at the form, while a task may have its state.
    #[test]
    fn ids_that_come_while_the_state_is_away_are_sent_once_it_is_back() {
        let grammar = Free(Arc::new(Form::Regex("a".into())));
        let wake: Wake = Arc::new(|| {});
        let mut held = Held::new(&grammar, (64, 1), WorkBudget::of_choice(1), &wake);
        let mut masks = Later::default();
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
