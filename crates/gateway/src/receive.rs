//! Stage `receive`: the body, now that it is known who sends it and that it could be paid for. How it comes in, and what
//! bounds its bytes and its time, is the edge's.

use headrace_domain::Stage;

use crate::authenticate::draining;
use crate::refused::Refused;
use crate::state::{Admitted, Received};
use crate::{BodySource, Gateway};

impl<B: BodySource> Admitted<B> {
    pub(crate) async fn receive(self, gateway: &Gateway) -> Result<Received, Refused> {
        let Self { mut dossier, principal, endpoint, body } = self;
        let read = tokio::select! {
            biased;
            read = body.read(&principal.key) => read,
            // A call whose body is still on its way when the drain's time is over ends here.
            () = gateway.cut_off().cancelled() => return Err(dossier.refuse(draining())),
        };
        match read {
            Ok(body) => {
                dossier.mark(Stage::Receive);
                Ok(Received { dossier, principal, endpoint, body })
            }
            Err(refusal) => Err(dossier.refuse(refusal.why())),
        }
    }
}
