//! One answer that is held to a grammar: where its state is while a mask is found, and what may come next. Knows no logits and no
//! text.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use headrace_engine_api::{Grammar, GrammarFailed, GrammarState};

use crate::masks::{Masked, Masks};

/// The grammar of one choice.
pub(crate) struct Held {
    at: At,
    back: Receiver<Masked>,
    to: SyncSender<Masked>,
}

enum At {
    /// Here; the mask is that of what comes next, or of something else.
    Home { state: Box<dyn GrammarState>, mask: Vec<u32>, fresh: bool },
    /// Its mask is being found.
    Away,
    /// It cannot go on.
    Lost,
}

impl Held {
    /// At the beginning of an answer, over a vocabulary of so many ids.
    pub(crate) fn new(grammar: &dyn Grammar, vocab: u32) -> Self {
        let (to, back) = sync_channel(1);
        let mask = vec![0; vocab.div_ceil(32) as usize];
        Self { at: At::Home { state: grammar.begin(), mask, fresh: false }, back, to }
    }

    /// Brings the state home; waits for it where its mask is still being found.
    fn home(&mut self) -> Result<(&mut dyn GrammarState, &mut Vec<u32>, &mut bool), GrammarFailed> {
        if matches!(self.at, At::Away) {
            self.at = match self.back.recv() {
                Ok(Masked { state, mask, outcome: Ok(()) }) => At::Home { state, mask, fresh: true },
                Ok(Masked { outcome: Err(failed), .. }) => {
                    self.at = At::Lost;
                    return Err(failed);
                }
                Err(_) => At::Lost,
            };
        }
        match &mut self.at {
            At::Home { state, mask, fresh } => Ok((&mut **state, mask, fresh)),
            At::Away | At::Lost => Err(GrammarFailed { why: "its state is gone".to_owned() }),
        }
    }

    /// Has the mask found of what comes next, if there is a choice.
    pub(crate) fn look_ahead(&mut self, masks: &mut Masks) {
        let is_choice = |state: &dyn GrammarState| state.forced().is_empty() && !state.is_over();
        self.at = match std::mem::replace(&mut self.at, At::Lost) {
            At::Home { state, mask, fresh: false } if is_choice(&*state) => {
                masks.find(state, mask, &self.to);
                At::Away
            }
            other => other,
        };
    }

    /// What must come next.
    pub(crate) fn forced(&mut self) -> Result<&[u32], GrammarFailed> {
        Ok(self.home()?.0.forced())
    }

    /// Which ids may come next.
    pub(crate) fn mask(&mut self) -> Result<&[u32], GrammarFailed> {
        let (state, mask, fresh) = self.home()?;
        if !std::mem::replace(fresh, false) {
            state.mask(mask)?;
        }
        Ok(mask)
    }

    /// The answer goes on with this id; whether anything can follow.
    pub(crate) fn accept(&mut self, id: u32) -> Result<bool, GrammarFailed> {
        let (state, _, fresh) = self.home()?;
        *fresh = false;
        state.accept(id)?;
        Ok(!state.is_over())
    }
}
