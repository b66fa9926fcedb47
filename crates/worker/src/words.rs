//! Tokenizer assets of a model on the wire: tokenizer, template and sizes as files, identified by their digest. No
//! weights. Must not know the content of the files.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::limits::{MAX_WORDS_BYTES, MAX_WORDS_FILES};

/// The only allowed file names. A gateway never writes a file to its disk under a name that a worker chose.
const NAMES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// The tokenizer assets of one model on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedAssets {
    bytes: Bytes,
    digest: String,
}

/// Why tokenizer assets are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WordsFault {
    /// The digest is not the requested one.
    Digest,
    /// The files exceed the maximum size.
    TooLarge,
    /// The bytes are not a list of files.
    Malformed,
    /// A file has a name that is not allowed.
    Name,
}

#[derive(Serialize, Deserialize)]
struct PackedFile {
    name: String,
    contents: Vec<u8>,
}

impl fmt::Display for WordsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digest => f.write_str("the files are not those of the digest that they were asked by"),
            Self::TooLarge => write!(f, "the files have more than {} MiB", MAX_WORDS_BYTES >> 20),
            Self::Malformed => f.write_str("what came is no list of files"),
            Self::Name => write!(f, "a file is none of {}", NAMES.join(", ")),
        }
    }
}

impl PackedAssets {
    /// Packs files, given as (name, contents).
    ///
    /// # Errors
    /// A file that the other side would refuse.
    pub fn new(files: Vec<(String, Vec<u8>)>) -> Result<Self, WordsFault> {
        let files: Vec<PackedFile> =
            files.into_iter().map(|(name, contents)| PackedFile { name, contents }).collect();
        check(&files)?;
        let bytes = postcard::to_stdvec(&files).map_err(|_| WordsFault::Malformed)?;
        Self::of(Bytes::from(bytes))
    }

    /// Checks received bytes against the requested digest.
    ///
    /// # Errors
    /// Why the bytes are refused.
    pub fn taken(bytes: Bytes, digest: &str) -> Result<Self, WordsFault> {
        let words = Self::of(bytes)?;
        if words.digest != digest {
            return Err(WordsFault::Digest);
        }
        words.files()?;
        Ok(words)
    }

    fn of(bytes: Bytes) -> Result<Self, WordsFault> {
        if bytes.len() > MAX_WORDS_BYTES {
            return Err(WordsFault::TooLarge);
        }
        let digest = blake3::hash(&bytes).to_hex().to_string();
        Ok(Self { bytes, digest })
    }

    /// Returns the bytes for the wire.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the hexadecimal BLAKE3 digest of the bytes.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the files as (name, contents).
    ///
    /// # Errors
    /// The bytes are not a list of files, or a name is not allowed.
    pub fn files(&self) -> Result<Vec<(String, Vec<u8>)>, WordsFault> {
        let files = postcard::take_from_bytes(&self.bytes);
        let (files, rest): (Vec<PackedFile>, &[u8]) = files.map_err(|_| WordsFault::Malformed)?;
        if !rest.is_empty() {
            return Err(WordsFault::Malformed);
        }
        check(&files)?;
        Ok(files.into_iter().map(|file| (file.name, file.contents)).collect())
    }
}

fn check(files: &[PackedFile]) -> Result<(), WordsFault> {
    if files.is_empty() || files.len() > MAX_WORDS_FILES {
        return Err(WordsFault::Malformed);
    }
    for (at, file) in files.iter().enumerate() {
        let twice = files.iter().take(at).any(|other| other.name == file.name);
        if twice || !NAMES.contains(&file.name.as_str()) {
            return Err(WordsFault::Name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> (String, Vec<u8>) {
        (name.to_owned(), name.as_bytes().to_vec())
    }

    #[test]
    fn words_come_as_they_were_and_only_by_their_digest() {
        let files = vec![file("config.json"), file("tokenizer.json")];
        let words = PackedAssets::new(files.clone()).unwrap();
        let taken = PackedAssets::taken(words.bytes().clone(), words.digest()).unwrap();
        assert_eq!(taken.files(), Ok(files));
        let mut other = words.bytes().to_vec();
        *other.last_mut().unwrap() ^= 1;
        assert_eq!(PackedAssets::taken(other.into(), words.digest()), Err(WordsFault::Digest));
        let long = [words.bytes().as_ref(), b"x"].concat();
        let digest = blake3::hash(&long).to_hex().to_string();
        assert_eq!(PackedAssets::taken(long.into(), &digest), Err(WordsFault::Malformed));
    }

    #[test]
    fn files_have_no_names_but_known_ones_and_each_once() {
        for names in
            [&["../config.json"][..], &["/etc/passwd"], &["tokenizer.json", "tokenizer.json"], &["x"]]
        {
            let files = names.iter().copied().map(file).collect();
            assert_eq!(PackedAssets::new(files), Err(WordsFault::Name), "{names:?}");
        }
        assert_eq!(PackedAssets::new(Vec::new()), Err(WordsFault::Malformed));
    }
}
