//! The bytes of files, as plain files in a folder. A segment holds bytes that were written in sequence, and deleting it
//! frees its disk space at once. Knows no SQL.

use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum bytes of a segment's name.
const MOST_NAME_BYTES: usize = 128;

/// The folder of segments. See the top of the file.
#[derive(Debug)]
pub(super) struct SegmentFolder {
    dir: PathBuf,
}

impl SegmentFolder {
    /// The segments of the store at `store`, in a folder beside it.
    pub(super) fn beside(store: &Path) -> Self {
        Self { dir: store.with_extension("segments") }
    }

    /// Writes bytes at a position of a segment. A write at position 0 truncates the segment first.
    pub(super) fn write(&self, name: &str, at: u64, bytes: &[u8]) -> Result<()> {
        let path = self.path(name)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(at == 0).mode(0o600);
        let file = match options.open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
                options.open(&path)?
            }
            opened => opened?,
        };
        file.write_all_at(bytes, at)
    }

    /// Truncates a segment to `bytes` and waits until it is on the disk.
    pub(super) fn finish(&self, name: &str, bytes: u64) -> Result<()> {
        let file = OpenOptions::new().write(true).open(self.path(name)?)?;
        if file.metadata()?.len() != bytes {
            file.set_len(bytes)?;
        }
        file.sync_all()?;
        // The file's name is on the disk only after the folder is synced.
        File::open(&self.dir)?.sync_all()
    }

    /// Reads at most `most` bytes of a segment, starting at position `at`. Returns none after its end, or if it does
    /// not exist.
    pub(super) fn read(&self, name: &str, at: u64, most: usize) -> Result<Vec<u8>> {
        let mut file = match File::open(self.path(name)?) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        file.take(most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Removes a segment if it exists.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match std::fs::remove_file(self.path(name)?) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes all segments that are not in `known`.
    pub(super) fn keep(&self, known: &HashSet<String>) -> Result<()> {
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let is_known = entry.file_name().to_str().is_some_and(|name| known.contains(name));
            if !is_known && entry.file_type()?.is_file() {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The path of a segment. Only ids of this server are valid names, so that no other text becomes part of a path.
    fn path(&self, name: &str) -> Result<PathBuf> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > MOST_NAME_BYTES || !name.bytes().all(plain) {
            return Err(Error::new(ErrorKind::InvalidInput, "the id of a file is no name of a segment"));
        }
        Ok(self.dir.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_read_from_any_place_and_its_name_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let segments = SegmentFolder::beside(&dir.path().join("files.sqlite"));
        assert!(segments.read("a", 0, 10).unwrap().is_empty());
        segments.write("a", 0, b"abc").unwrap();
        segments.write("a", 3, b"defgh").unwrap();
        // A write that failed midway may leave more bytes than were counted.
        segments.finish("a", 6).unwrap();
        assert_eq!(segments.read("a", 0, 4).unwrap(), b"abcd");
        assert_eq!(segments.read("a", 4, 4).unwrap(), b"ef");
        assert!(segments.read("a", 6, 4).unwrap().is_empty() && segments.read("a", 9, 4).unwrap().is_empty());
        for name in ["", ".", "..", "../a", "a/b", "a.b", "\0", &"a".repeat(129)] {
            assert!(segments.write(name, 0, b"x").is_err() && segments.remove(name).is_err(), "{name:?}");
        }
        segments.write("b", 0, b"x").unwrap();
        segments.keep(&HashSet::from(["a".to_owned()])).unwrap();
        assert!(segments.read("b", 0, 1).unwrap().is_empty());
        segments.remove("a").unwrap();
        segments.remove("a").unwrap();
        assert_eq!(std::fs::read_dir(&segments.dir).unwrap().count(), 0);
    }
}
