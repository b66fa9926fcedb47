//! `quantization_config` → [`WeightScheme`]: how a Hugging Face directory stores its quantized matrices. Methods that
//! are not read are refused by name, with those that are. Must not know which matrices a model has, or their tensors.
//!
//! Lists of matrices that are not quantized (`ignore`, `modules_to_not_convert` and others) need no reading: such a
//! matrix is stored as a plain tensor. How activations are to be quantized has no bearing on the weights.

use headrace_quant::WordOrder;
use serde_json::Value;

use crate::error::{CheckpointError, shown};
use crate::fields::Fields;
use crate::limits::MAX_SCALE_TILE;

/// The members of `config.json` that describe quantized weights. The second is an older spelling.
const MEMBERS: [&str; 2] = ["quantization_config", "compression_config"];
/// The methods that are read, as messages show them, with the way out.
const READ: &str = "\"fp8\" (e4m3), \"awq\" (4 bits, gemm), \"gptq\" (4 bits), \"mxfp4\" and \"compressed-tensors\" \
                    (\"float-quantized\", and \"pack-quantized\" of 4 bits) are read; take a copy of the model in one \
                    of these, one that is not quantized, or a GGUF file";
/// The ways of storing 4-bit weights that are read, as messages show them.
const FOUR_BITS: &str =
    "4 bits are read; take such a copy of the model, one that is not quantized, or a GGUF file";

/// How quantized matrices are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WeightScheme {
    /// Matrices of e4m3 with their scales.
    Fp8(Fp8Scheme),
    /// Matrices of 4-bit codes with scales and zeros, as AWQ and GPTQ store them.
    Int4(Int4Scheme),
    /// Matrices of either kind, as compressed-tensors stores them.
    Compressed {
        /// 8-bit floats.
        float: Fp8Scheme,
        /// 4-bit codes.
        packed: Vec<PackedGroup>,
    },
    /// Stacked matrices of MXFP4.
    Mxfp4,
}

/// 4-bit matrices of AWQ and GPTQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Int4Scheme {
    /// The order of the codes in words.
    pub(crate) order: WordOrder,
    /// Columns that share a scale. `None` for all columns of a row.
    pub(crate) group: Option<usize>,
    /// Whether a stored zero is one less than the zero.
    pub(crate) zeros_less_one: bool,
}

/// A group of 4-bit matrices of compressed-tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PackedGroup {
    /// Columns that share a scale. `None` for all columns of a row.
    pub(crate) group: Option<usize>,
    /// Whether every zero is 8. If not, zeros are stored.
    pub(crate) is_symmetric: bool,
    /// Whether the group of each column is stored.
    pub(crate) is_indexed: bool,
}

/// How matrices of e4m3 are scaled. A scale for a whole matrix and one for each row need no entry: the shape of the
/// scales shows them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fp8Scheme {
    /// Rows and columns of the tiles that may have a scale of their own.
    pub(crate) tiles: Vec<[usize; 2]>,
}

impl WeightScheme {
    /// Reads the scheme of a configuration. `None` if no matrix is quantized.
    ///
    /// # Errors
    /// A [`CheckpointError`] that names the field: it is malformed or not supported.
    pub(crate) fn read(config: &Fields<'_>) -> Result<Option<Self>, CheckpointError> {
        let Some(fields) = described(config)? else { return Ok(None) };
        let Some(method) = fields.get("quant_method") else { return Err(fields.missing("quant_method")) };
        match method.as_str() {
            Some("fp8") => fp8(&fields).map(Some),
            Some("awq") => awq(&fields).map(Some),
            Some("gptq") => gptq(&fields).map(Some),
            Some("compressed-tensors") => compressed_tensors(&fields).map(Some),
            Some("mxfp4") => Ok(Some(Self::Mxfp4)),
            _ => Err(fields.unsupported("quant_method", method, READ)),
        }
    }
}

/// Refuses quantized weights, by the name of their method.
pub(crate) fn refuse(config: &Fields<'_>) -> Result<(), CheckpointError> {
    const PLAIN: &str = "encoders are read with weights of F32, F16 or BF16";
    for member in MEMBERS {
        if let (Some(value), Some(fields)) = (config.get(member), config.object(member)?) {
            return Err(match fields.get("quant_method") {
                Some(method) => fields.unsupported("quant_method", method, PLAIN),
                None => config.unsupported(member, value, PLAIN),
            });
        }
    }
    Ok(())
}

/// Returns the object that describes quantized weights. Multimodal models may have it in `text_config`.
fn described<'a>(config: &Fields<'a>) -> Result<Option<Fields<'a>>, CheckpointError> {
    for member in MEMBERS {
        if let Some(fields) = config.object(member)? {
            return Ok(Some(fields));
        }
    }
    match config.object("text_config")? {
        Some(text) => text.object(MEMBERS[0]),
        None => Ok(None),
    }
}

