//! Stage `receive`: the body, now that it is known who sends it and that it could be paid for. How it comes in, and what
//! bounds its bytes and its time, is the edge's.

use headrace_call_api::BodySource;
use headrace_domain::Stage;

use crate::Gateway;
use crate::dossier::Dossier;
use crate::refused::Why;
use crate::state::{Admitted, Received};

use super::authenticate::draining;

impl Admitted {
    pub(crate) async fn receive(
        self,
        gateway: &Gateway,
        body: impl BodySource,
        dossier: &mut Dossier,
    ) -> Result<Received, Why> {
        let Self { principal, endpoint } = self;
        let read = tokio::select! {
            biased;
            read = body.read() => read,
            // A call whose body is still on its way when the drain's time is over ends here.
            () = gateway.cut_off().cancelled() => return Err(draining()),
        };
        let body = read.map_err(|refusal| Why::of_body(&refusal))?;
        dossier.mark(Stage::Receive);
        Ok(Received { principal, endpoint, body })
    }
}
