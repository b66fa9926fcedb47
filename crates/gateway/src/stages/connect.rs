//! Stage `connect`: the head is here. What was done for it is the edge's; here its trace begins.

use headrace_domain::Stage;

use crate::Arrival;
use crate::dossier::Dossier;
use crate::state::Arrived;

impl<B> Arrived<B> {
    pub(crate) fn new(arrival: Arrival<B>, dossier: &mut Dossier) -> Self {
        dossier.describe(arrival.endpoint, arrival.traceparent.as_deref());
        dossier.mark(Stage::Connect);
        Self { credentials: arrival.credentials, endpoint: arrival.endpoint, body: arrival.body }
    }
}
