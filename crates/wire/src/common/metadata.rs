//! Reads `metadata`: labels that a client gives to what it stores. Knows no store.

use headrace_domain::{CallLabels, Code};

use crate::fault::{FieldFault, Read};
use crate::json::JsonReader;
use crate::limits::WireLimits;

/// OpenAI's limit for a key of `metadata`, in characters.
const MAX_METADATA_KEY: usize = 64;
/// OpenAI's limit for a value of `metadata`, in characters.
const MAX_METADATA_VALUE: usize = 512;

/// Reads up to 16 pairs of short strings, and returns them as they were sent.
pub(crate) fn metadata(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<String> {
    let text = r.raw()?;
    let mut pairs = 0;
    r.inner(text).object(|r, key| {
        pairs += 1;
        if pairs > limits.max_metadata_pairs {
            let message = format!("it may have at most {} pairs", limits.max_metadata_pairs);
            return Err(FieldFault::new(Code::ObjectAboveMaxProperties, message).of_parent());
        }
        if key.chars().count() > MAX_METADATA_KEY {
            let message = format!("a key may have at most {MAX_METADATA_KEY} characters");
            return Err(FieldFault::new(Code::StringAboveMaxLength, message).of_parent());
        }
        if r.string()?.chars().count() > MAX_METADATA_VALUE {
            let message = format!("it may have at most {MAX_METADATA_VALUE} characters");
            return Err(FieldFault::new(Code::StringAboveMaxLength, message));
        }
        Ok(())
    })?;
    Ok(text.to_owned())
}

/// Reads the labels of a call: up to 16 pairs of strings. Long ones are cut.
pub(crate) fn labels(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Option<Box<CallLabels>>> {
    let mut pairs = Vec::new();
    r.object(|r, key| {
        if pairs.len() >= limits.max_metadata_pairs {
            let message = format!("it may have at most {} pairs", limits.max_metadata_pairs);
            return Err(FieldFault::new(Code::ObjectAboveMaxProperties, message).of_parent());
        }
        pairs.push((key.to_string(), r.string()?.into_owned()));
        Ok(())
    })?;
    let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    Ok(CallLabels::of(pairs).map(Box::new))
}
