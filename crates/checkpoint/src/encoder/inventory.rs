//! The tensors that an encoder's configuration calls for. Must not know what the tensors are used for.

use super::config::{BertConfig, EncoderBody, EncoderConfig, ModernBertConfig, ScoreHead};
use crate::inventory::Required;

/// The tensors listed so far.
#[derive(Default)]
struct List(Vec<Required>);

impl List {
    fn add(&mut self, name: &str, shape: &[usize], fields: &'static str) {
        self.0.push(Required { name: name.to_owned(), shape: shape.to_vec(), fields: fields.into() });
    }

    /// Adds a dense layer with `k` inputs and `n` outputs.
    fn dense(&mut self, name: &str, (n, k): (usize, usize), bias: bool, fields: &'static str) {
        self.add(&format!("{name}.weight"), &[n, k], fields);
        if bias {
            self.add(&format!("{name}.bias"), &[n], fields);
        }
    }

    fn norm(&mut self, name: &str, width: usize, bias: bool) {
        self.add(&format!("{name}.weight"), &[width], "[hidden_size]");
        if bias {
            self.add(&format!("{name}.bias"), &[width], "[hidden_size]");
        }
    }
}

/// Returns every tensor that `config` calls for.
pub(crate) fn all(config: &EncoderConfig) -> Vec<Required> {
    let mut list = List::default();
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    match &config.body {
        EncoderBody::Bert(bert) => {
            list.add("embeddings.word_embeddings.weight", &[vocab, hidden], "[vocab_size, hidden_size]");
            bert_layers(&mut list, bert, hidden);
        }
        EncoderBody::Modern(modern) => {
            list.add("embeddings.tok_embeddings.weight", &[vocab, hidden], "[vocab_size, hidden_size]");
            modern_layers(&mut list, modern, hidden);
        }
        EncoderBody::Causal(decoder) => {
            list.0.extend(decoder.required().map(Required::from));
        }
    }
    if let Some((head, _)) = config.score {
        score(&mut list, config, head);
    }
    list.0
}

fn bert_layers(list: &mut List, config: &BertConfig, hidden: usize) {
    let BertConfig { positions, token_types, intermediate_size, .. } = *config;
    let fields = "[max_position_embeddings, hidden_size]";
    list.add("embeddings.position_embeddings.weight", &[positions, hidden], fields);
    let fields = "[type_vocab_size, hidden_size]";
    list.add("embeddings.token_type_embeddings.weight", &[token_types, hidden], fields);
    list.norm("embeddings.LayerNorm", hidden, true);
    for layer in 0..config.layers {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        for part in ["query", "key", "value"] {
            let own = name(&format!("attention.self.{part}"));
            list.dense(&own, (hidden, hidden), true, "[hidden_size, hidden_size]");
        }
        list.dense(&name("attention.output.dense"), (hidden, hidden), true, "[hidden_size, hidden_size]");
        list.norm(&name("attention.output.LayerNorm"), hidden, true);
        let up = (intermediate_size, hidden);
        list.dense(&name("intermediate.dense"), up, true, "[intermediate_size, hidden_size]");
        let down = (hidden, intermediate_size);
        list.dense(&name("output.dense"), down, true, "[hidden_size, intermediate_size]");
        list.norm(&name("output.LayerNorm"), hidden, true);
    }
}

fn modern_layers(list: &mut List, config: &ModernBertConfig, hidden: usize) {
    let ModernBertConfig { intermediate_size: inner, norm_bias, attention_bias, mlp_bias, .. } = *config;
    list.norm("embeddings.norm", hidden, norm_bias);
    for layer in 0..config.global.len() {
        let name = |part: &str| format!("layers.{layer}.{part}");
        // The first layer's input is already normalized.
        if layer > 0 {
            list.norm(&name("attn_norm"), hidden, norm_bias);
        }
        let heads = (3 * hidden, hidden);
        list.dense(&name("attn.Wqkv"), heads, attention_bias, "[3 hidden_size, hidden_size]");
        list.dense(&name("attn.Wo"), (hidden, hidden), attention_bias, "[hidden_size, hidden_size]");
        list.norm(&name("mlp_norm"), hidden, norm_bias);
        list.dense(&name("mlp.Wi"), (2 * inner, hidden), mlp_bias, "[2 intermediate_size, hidden_size]");
        list.dense(&name("mlp.Wo"), (hidden, inner), mlp_bias, "[hidden_size, intermediate_size]");
    }
    list.norm("final_norm", hidden, norm_bias);
}

fn score(list: &mut List, config: &EncoderConfig, head: ScoreHead) {
    const ONE: &str = "[num_labels, hidden_size]; models that score a pair with one label are supported";
    let hidden = config.hidden_size;
    let square = "[hidden_size, hidden_size]";
    match head {
        ScoreHead::Bert => {
            list.dense("pooler.dense", (hidden, hidden), true, square);
            list.dense("classifier", (1, hidden), true, ONE);
        }
        ScoreHead::Roberta => {
            list.dense("classifier.dense", (hidden, hidden), true, square);
            list.dense("classifier.out_proj", (1, hidden), true, ONE);
        }
        ScoreHead::Modern { dense_bias, .. } => {
            let norm_bias = matches!(&config.body, EncoderBody::Modern(modern) if modern.norm_bias);
            list.dense("head.dense", (hidden, hidden), dense_bias, square);
            list.norm("head.norm", hidden, norm_bias);
            list.dense("classifier", (1, hidden), true, ONE);
        }
    }
}
