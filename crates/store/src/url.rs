//! The place of a program's stores as a URL. Knows the kinds of storage that exist, not how they are opened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The kinds of storage, as errors name them.
const KINDS: &str = "sqlite:DIRECTORY";

/// The place of a program's stores, such as `sqlite:/var/lib/headrace`: a folder with one SQLite file per store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageUrl {
    folder: PathBuf,
}

/// A text that is no place of stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageUrlError {
    /// The text does not begin with a scheme.
    NoScheme {
        /// The text.
        url: String,
    },
    /// The scheme names no kind of storage that exists.
    UnknownScheme {
        /// The scheme, without its colon.
        scheme: String,
    },
    /// The URL names a host, or no folder.
    NoFolder {
        /// The URL.
        url: String,
    },
}

impl fmt::Display for StorageUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScheme { url } => write!(f, "`{url}` names no kind of storage; write {KINDS}"),
            Self::UnknownScheme { scheme } => {
                write!(f, "there is no storage of the kind `{scheme}`; these exist: {KINDS}")
            }
            Self::NoFolder { url } => write!(f, "`{url}` names no directory of this machine; write {KINDS}"),
        }
    }
}

impl std::error::Error for StorageUrlError {}

impl StorageUrl {
    /// Returns the URL of the stores in a folder.
    pub fn of_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl FromStr for StorageUrl {
    type Err = StorageUrlError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let is_scheme = |text: &str| {
            text.starts_with(|first: char| first.is_ascii_alphabetic())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        };
        let parts = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme));
        let (scheme, rest) = parts.ok_or_else(|| StorageUrlError::NoScheme { url: url.to_owned() })?;
        if !scheme.eq_ignore_ascii_case("sqlite") {
            return Err(StorageUrlError::UnknownScheme { scheme: scheme.to_owned() });
        }
        // `sqlite:///var/lib` has an empty host.
        let folder = match rest.strip_prefix("//") {
            Some(after) if after.starts_with('/') => after,
            Some(_) => "",
            None => rest,
        };
        if folder.is_empty() {
            return Err(StorageUrlError::NoFolder { url: url.to_owned() });
        }
        Ok(Self::of_folder(Path::new(folder)))
    }
}

impl fmt::Display for StorageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.folder.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_kind_of_storage_and_a_folder() {
        for (url, expected) in [
            ("sqlite:/var/lib/headrace", Ok("sqlite:/var/lib/headrace")),
            ("sqlite:///var/lib/headrace", Ok("sqlite:/var/lib/headrace")),
            ("SQLite:data", Ok("sqlite:data")),
            (
                "postgres://db/headrace",
                Err("no storage of the kind `postgres`; these exist: sqlite:DIRECTORY"),
            ),
            ("/var/lib/headrace", Err("names no kind of storage; write sqlite:DIRECTORY")),
            ("/a:b", Err("names no kind of storage")),
            ("", Err("names no kind of storage")),
            ("sqlite:", Err("names no directory")),
            ("sqlite://host/data", Err("names no directory of this machine")),
        ] {
            match (url.parse::<StorageUrl>(), expected) {
                (Ok(found), Ok(shown)) => assert_eq!(found.to_string(), shown),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{url}: {error}"),
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }
}
