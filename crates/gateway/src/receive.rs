//! Stage `receive`: the body, now that it is known who sends it and that it could be paid for. How it comes in, and what
//! bounds its bytes and its time, is the edge's.

use headrace_domain::Stage;

use crate::BodySource;
use crate::refused::Refused;
use crate::state::{Authenticated, Received};

impl<B: BodySource> Authenticated<B> {
    pub(crate) async fn receive(self) -> Result<Received, Refused> {
        let Self { mut dossier, principal, endpoint, body } = self;
        match body.read(&principal.key).await {
            Ok(body) => {
                dossier.mark(Stage::Receive);
                Ok(Received { dossier, principal, endpoint, body })
            }
            Err(refusal) => Err(dossier.refuse(refusal.why())),
        }
    }
}
