//! Stage `parse`: the body's one meaning. All rules are `wire`'s; here only the trace learns of it.

use headrace_domain::Stage;
use headrace_wire::ErrorKind;

use crate::Gateway;
use crate::refused::{Refused, Why};
use crate::state::{Parsed, Received};

/// Bytes of an asked-for model name that the trace keeps.
const TRACED_NAME_BYTES: usize = 256;

impl Received {
    pub(crate) fn parse(mut self, gateway: &Gateway) -> Result<Parsed, Refused> {
        match headrace_wire::parse(self.endpoint, &self.body, &gateway.config().wire) {
            Ok(call) => {
                self.dossier.record.stream = call.stream;
                self.dossier.record.model_asked = Some(cut(&call.model));
                self.dossier.mark(Stage::Parse);
                Ok(Parsed { dossier: self.dossier, principal: self.principal, call })
            }
            Err(bad) => {
                let mut why = Why::new(Stage::Parse, 400, ErrorKind::InvalidRequest, bad.code, bad.message);
                why.param = bad.param;
                Err(self.dossier.refuse(why))
            }
        }
    }
}

fn cut(name: &str) -> String {
    let mut end = name.len().min(TRACED_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.get(..end).unwrap_or_default().to_owned()
}