/// Reads the method `fp8` of transformers and vLLM.
fn fp8(fields: &Fields<'_>) -> Result<WeightScheme, CheckpointError> {
    for field in ["fmt", "weight_format"] {
        if let Some(format) = fields.get(field).filter(|format| format.as_str() != Some("e4m3")) {
            return Err(fields.unsupported(field, format, "\"e4m3\" is read"));
        }
    }
    let tiles =
        fields.get("weight_block_size").map(|size| tile(fields, "weight_block_size", size)).transpose()?;
    Ok(WeightScheme::Fp8(Fp8Scheme { tiles: tiles.into_iter().collect() }))
}

/// Reads the method `awq` of AutoAWQ and transformers.
fn awq(fields: &Fields<'_>) -> Result<WeightScheme, CheckpointError> {
    four_bits(fields, &["bits", "w_bit"])?;
    for field in ["version", "checkpoint_format", "format"] {
        if let Some(version) = fields.get(field)
            && !version.as_str().is_some_and(|version| version.eq_ignore_ascii_case("gemm"))
        {
            return Err(fields.unsupported(field, version, "\"gemm\" is read"));
        }
    }
    if fields.flag("zero_point")? == Some(false) {
        return Err(fields.unsupported("zero_point", &Value::Bool(false), "weights with zeros are read"));
    }
    let group = group_size(fields, &["group_size", "q_group_size"])?;
    Ok(WeightScheme::Int4(Int4Scheme { order: WordOrder::Awq, group, zeros_less_one: false }))
}

/// Reads the method `gptq` of AutoGPTQ, GPTQModel and transformers.
fn gptq(fields: &Fields<'_>) -> Result<WeightScheme, CheckpointError> {
    four_bits(fields, &["bits"])?;
    let mut zeros_less_one = true;
    for field in ["checkpoint_format", "format"] {
        match fields.text(field)? {
            None | Some("gptq") => {}
            Some("gptq_v2") => zeros_less_one = false,
            Some(other) => {
                let found = Value::String(other.to_owned());
                return Err(fields.unsupported(field, &found, "\"gptq\" and \"gptq_v2\" are read"));
            }
        }
    }
    if let Some(words) = fields.get("pack_dtype").filter(|words| words.as_str() != Some("int32")) {
        return Err(fields.unsupported("pack_dtype", words, "\"int32\" is read"));
    }
    // A rule that begins with `-:` names matrices that are not quantized. Others may change bits or groups.
    if let Some(rules) = fields.get("dynamic").and_then(Value::as_object)
        && let Some((rule, value)) = rules.iter().find(|(rule, _)| !rule.starts_with("-:"))
    {
        let at = fields.path("dynamic");
        return Err(fields.within(&at, rules).unsupported(
            &shown(rule),
            value,
            "one rule for all matrices is read",
        ));
    }
    let group = group_size(fields, &["group_size"])?;
    Ok(WeightScheme::Int4(Int4Scheme { order: WordOrder::Gptq, group, zeros_less_one }))
}

/// Refuses other numbers of bits than four. The number is in one of `names`.
fn four_bits(fields: &Fields<'_>, names: &[&'static str]) -> Result<(), CheckpointError> {
    match names.iter().find_map(|name| Some((*name, fields.get(name)?))) {
        Some((_, bits)) if bits.as_u64() == Some(4) => Ok(()),
        Some((name, bits)) => Err(fields.unsupported(name, bits, FOUR_BITS)),
        None => Err(fields.missing(names.first().copied().unwrap_or_default())),
    }
}

/// Reads the columns that share a scale, from one of `names`. −1 means all.
fn group_size(fields: &Fields<'_>, names: &[&'static str]) -> Result<Option<usize>, CheckpointError> {
    match names.iter().find_map(|name| Some((*name, fields.get(name)?))) {
        Some((_, size)) if size.as_i64() == Some(-1) => Ok(None),
        Some((name, _)) => fields.required_count(name, 1..=MAX_SCALE_TILE).map(Some),
        None => Err(fields.missing(names.first().copied().unwrap_or_default())),
    }
}

/// Reads the rows and columns of a tile.
fn tile(fields: &Fields<'_>, field: &str, value: &Value) -> Result<[usize; 2], CheckpointError> {
    let size = |item: &Value| {
        let size = item.as_u64().and_then(|size| usize::try_from(size).ok());
        size.filter(|size| (1..=MAX_SCALE_TILE).contains(size))
    };
    let sizes = match value.as_array().map(Vec::as_slice) {
        Some([rows, columns]) => size(rows).zip(size(columns)),
        _ => None,
    };
    let expected = || format!("two whole numbers from 1 to {MAX_SCALE_TILE}");
    sizes.map(|(rows, columns)| [rows, columns]).ok_or_else(|| fields.wrong(field, value, &expected()))
}

