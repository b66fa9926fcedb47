//! What follows where nobody who serves a model answers a call, and nothing of an answer has gone out: the next model that the name
//! asked for may fall back on, over the same hold. Must not know which models those are, or what an answer says.

use std::sync::Arc;

use crate::Gateway;
use crate::catalog::ServedModel;
use crate::refused::Why;
use crate::stages::hold::quoted;
use crate::state::Work;

use super::round::Round;
use super::{Carried, Ending};

impl Carried {
    /// Puts another model in the place of the one with which the round has ended like this. False: nobody may answer instead, or
    /// nobody can, and the ending stands.
    pub(super) async fn falls_back(&mut self, gateway: &Gateway, ending: &Ending) -> bool {
        let (Ending::Refused(why) | Ending::Failed(why)) = ending else { return false };
        // What has gone out cannot be taken back.
        if self.line.has_begun() || !self.line.sender.is_empty() {
            return false;
        }
        let Some(mut next) = self.next(why) else { return false };
        // Nobody pays for what came to nothing: only its times and tries are told.
        self.round.time(&mut self.dossier, self.reply.as_mut());
        loop {
            self.passed_over.push(next.name.clone());
            if let Ok(work) = self.made_for(gateway, Arc::clone(&next)).await {
                self.goes_over(work);
                return true;
            }
            let Some(further) = self.next(why) else { return false };
            next = further;
        }
    }

    /// One that was not tried. What the first failed with decides, whatever kept others from being tried.
    fn next(&self, why: &Why) -> Option<Arc<ServedModel>> {
        let work = &self.round.work;
        let (ending, tried) = ((why.code, why.stage), &self.passed_over);
        work.catalog.fallback(&work.call.model, ending, &work.model, tried, &work.residency)
    }

    /// The call as it is put to another model, with limits and money for that.
    async fn made_for(&mut self, gateway: &Gateway, model: Arc<ServedModel>) -> Result<Work, Why> {
        let failed = Arc::clone(&self.round.work);
        let work = failed.for_model(gateway, model, &mut self.dossier).await?;
        let quoted = quoted(&work, gateway.parts().clock.now())?;
        self.settlement.go_over(gateway, (&failed.model, &work.model), quoted, &mut self.dossier).await?;
        Ok(work)
    }

    /// From here on it is as if the other model had been asked at once, but for the tries that came to nothing.
    fn goes_over(&mut self, work: Work) {
        let failed: Arc<str> = self.round.work.model.name.as_str().into();
        self.passed_over.push(self.round.work.model.name.clone());
        self.dossier.served_by(&work.model);
        let now = self.dossier.clock.now();
        let record = &mut self.dossier.record;
        record.billed = Some(Box::new(work.held_for(now)));
        record.upstream = None;
        for attempt in record.attempts.iter_mut().filter(|attempt| attempt.model.is_none()) {
            attempt.model = Some(Arc::clone(&failed));
        }
        self.reply = None;
        self.round = Round::new(Arc::new(work));
    }
}
