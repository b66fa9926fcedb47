//! Stage `receive`: reads the body, once it is known who sends it and that the caller has funds. The edge decides how
//! it is read and bounds its bytes and time.

use headrace_call_api::BodySource;
use headrace_call_state::Rejection;
use headrace_domain::Stage;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::{AdmittedRequest, ReceivedRequest};

use crate::refusal::draining;

impl AdmittedRequest {
    pub(crate) async fn receive(
        self,
        gateway: &Gateway,
        body: impl BodySource,
        context: &mut RequestContext,
    ) -> Result<ReceivedRequest, Rejection> {
        let Self { principal, endpoint } = self;
        let read = tokio::select! {
            biased;
            read = body.read() => read,
            // If the drain's time ends while the body is still arriving, the call ends here.
            () = gateway.cut_off().cancelled() => return Err(draining()),
        };
        let body = read.map_err(|refusal| Rejection::of_body(&refusal))?;
        context.end_stage(Stage::Receive);
        Ok(ReceivedRequest { principal, endpoint, body })
    }
}
