//! Whole answers of encoders: OpenAI's embeddings, Jina's and Cohere's rerankings, vLLM's scores. Written at the end.
//! Sorts values, but computes none.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use headrace_domain::{
    Call, Dialect, EncodeText, EncodeWish, Endpoint, Prompt, ReplyEvent, ScoreWish, ToEncode, Usage,
    VectorWish,
};

use crate::common::answer_id::{answer_id, write_explain};
use crate::common::encoder::{JSON, ReplyEncoder, ReplyMeta};
use crate::common::error::ErrorFacts;
use crate::common::error::write_error;
use crate::json::writer::{list, raw, value};

pub(super) struct EncodedVectors {
    endpoint: Endpoint,
    meta: ReplyMeta,
    wish: EncodeWish,
    /// The documents, if the answer repeats them.
    documents: Vec<Arc<str>>,
    /// The values of each text, by its index.
    values: Vec<Option<Arc<[f32]>>>,
    over: bool,
}

impl EncodedVectors {
    pub(super) fn new(call: &Call, meta: ReplyMeta) -> Self {
        let (texts, wish) = match &call.prompt {
            Prompt::Encode(ToEncode { texts, wish }) => (texts.as_slice(), wish.clone()),
            Prompt::Conversation(_) | Prompt::Raw(_) | Prompt::Relayed(_) => {
                (&[][..], EncodeWish::Vectors(VectorWish::default()))
            }
        };
        let with_documents = matches!(&wish, EncodeWish::Scores(wish) if wish.return_documents);
        let document = |text: &EncodeText| match text {
            EncodeText::Pair(_, document) if with_documents => Some(Arc::clone(document)),
            _ => None,
        };
        let documents = texts.iter().filter_map(document).collect();
        let values = vec![None; texts.len()];
        Self { endpoint: call.endpoint, meta, wish, documents, values, over: false }
    }

    /// The index and the values of each text, in the order of the texts.
    fn given(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.values.iter().enumerate().filter_map(|(at, values)| Some((at, values.as_deref()?)))
    }

    fn write_vectors(&self, wish: &VectorWish, out: &mut BytesMut) {
        raw(out, "{\"object\":\"list\",\"data\":[");
        list(out, self.given(), |out, (at, values)| {
            raw(out, "{\"object\":\"embedding\",\"index\":");
            value(out, &at);
            raw(out, ",\"embedding\":");
            if wish.base64 {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                raw(out, "\"");
                raw(out, &STANDARD.encode(bytes));
                raw(out, "\"");
            } else {
                value(out, values);
            }
            raw(out, "}");
        });
        raw(out, "],\"model\":");
        value(out, &self.meta.model);
    }

    /// Returns the scores, the best first. Of two equal scores, the earlier text comes first.
    fn ranked(&self) -> Vec<(usize, f32)> {
        let mut scores: Vec<(usize, f32)> =
            self.given().filter_map(|(at, values)| Some((at, *values.first()?))).collect();
        scores.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        scores
    }

    fn write_ranking(&self, wish: &ScoreWish, out: &mut BytesMut) {
        raw(out, "{\"id\":");
        value(out, &answer_id(self.endpoint, self.meta.request_id));
        raw(out, ",\"model\":");
        value(out, &self.meta.model);
        raw(out, ",\"results\":[");
        let most = wish.top_n.map_or(usize::MAX, |most| most as usize);
        list(out, self.ranked().into_iter().take(most), |out, (at, score)| {
            raw(out, "{\"index\":");
            value(out, &at);
            if let Some(document) = self.documents.get(at) {
                raw(out, ",\"document\":{\"text\":");
                value(out, &**document);
                raw(out, "}");
            }
            raw(out, ",\"relevance_score\":");
            value(out, &score);
            raw(out, "}");
        });
        raw(out, "]");
    }

    fn write_scores(&self, out: &mut BytesMut) {
        raw(out, "{\"id\":");
        value(out, &answer_id(self.endpoint, self.meta.request_id));
        raw(out, ",\"object\":\"list\",\"created\":");
        value(out, &self.meta.created_unix_s);
        raw(out, ",\"model\":");
        value(out, &self.meta.model);
        raw(out, ",\"data\":[");
        list(out, self.given(), |out, (at, values)| {
            raw(out, "{\"index\":");
            value(out, &at);
            raw(out, ",\"object\":\"score\",\"score\":");
            value(out, &values.first());
            raw(out, "}");
        });
        raw(out, "]");
    }
}

impl ReplyEncoder for EncodedVectors {
    fn begin(&mut self, _prompt_usage: &Usage, _out: &mut BytesMut) {}

    fn event(&mut self, event: &ReplyEvent, _out: &mut BytesMut) {
        if let ReplyEvent::Encoded { choice, values } = event
            && let Some(slot) = self.values.get_mut(*choice as usize)
        {
            *slot = Some(Arc::clone(values));
        }
    }

    fn finish(&mut self, usage: &Usage, explain: Option<&serde_json::Value>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        match &self.wish {
            EncodeWish::Vectors(wish) => self.write_vectors(wish, out),
            EncodeWish::Scores(wish) if self.endpoint == Endpoint::Rerank => self.write_ranking(wish, out),
            EncodeWish::Scores(_) => self.write_scores(out),
        }
        raw(out, ",\"usage\":{\"prompt_tokens\":");
        value(out, &usage.prompt_tokens());
        raw(out, ",\"total_tokens\":");
        value(out, &usage.total());
        raw(out, "}");
        write_explain(out, explain);
        raw(out, "}");
    }

    fn fail(&mut self, facts: &ErrorFacts, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.over, true) {
            write_error(Dialect::OpenAi, facts, out);
        }
    }

    fn keep_alive(&mut self, _out: &mut BytesMut) {}

    fn content_type(&self) -> &'static str {
        JSON
    }
}
