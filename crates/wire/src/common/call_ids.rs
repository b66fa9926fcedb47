//! Ties tool calls to their results by id. Each result answers one earlier call, and no two unanswered calls have the
//! same id. Knows no dialect.

use std::collections::HashSet;

use headrace_domain::Code;

use crate::fault::{FieldFault, Read};

/// The ids of a conversation so far.
#[derive(Debug, Default)]
pub(crate) struct CallIds {
    waiting: HashSet<String>,
    answered: HashSet<String>,
    /// Whether an id may be used again after its call was answered. Some models number their calls from the start in
    /// each turn.
    may_return: bool,
}

impl CallIds {
    /// OpenAI's rule: an id may be used again in a later turn.
    pub(crate) fn openai() -> Self {
        Self { may_return: true, ..Self::default() }
    }

    /// Anthropic's rule: an id names one call of the whole conversation.
    pub(crate) fn anthropic() -> Self {
        Self::default()
    }

    /// Records a call with this id.
    pub(crate) fn called(&mut self, id: &str) -> Read<()> {
        let was = self.answered.contains(id);
        if was && self.may_return {
            self.answered.remove(id);
        }
        if (was && !self.may_return) || !self.waiting.insert(id.to_owned()) {
            return Err(FieldFault::new(
                Code::InvalidValue,
                "another call of a tool has the same id; each needs its own",
            ));
        }
        Ok(())
    }

    /// Records the result for the call with this id.
    pub(crate) fn answered(&mut self, id: &str) -> Read<()> {
        if self.waiting.remove(id) {
            self.answered.insert(id.to_owned());
            return Ok(());
        }
        let message = if self.answered.contains(id) {
            "the call of this id has a result already; send one for each call"
        } else {
            "no call of a tool before it has this id; send the assistant's message with the call first"
        };
        Err(FieldFault::new(Code::InvalidValue, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_result_answers_one_call_before_it() {
        let mut ids = CallIds::openai();
        assert!(ids.answered("a").unwrap_err().message().contains("no call"));
        ids.called("a").unwrap();
        assert!(ids.called("a").is_err());
        ids.answered("a").unwrap();
        assert!(ids.answered("a").unwrap_err().message().contains("already"));
        // A later turn may use the same id.
        ids.called("a").unwrap();
        ids.answered("a").unwrap();

        let mut ids = CallIds::anthropic();
        ids.called("a").unwrap();
        ids.answered("a").unwrap();
        assert!(ids.called("a").is_err());
    }
}
