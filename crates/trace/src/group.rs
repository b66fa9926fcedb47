//! The group that a span counts towards: the client, the gateway before the engine, the engine, or the way back. Draws
//! nothing.

use headrace_domain::{Stage, StageSpan};

/// The part of a call that a span belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanGroup {
    /// The client's own time: the server could only wait.
    Client,
    Gateway,
    Engine,
    Back,
}

impl SpanGroup {
    pub(crate) const ALL: [Self; 4] = [Self::Client, Self::Gateway, Self::Engine, Self::Back];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Gateway => "gateway",
            Self::Engine => "engine",
            Self::Back => "back",
        }
    }
}

/// Returns a record's spans, each with its group. A span inside another span belongs to the group of that span.
pub(crate) fn grouped_spans(stages: &[StageSpan]) -> Vec<(SpanGroup, &StageSpan)> {
    let (mut last, mut handed_over) = (SpanGroup::Gateway, false);
    let group = |span| {
        last = group_of(span, last, handed_over);
        handed_over |= last == SpanGroup::Engine;
        (last, span)
    };
    stages.iter().map(group).collect()
}

fn group_of(span: &StageSpan, last: SpanGroup, handed_over: bool) -> SpanGroup {
    match span.stage {
        _ if span.inside.is_some() => last,
        Stage::Receive | Stage::Reader => SpanGroup::Client,
        Stage::Upstream | Stage::Queue | Stage::Prefill | Stage::Decode => SpanGroup::Engine,
        Stage::Postprocess | Stage::Deliver | Stage::Settle => SpanGroup::Back,
        Stage::Handover if handed_over => SpanGroup::Back,
        _ => SpanGroup::Gateway,
    }
}
