//! Parses the option `--quantize`. Must not know what is quantized.

use headrace_quant::BlockType;

use headrace_config::arithmetic::QUANTIZED;

/// Returns the block type for `--quantize`. `None` for `none`, or without the option.
pub(super) fn quantized(name: Option<&str>) -> Result<Option<BlockType>, String> {
    let Some(name) = name.filter(|name| !name.eq_ignore_ascii_case("none")) else { return Ok(None) };
    let kind = BlockType::from_name(name).filter(|kind| kind.is_quantized_here());
    let unknown = || format!("`--quantize` cannot be `{name}`; there are {}", QUANTIZED.join(", "));
    kind.map(Some).ok_or_else(unknown)
}
