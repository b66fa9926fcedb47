//! Every limit on the files that this crate reads, in one place, with the unit in the name. The limits are generous for
//! published models, and low enough that a false value cannot cost much. Contains no logic.

/// Largest `config.json`.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Largest `generation_config.json`.
pub const MAX_GENERATION_CONFIG_BYTES: u64 = 1 << 20;
/// Largest `tokenizer_config.json`, which may contain thousands of added tokens and the chat template.
pub const MAX_TOKENIZER_CONFIG_BYTES: u64 = 16 << 20;
/// Largest `tokenizer.json`. Published files reach about 35 MB.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Largest `model.safetensors.index.json`. The largest published files are near 10 MB.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Largest chat template, in a file of its own or inside `tokenizer_config.json`.
pub const MAX_CHAT_TEMPLATE_BYTES: u64 = 1 << 20;
/// Most named chat templates in one `tokenizer_config.json`.
pub const MAX_CHAT_TEMPLATES: usize = 32;

/// Largest safetensors header. The format's own library has the same limit.
pub const MAX_SAFETENSORS_HEADER_BYTES: usize = 100_000_000;
/// Largest GGUF header: metadata (with the tokenizer) and tensor list. Published headers reach about 15 MB.
pub const MAX_GGUF_HEADER_BYTES: usize = 256 << 20;
/// Most metadata keys of a GGUF file.
pub const MAX_GGUF_KEYS: usize = 1 << 16;
/// Longest metadata key of a GGUF file. The format itself has this limit.
pub const MAX_GGUF_KEY_BYTES: usize = (1 << 16) - 1;
/// Longest text in the metadata of a GGUF file. Some files contain a whole `tokenizer.json`.
pub const MAX_GGUF_TEXT_BYTES: usize = 64 << 20;
/// Most items of an array in the metadata of a GGUF file.
pub const MAX_GGUF_ARRAY_ITEMS: usize = 1 << 24;
/// Most dimensions of a tensor of a GGUF file. ggml has the same limit.
pub const MAX_GGUF_RANK: usize = 4;
/// Largest alignment of a GGUF file's data.
pub const MAX_GGUF_ALIGNMENT_BYTES: usize = 1 << 16;
/// Longest token of a GGUF file's vocabulary.
pub const MAX_TOKEN_BYTES: usize = 1 << 12;
/// Maximum work to derive the merges of a scored vocabulary, in bytes: the sum of the squares of its tokens' lengths.
/// Published vocabularies stay below a fiftieth.
pub const MAX_MERGE_WORK_BYTES: u64 = 1 << 30;

/// Most tensors in one safetensors file, one index or one GGUF file.
pub const MAX_TENSORS: usize = 1 << 18;
/// Longest tensor name.
pub const MAX_TENSOR_NAME_BYTES: usize = 512;
/// Most dimensions of one tensor.
pub const MAX_TENSOR_RANK: usize = 8;
/// Most weight files of one checkpoint.
pub const MAX_WEIGHT_FILES: usize = 1_024;
/// Longest file name that an index may use.
pub const MAX_FILE_NAME_BYTES: usize = 255;
/// Most entries of a model directory that are examined to find its weight files.
pub const MAX_DIRECTORY_ENTRIES: usize = 10_000;

/// Most rows or columns of a matrix that share a stored scale, unless all of them do.
pub const MAX_SCALE_TILE: usize = 1 << 20;

/// Most JSON values in one file other than a safetensors header. This bounds memory, because a value takes far more
/// than the two bytes that can describe it.
pub const MAX_JSON_VALUES: usize = 1 << 20;

/// Largest `hidden_size`, in elements.
pub const MAX_HIDDEN_SIZE: usize = 1 << 17;
/// Largest `intermediate_size`, in elements.
pub const MAX_INTERMEDIATE_SIZE: usize = 1 << 19;
/// Most decoder layers.
pub const MAX_LAYERS: usize = 1_024;
/// Most attention heads.
pub const MAX_HEADS: usize = 1_024;
/// Most experts of a layer.
pub const MAX_EXPERTS: usize = 1_024;
/// Largest `head_dim`, in elements.
pub const MAX_HEAD_DIM: usize = 1_024;
/// Most taps of a short convolution.
pub const MAX_CONVOLUTION_TAPS: usize = 17;
/// Largest compressed row of latent attention, of a token's keys and values or of its queries, in elements.
pub const MAX_LATENT_DIM: usize = 1 << 12;
/// Largest vocabulary, in ids.
pub const MAX_VOCAB_SIZE: usize = 1 << 22;
/// Longest context, in positions.
pub const MAX_POSITIONS: usize = 1 << 24;
/// Most end-of-sequence ids.
pub const MAX_EOS_IDS: usize = 64;
/// Largest `rms_norm_eps`.
pub const MAX_RMS_NORM_EPS: f64 = 1.0;
/// Largest RoPE base.
pub const MAX_ROPE_THETA: f64 = 1e12;
/// Largest RoPE scaling factor.
pub const MAX_ROPE_FACTOR: f64 = 1e6;
/// Largest default temperature.
pub const MAX_TEMPERATURE: f64 = 100.0;
/// Largest default repetition penalty.
pub const MAX_REPETITION_PENALTY: f64 = 100.0;

/// Largest of the small configuration files of sentence-transformers.
pub const MAX_MODULE_CONFIG_BYTES: u64 = 1 << 20;
/// Most modules in `modules.json`.
pub const MAX_MODULES: usize = 16;
/// Most named prompts of an embedding model.
pub const MAX_PROMPTS: usize = 256;
/// Longest named prompt of an embedding model.
pub const MAX_PROMPT_BYTES: usize = 1 << 14;
/// Most token types of an encoder.
pub const MAX_TOKEN_TYPES: usize = 1_024;
/// Largest `layer_norm_eps`.
pub const MAX_LAYER_NORM_EPS: f64 = 1.0;

/// Maximum characters of an untrusted name or value that an error message shows.
pub const MAX_SHOWN_CHARS: usize = 160;