/// Reads the method `compressed-tensors`.
fn compressed_tensors(fields: &Fields<'_>) -> Result<WeightScheme, CheckpointError> {
    let format = fields.text("format")?;
    refuse_transforms(fields)?;
    let groups = match fields.get("config_groups") {
        Some(Value::Object(groups)) => groups,
        Some(other) => return Err(fields.wrong("config_groups", other, "an object")),
        None => return Err(fields.missing("config_groups")),
    };
    let (mut float, mut packed) = (Fp8Scheme::default(), Vec::new());
    for (name, value) in groups {
        let at = format!("{}.{}", fields.path("config_groups"), shown(name));
        let Value::Object(members) = value else {
            return Err(fields.wrong(&format!("config_groups.{}", shown(name)), value, "an object"));
        };
        let group = fields.within(&at, members);
        let own_format = group.text("format")?.or(format);
        let at = group.path("weights");
        let members = match group.get("weights") {
            Some(Value::Object(members)) => members,
            // Nothing but activations is quantized.
            None => continue,
            Some(other) => return Err(group.wrong("weights", other, "an object or null")),
        };
        let weights = fields.within(&at, members);
        match (weights.text("type")?.unwrap_or("int"), own_format) {
            ("float", Some("float-quantized" | "naive-quantized")) => {
                float.tiles.extend(float_tile(&weights)?)
            }
            ("int", Some("pack-quantized")) => packed.push(packed_group(&weights)?),
            (kind, stored) => {
                let stored =
                    stored.map_or_else(|| format!("no format, {kind}"), |stored| format!("{stored}, {kind}"));
                return Err(group.unsupported("format", &Value::String(stored), READ));
            }
        }
    }
    Ok(WeightScheme::Compressed { float, packed })
}

/// Reads a group of 4-bit weights.
fn packed_group(weights: &Fields<'_>) -> Result<PackedGroup, CheckpointError> {
    four_bits(weights, &["num_bits"])?;
    let group = match weights.text("strategy")? {
        Some("channel") => None,
        Some("group") => group_size(weights, &["group_size"])?,
        // Old versions leave the strategy to the size of a group.
        None => match weights.get("group_size") {
            Some(_) => group_size(weights, &["group_size"])?,
            None => None,
        },
        Some(other) => {
            let found = Value::String(other.to_owned());
            return Err(weights.unsupported("strategy", &found, "\"channel\" and \"group\" are read"));
        }
    };
    // "weight" orders columns while they are quantized, and stores them in their places.
    let is_indexed = match weights.get("actorder") {
        None => false,
        Some(Value::Bool(is_indexed)) => *is_indexed,
        Some(order) => match order.as_str() {
            Some("group" | "dynamic") => true,
            Some("weight" | "static") => false,
            _ => return Err(weights.unsupported("actorder", order, "\"group\" and \"weight\" are read")),
        },
    };
    Ok(PackedGroup { group, is_symmetric: weights.flag("symmetric")?.unwrap_or(true), is_indexed })
}

/// Refuses what changes a matrix beyond its quantization.
fn refuse_transforms(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    if let Some(sparsity) = fields.object("sparsity_config")?
        && let Some(format) = sparsity.get("format").filter(|format| format.as_str() != Some("dense"))
    {
        return Err(sparsity.unsupported("format", format, "\"dense\" is read"));
    }
    if let Some(value) = fields.get("transform_config")
        && let Some(groups) = value.get("config_groups").and_then(Value::as_object)
        && !groups.is_empty()
    {
        return Err(fields.unsupported("transform_config", value, "weights without transforms are read"));
    }
    Ok(())
}

/// Reads the tile of an FP8 group. `None` if the shape of the scales shows it.
fn float_tile(weights: &Fields<'_>) -> Result<Option<[usize; 2]>, CheckpointError> {
    if let Some(bits) = weights.get("num_bits").filter(|bits| bits.as_u64() != Some(8)) {
        return Err(weights.unsupported("num_bits", bits, "FP8 weights of 8 bits are read"));
    }
    match weights.text("strategy")? {
        Some("tensor" | "channel") | None => Ok(None),
        Some("block") => match weights.get("block_structure") {
            Some(value) => tile(weights, "block_structure", value).map(Some),
            None => Err(weights.missing("block_structure")),
        },
        Some("group") => Ok(Some([1, weights.required_count("group_size", 1..=MAX_SCALE_TILE)?])),
        Some(other) => {
            let found = Value::String(other.to_owned());
            Err(weights.unsupported(
                "strategy",
                &found,
                "\"tensor\", \"channel\", \"group\" and \"block\" are read",
            ))
        }
    }
}
