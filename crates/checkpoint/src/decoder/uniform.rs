//! Llama, Qwen2 and Qwen3: layers of one size, each with RMSNorm before grouped-query attention and before SwiGLU
//! (Touvron and others 2023, arXiv 2307.09288; Yang and others 2024, arXiv 2407.10671; 2025, arXiv 2505.09388).

use super::feed::{FeedActivation, FeedForward, GatedFeed};
use super::layer::{AttentionConfig, LayerConfig, LayerRotary, MixerConfig};
use super::norm::{HeadNorm, NormConfig, NormKind};
use super::source::{LinearConfig, RowSource, SizeField};
use super::{Architecture, EmbeddingConfig, HeadConfig, ModelConfig, RotaryConfig};
use crate::rope::Rope;

/// Sizes and switches of a model of the Llama line. All sizes are in elements, and within [`crate::limits`].
#[derive(Debug, Clone, PartialEq)]
pub struct UniformConfig {
    /// The decoder architecture.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads. Divides `heads`.
    pub kv_heads: usize,
    /// Width of a head. Always even. `heads * head_dim` need not equal `hidden_size`.
    pub head_dim: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Rows of the embedding. May exceed the number of token ids, because of padding.
    pub vocab_size: usize,
    /// Longest context, in positions. An unchecked claim of the file.
    pub max_positions: usize,
    /// Epsilon of every RMSNorm. Positive.
    pub rms_norm_eps: f32,
    /// Rotary position embedding.
    pub rope: Rope,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub o_bias: bool,
    /// Whether the three MLP projections have biases.
    pub mlp_bias: bool,
    /// Whether each query and key head passes an RMSNorm before RoPE.
    pub qk_norm: bool,
    /// Whether the embedding also serves as the output projection.
    pub tie_embeddings: bool,
    /// Beginning-of-sequence id.
    pub bos: Option<u32>,
    /// End-of-sequence ids. Empty if the file names none.
    pub eos: Vec<u32>,
}

impl From<UniformConfig> for ModelConfig {
    fn from(uniform: UniformConfig) -> Self {
        let vocab = SizeField::new(uniform.vocab_size, "vocab_size");
        let hidden = uniform.hidden();
        Self {
            architecture: uniform.architecture,
            hidden_size: uniform.hidden_size,
            vocab_size: uniform.vocab_size,
            max_positions: uniform.max_positions,
            embedding: EmbeddingConfig {
                words: RowSource::whole("model.embed_tokens.weight".to_owned(), &[vocab, hidden]),
                positions: None,
                scale: 1.0,
            },
            layers: (0..uniform.layers).map(|index| uniform.layer(index)).collect(),
            layer_inputs: None,
            rotary: vec![RotaryConfig { rope: uniform.rope.clone(), width: uniform.head_dim }],
            final_norm: uniform.norm("model.norm".to_owned()),
            head: HeadConfig {
                linear: (!uniform.tie_embeddings).then(|| LinearConfig::own("lm_head", vocab, hidden, false)),
                scale: 1.0,
                cap: None,
            },
            bos: uniform.bos,
            eos: uniform.eos.clone(),
            uniform: Some(uniform),
        }
    }
}

impl UniformConfig {
    fn hidden(&self) -> SizeField {
        SizeField::new(self.hidden_size, "hidden_size")
    }

    fn norm(&self, name: String) -> NormConfig {
        NormConfig {
            kind: NormKind::Rms,
            eps: self.rms_norm_eps,
            width: self.hidden_size,
            weight: Some(RowSource::whole(format!("{name}.weight"), &[self.hidden()])),
            bias: None,
            plus_one: false,
        }
    }

    fn layer(&self, index: usize) -> LayerConfig {
        let prefix = format!("model.layers.{index}.");
        let name = |part: &str| format!("{prefix}{part}");
        let hidden = self.hidden();
        // Head counts and widths are within `limits`, so their products cannot overflow.
        let queries = SizeField::new(self.heads * self.head_dim, "num_attention_heads × head_dim");
        let keys = SizeField::new(self.kv_heads * self.head_dim, "num_key_value_heads × head_dim");
        let inner = SizeField::new(self.intermediate_size, "intermediate_size");
        let linear =
            |part: &str, outputs, inputs, has_bias| LinearConfig::own(&name(part), outputs, inputs, has_bias);
        let head_norm = |part: &str| {
            let head = SizeField::new(self.head_dim, "head_dim");
            let weight = RowSource::whole(format!("{}.weight", name(part)), &[head]);
            let norm = NormConfig { width: self.head_dim, weight: Some(weight), ..self.norm(String::new()) };
            self.qk_norm.then_some(HeadNorm::Head(norm))
        };
        LayerConfig {
            mixer_norm: Some(self.norm(name("input_layernorm"))),
            mixer: MixerConfig::Attention(Box::new(AttentionConfig {
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                query: linear("self_attn.q_proj", queries, hidden, self.qkv_bias),
                key: linear("self_attn.k_proj", keys, hidden, self.qkv_bias),
                value: linear("self_attn.v_proj", keys, hidden, self.qkv_bias),
                gate: None,
                output: linear("self_attn.o_proj", hidden, queries, self.o_bias),
                query_norm: head_norm("self_attn.q_norm"),
                key_norm: head_norm("self_attn.k_norm"),
                value_norm: None,
                kv_of: None,
                rotary: Some(LayerRotary { table: 0, growth: None }),
                scale: 1.0 / (self.head_dim as f32).sqrt(),
                cap: None,
                window: None,
                sinks: None,
                clip: None,
            })),
            mixer_out_norm: None,
            feed_norm: Some(self.norm(name("post_attention_layernorm"))),
            feed: FeedForward::Gated(Box::new(GatedFeed {
                inner: self.intermediate_size,
                activation: FeedActivation::Silu,
                gate: linear("mlp.gate_proj", inner, hidden, self.mlp_bias),
                up: linear("mlp.up_proj", inner, hidden, self.mlp_bias),
                down: linear("mlp.down_proj", hidden, inner, self.mlp_bias),
            })),
            feed_out_norm: None,
            parallel: false,
            residual_scale: 1.0,
            tail: None,
            prefix,
        }
    }
}
