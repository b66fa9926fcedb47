//! Stage `receive`: the body, now that it is known who sends it and that it could be paid for. How it comes in, and what
//! bounds its bytes and its time, is the edge's.

use headrace_domain::Stage;

use crate::dossier::Dossier;
use crate::refused::Why;
use crate::state::{Admitted, Received};
use crate::{BodySource, Gateway};

use super::authenticate::draining;

impl<B: BodySource> Admitted<B> {
    pub(crate) async fn receive(self, gateway: &Gateway, dossier: &mut Dossier) -> Result<Received, Why> {
        let Self { principal, endpoint, body } = self;
        let read = tokio::select! {
            biased;
            read = body.read(&principal.key) => read,
            // A call whose body is still on its way when the drain's time is over ends here.
            () = gateway.cut_off().cancelled() => return Err(draining()),
        };
        let body = read.map_err(|refusal| refusal.why())?;
        dossier.mark(Stage::Receive);
        Ok(Received { principal, endpoint, body })
    }
}
