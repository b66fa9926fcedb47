//! Detects files whose content is not what the name says: Git LFS pointers, web pages, archives and empty files. Knows
//! the first bytes of each kind.

use crate::error::{CheckpointError, shown};

/// Number of leading bytes that are examined.
const LOOKED_AT_BYTES: usize = 256;
/// Start of a Git LFS pointer. Source: the Git LFS specification, *The Pointer*.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Refuses the file `name` if its content is of a kind that no model file has.
///
/// # Errors
/// [`CheckpointError::File`], which says what the file contains and how to get the right one.
pub(crate) fn check(name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
    let Some(problem) = mistaken(bytes) else { return Ok(()) };
    Err(CheckpointError::File { file: shown(name), problem: problem.to_owned() })
}

fn mistaken(bytes: &[u8]) -> Option<&'static str> {
    let first = bytes.get(..LOOKED_AT_BYTES).unwrap_or(bytes);
    let first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
    let text = first.trim_ascii_start();
    let begins = |tag: &[u8]| text.get(..tag.len()).is_some_and(|found| found.eq_ignore_ascii_case(tag));
    if bytes.is_empty() {
        return Some("is empty; download it again");
    }
    if text.starts_with(LFS_POINTER) {
        return Some(
            "is a Git LFS pointer, and the file itself was not fetched; run `git lfs pull` in the directory, or download the \
             model with `hf download`",
        );
    }
    if begins(b"<!doctype html") || begins(b"<html") {
        return Some(
            "is a web page (HTML), as a login or an error page is; download the file itself, from an address with `/resolve/` \
             on Hugging Face, signed in if the model asks for it",
        );
    }
    if first.starts_with(b"PK\x03\x04") {
        return Some(
            "is a zip archive, as PyTorch writes its weights; unpack it, or get the model in safetensors or GGUF",
        );
    }
    if first.starts_with(&[0x1f, 0x8b]) {
        return Some("is compressed with gzip; unpack it with `gunzip`");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_a_model_is_named() {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
        for (bytes, expected) in [
            (&pointer[..], "`git lfs pull`"),
            (b"", "is empty"),
            (b"\n <!DOCTYPE html>\n<html>", "web page"),
            (b"\xef\xbb\xbf<HTML lang=\"en\">", "web page"),
            (b"PK\x03\x04\x00\x00", "zip archive"),
            (b"\x1f\x8b\x08\x00", "gzip"),
        ] {
            for name in
                ["model.safetensors", "model.gguf", "tokenizer.json", "config.json", "chat_template.jinja"]
            {
                let error = check(name, bytes).expect_err("another kind of file").to_string();
                assert!(error.starts_with(name) && error.contains(expected), "{error}");
            }
        }
        for right in [
            &b"{}"[..],
            b"GGUF\x03\x00",
            b"\x08\x00\x00\x00\x00\x00\x00\x00{}",
            b"{{ bos_token }}",
            b"<|user|>",
        ] {
            assert!(check("right", right).is_ok(), "{right:?}");
        }
    }
}
