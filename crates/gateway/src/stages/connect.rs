//! Stage `connect`: the request head has arrived. The edge has already checked it; the trace begins here.

use headrace_call_api::Head;
use headrace_domain::Stage;

use crate::dossier::Dossier;
use crate::state::Arrived;

impl Arrived {
    pub(crate) fn new(head: Head, dossier: &mut Dossier) -> Self {
        dossier.describe(head.endpoint, head.traceparent.as_deref());
        dossier.dialect_headers = head.dialect;
        dossier.record.connection = head.connection;
        dossier.mark(Stage::Connect);
        Self { credentials: head.credentials, endpoint: head.endpoint }
    }
}
