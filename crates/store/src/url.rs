//! The place of a program's stores as a URL. Knows the kinds of storage that exist, not how they are opened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headrace_postgres::{PostgresUrl, PostgresUrlError};

/// The kinds of storage, as errors name them.
const KINDS: &str = "sqlite:DIRECTORY, postgres://USER:PASSWORD@HOST/DATABASE";

/// The place of a program's stores: a folder with one SQLite file per store, such as `sqlite:/var/lib/headrace`, or a
/// database that several programs share, such as `postgres://db.example.com/headrace`. In the second case the folder
/// has what each program keeps for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageUrl {
    folder: PathBuf,
    database: Option<Arc<PostgresUrl>>,
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
    /// The URL names a host, which SQLite does not have.
    NoFolder {
        /// The URL.
        url: String,
    },
    /// The URL of a database cannot be read.
    Database(PostgresUrlError),
}

impl fmt::Display for StorageUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScheme { url } => write!(f, "`{url}` names no kind of storage; these exist: {KINDS}"),
            Self::UnknownScheme { scheme } => {
                write!(f, "there is no storage of the kind `{scheme}`; these exist: {KINDS}")
            }
            Self::NoFolder { url } => {
                write!(f, "`{url}` names no directory of this machine; write sqlite:DIRECTORY")
            }
            Self::Database(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StorageUrlError {}

impl StorageUrl {
    /// Returns the URL of the stores in a folder.
    pub fn of_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), database: None }
    }

    /// Parses a URL. Stores without a place of their own are in `folder`: those of `sqlite:` without a directory, and
    /// what a program with a database keeps for itself.
    ///
    /// # Errors
    /// Returns an error if the text names no kind of storage, or not all of its place.
    pub fn parse_in(url: &str, folder: &Path) -> Result<Self, StorageUrlError> {
        let is_scheme = |text: &str| {
            text.starts_with(|first: char| first.is_ascii_alphabetic())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        };
        let parts = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme));
        let (scheme, rest) = parts.ok_or_else(|| StorageUrlError::NoScheme { url: shown(url) })?;
        match scheme.to_ascii_lowercase().as_str() {
            "sqlite" => {
                // `sqlite:///var/lib` has an empty host.
                let path = match rest.strip_prefix("//") {
                    Some(after) if after.starts_with('/') => after,
                    Some(_) => return Err(StorageUrlError::NoFolder { url: url.to_owned() }),
                    None => rest,
                };
                let folder = if path.is_empty() { folder } else { Path::new(path) };
                Ok(Self::of_folder(folder))
            }
            "postgres" | "postgresql" => {
                let database = url.parse().map_err(StorageUrlError::Database)?;
                Ok(Self { folder: folder.to_owned(), database: Some(Arc::new(database)) })
            }
            _ => Err(StorageUrlError::UnknownScheme { scheme: scheme.to_owned() }),
        }
    }

    /// Returns whether several programs share the stores.
    pub const fn is_shared(&self) -> bool {
        self.database.is_some()
    }

    /// Returns the URL as it can be parsed again, with its password.
    pub fn expose(&self) -> String {
        match &self.database {
            Some(database) => database.expose().to_owned(),
            None => format!("sqlite:{}", self.folder.display()),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) const fn database(&self) -> Option<&Arc<PostgresUrl>> {
        self.database.as_ref()
    }
}

/// Returns the part of a text that may be shown: a password may come before an `@`.
fn shown(text: &str) -> String {
    text.rsplit_once('@').map_or_else(|| text.to_owned(), |(_, place)| format!("…@{place}"))
}

impl fmt::Display for StorageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.database {
            Some(database) => database.fmt(f),
            None => f.write_str(&self.expose()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_kind_of_storage_and_its_place() {
        let no_mysql = "no storage of the kind `mysql`; these exist: sqlite:DIRECTORY, postgres://";
        for (url, expected) in [
            ("sqlite:/var/lib/headrace", Ok("sqlite:/var/lib/headrace")),
            ("sqlite:///var/lib/headrace", Ok("sqlite:/var/lib/headrace")),
            ("SQLite:data", Ok("sqlite:data")),
            ("sqlite:", Ok("sqlite:/here")),
            ("postgres://me:secret@db/headrace", Ok("postgres://db:5432/headrace")),
            ("postgres://me:secret@db", Err("names no database")),
            ("mysql://db/headrace", Err(no_mysql)),
            ("/var/lib/headrace", Err("names no kind of storage; these exist: sqlite:DIRECTORY")),
            ("/a:b", Err("names no kind of storage")),
            ("", Err("names no kind of storage")),
            ("sqlite://host/data", Err("names no directory of this machine")),
        ] {
            match (StorageUrl::parse_in(url, Path::new("/here")), expected) {
                (Ok(found), Ok(shown)) => {
                    assert_eq!(found.to_string(), shown);
                    let again = StorageUrl::parse_in(&found.expose(), Path::new("/elsewhere")).unwrap();
                    assert_eq!(again.to_string(), shown);
                }
                (Err(error), Err(text)) => {
                    let shown = error.to_string();
                    assert!(shown.contains(text) && !shown.contains("secret"), "{url}: {shown}");
                }
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }
}
