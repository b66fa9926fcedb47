//! The terms into which a call's time is divided, and the party of each. Must not know a record.

use serde::{Serialize, Serializer};

use headrace_domain::Stage;

/// The party that spends the time of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Party {
    /// The client, or its network. The server could only wait.
    Client,
    /// The gateway.
    Gateway,
    /// An engine of this deployment.
    Engine,
    /// Another operator's server.
    Upstream,
}

macro_rules! terms {
    ($($variant:ident $name:literal $party:ident $doc:literal;)*) => {
        /// A part of a call's time. Together they are all of it, and no part is counted twice.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum TermName {
            $(#[doc = $doc] $variant,)*
        }

        impl TermName {
            /// Every term, in the order of the request path.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The party that spends this time.
            pub const fn party(self) -> Party {
                match self { $(Self::$variant => Party::$party,)* }
            }
        }
    };
}

terms! {
    Connect "connect" Gateway "From the last byte of the head until the server starts to process the call.";
    Authenticate "authenticate" Gateway "Finding the caller of the key.";
    Receive "receive" Client "Receiving the body, at the speed of the client.";
    Parse "parse" Gateway "Parsing the body.";
    Authorize "authorize" Gateway "Checking whether the key may use the model.";
    Route "route" Gateway "Choosing the model for the name.";
    Moderate "moderate" Gateway "Checking the content rules.";
    Render "render" Gateway "Running the chat template and the tokenizer.";
    Form "form" Gateway "Compiling the format of the answer: a schema, a grammar, or the tools' schemas.";
    Cache "cache" Gateway "Hashing the blocks of the prompt.";
    Hold "hold" Gateway "Taking limits and a hold.";
    Place "place" Gateway "Choosing the worker.";
    Retries "retries" Upstream "Failed attempts before the worker that answered.";
    Upstream "upstream" Upstream "Waiting for an upstream's first token: its queue and its prefill.";
    QueueOwn "queue_own" Engine "Waiting while answers of the same organisation were generated.";
    QueueOwnPrompts "queue_own_prompts" Engine "Waiting while prompts of the same organisation were computed.";
    QueueOthers "queue_others" Engine "Waiting while answers of other organisations were generated.";
    QueueOthersPrompts "queue_others_prompts" Engine "Waiting while prompts of other organisations were computed.";
    Queue "queue" Engine "Waiting for the engine's next step, and the unexplained part of the wait.";
    Prefill "prefill" Engine "Computing the prompt.";
    Decode "decode" Engine "Generating the answer.";
    DecodeBehindPrompts "decode_behind_prompts" Engine "Waiting for prompts of other organisations in the same steps.";
    Postprocess "postprocess" Gateway "Finding tool calls in the text.";
    Deliver "deliver" Gateway "Encoding the answer in its dialect, and passing it to the transport.";
    Reader "reader" Client "Waiting for a client that did not read.";
    Handover "handover" Gateway "Switching between tasks and threads.";
    Settle "settle" Gateway "Computing the charge from the usage.";
    Unaccounted "unaccounted" Gateway "Time that the record does not explain.";
}

impl TermName {
    /// The term of a stage, before any further division.
    pub(crate) const fn of_stage(stage: Stage) -> Self {
        match stage {
            Stage::Connect => Self::Connect,
            Stage::Authenticate => Self::Authenticate,
            Stage::Receive => Self::Receive,
            Stage::Parse => Self::Parse,
            Stage::Authorize => Self::Authorize,
            Stage::Route => Self::Route,
            Stage::Moderate => Self::Moderate,
            Stage::Render => Self::Render,
            Stage::Cache => Self::Cache,
            Stage::Hold => Self::Hold,
            Stage::Place => Self::Place,
            Stage::Upstream => Self::Upstream,
            Stage::Queue => Self::Queue,
            Stage::Prefill => Self::Prefill,
            Stage::Decode => Self::Decode,
            Stage::Handover => Self::Handover,
            Stage::Reader => Self::Reader,
            Stage::Postprocess => Self::Postprocess,
            Stage::Deliver => Self::Deliver,
            Stage::Settle => Self::Settle,
        }
    }

    /// Whether the gateway only waits in this time, for a worker or an answer.
    pub(crate) const fn is_a_wait(self) -> bool {
        matches!(
            self,
            Self::Place
                | Self::Retries
                | Self::Upstream
                | Self::QueueOwn
                | Self::QueueOwnPrompts
                | Self::QueueOthers
                | Self::QueueOthersPrompts
                | Self::Queue
                | Self::Prefill
        )
    }

    /// The family of the term, under which it is weighed in the search for the dearest one. The parts of one wait are a
    /// family, and so are those of one answer.
    pub(crate) const fn family(self) -> Self {
        match self {
            Self::QueueOwn
            | Self::QueueOwnPrompts
            | Self::QueueOthers
            | Self::QueueOthersPrompts
            | Self::Queue => Self::Queue,
            Self::Decode | Self::DecodeBehindPrompts => Self::Decode,
            other => other,
        }
    }
}

impl Serialize for TermName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_a_term_of_its_own_name() {
        for stage in Stage::ALL {
            assert_eq!(TermName::of_stage(stage).name(), stage.name());
        }
    }
}
