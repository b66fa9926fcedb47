//! A thread that finds which ids may come next, beside the step that computes their logits. It begins with the first answer that is
//! held to a grammar. Must not know batches, nor what a grammar is of.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};

use headrace_engine_api::{GrammarFailed, GrammarState};

/// A state with the mask of what may come next.
pub(crate) struct Masked {
    pub(crate) state: Box<dyn GrammarState>,
    /// One bit per id.
    pub(crate) mask: Vec<u32>,
    /// Whether the mask is what it should be.
    pub(crate) outcome: Result<(), GrammarFailed>,
}

struct Errand {
    masked: Masked,
    back: SyncSender<Masked>,
}

/// The thread, once there is one.
#[derive(Default)]
pub(crate) struct Masks {
    errands: Option<Sender<Errand>>,
}

impl Masks {
    /// Has a mask found. It comes back where `back` leads; where no thread is to be had, it is there when this returns.
    pub(crate) fn find(&mut self, state: Box<dyn GrammarState>, mask: Vec<u32>, back: &SyncSender<Masked>) {
        let masked = Masked { state, mask, outcome: Ok(()) };
        let errand = Errand { masked, back: back.clone() };
        let refused = match &self.errands {
            Some(errands) => errands.send(errand).err().map(|unsent| unsent.0),
            None => match begin() {
                Some(errands) => {
                    let refused = errands.send(errand).err().map(|unsent| unsent.0);
                    self.errands = Some(errands);
                    refused
                }
                None => Some(errand),
            },
        };
        if let Some(errand) = refused {
            self.errands = None;
            run(errand);
        }
    }
}

fn begin() -> Option<Sender<Errand>> {
    let (errands, inbox) = channel();
    let builder = std::thread::Builder::new().name("masks".to_owned());
    builder.spawn(move || work(&inbox)).ok().map(|_| errands)
}

/// Ends when the engine does.
fn work(inbox: &Receiver<Errand>) {
    while let Ok(errand) = inbox.recv() {
        run(errand);
    }
}

fn run(errand: Errand) {
    let Errand { masked: Masked { mut state, mut mask, .. }, back } = errand;
    let found = catch_unwind(AssertUnwindSafe(|| state.mask(&mut mask)));
    let outcome = found.unwrap_or_else(|_| Err(GrammarFailed { why: "it panicked".to_owned() }));
    // Whoever asked may be gone.
    let _ = back.send(Masked { state, mask, outcome });
}
