//! The source of a checkpoint's files: a directory that no path may leave, or memory. Bounds every read and contains
//! the crate's only `unsafe` code, which maps weight files. Must not know what the files contain.

use std::borrow::Cow;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Deref;
use std::path::{Component, Path, PathBuf};

use crate::content;
use crate::error::{CheckpointError, shown};
use crate::limits::{MAX_DIRECTORY_ENTRIES, MAX_FILE_NAME_BYTES};

/// The files of one model directory, by plain name.
pub(crate) enum Source {
    /// A directory on disk.
    Directory {
        /// The canonical path.
        root: PathBuf,
        /// The only other directory that its symbolic links may point into. See [`hub_blobs`].
        blobs: Option<PathBuf>,
    },
    /// Files in memory. Each can be taken once.
    Memory(Vec<(String, Cow<'static, [u8]>)>),
}

/// The contents of a weight file.
pub(crate) enum Contents {
    /// Mapped, read-only.
    Mapped(memmap2::Mmap),
    /// In memory.
    Memory(Cow<'static, [u8]>),
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Memory(bytes) => bytes,
        }
    }
}

/// Returns whether a file is a GGUF file, by its extension or by its first bytes. Programs that store files by digest
/// give them no extension.
pub fn is_gguf(path: &Path) -> bool {
    let named = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"));
    let begins = || {
        let mut first = [0; 4];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut first));
        read.is_ok() && first == *b"GGUF"
    };
    // Only regular files are opened, because opening a pipe would block.
    named || path.is_file() && begins()
}

impl Source {
    /// Opens the directory `path`, or the parent directory of the GGUF file `path`. For a file, also returns its name.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] or [`CheckpointError::File`] if `path` is neither, or cannot be read.
    pub(crate) fn at(path: &Path) -> Result<(Self, Option<String>), CheckpointError> {
        let name = || shown(&path.to_string_lossy());
        let io = |source| CheckpointError::Io { file: name(), source };
        let real = path.canonicalize().map_err(io)?;
        if real.is_dir() {
            return Ok((Self::directory(real), None));
        }
        if !real.is_file() || !(is_gguf(path) || is_gguf(&real)) {
            let problem =
                "is not a directory; give the directory that holds config.json, or a GGUF file".to_owned();
            return Err(CheckpointError::File { file: name(), problem });
        }
        // Only here may a link lead out of its directory, because the caller named this very file. If the file is
        // split, its other parts must be in the directory of the real file.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let beside = Self::directory(parent.canonicalize().map_err(io)?);
        let (source, file) = match beside.holds(&real) {
            true => (beside, path.file_name()),
            false => (Self::directory(real.parent().unwrap_or(Path::new("/")).to_owned()), real.file_name()),
        };
        match file.and_then(|file| file.to_str()) {
            Some(file) => Ok((source, Some(file.to_owned()))),
            None => Err(CheckpointError::File { file: name(), problem: "its name is not UTF-8".to_owned() }),
        }
    }

    /// Creates a source for a directory. `root` must be canonical.
    fn directory(root: PathBuf) -> Self {
        let blobs = hub_blobs(&root);
        Self::Directory { root, blobs }
    }

    /// Whether links may point to this canonical path.
    fn holds(&self, real: &Path) -> bool {
        match self {
            Self::Directory { root, blobs } => {
                real.starts_with(root) || blobs.as_ref().is_some_and(|blobs| real.starts_with(blobs))
            }
            Self::Memory(_) => false,
        }
    }

    /// Creates a source from files in memory.
    ///
    /// # Errors
    /// [`CheckpointError::File`] if a name is not a plain file name, or occurs twice.
    pub(crate) fn memory(files: Vec<(String, Cow<'static, [u8]>)>) -> Result<Self, CheckpointError> {
        for (index, (name, _)) in files.iter().enumerate() {
            check_plain_name(name)?;
            if files.iter().skip(index + 1).any(|(other, _)| other == name) {
                return Err(refused(name, "is given twice".to_owned()));
            }
        }
        Ok(Self::Memory(files))
    }

    /// Reads a whole small file. `None` if there is no file with this name.
    pub(crate) fn read(
        &mut self,
        name: &str,
        limit_bytes: u64,
    ) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        let found = self.read_any(name, limit_bytes)?;
        found.as_deref().map_or(Ok(()), |bytes| content::check(name, bytes))?;
        Ok(found)
    }

    fn read_any(
        &mut self,
        name: &str,
        limit_bytes: u64,
    ) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        let too_large =
            |bytes: u64| refused(name, format!("is {bytes} bytes long, the most is {limit_bytes}"));
        match self {
            Self::Directory { .. } => {
                let Some(file) = self.open(name)? else { return Ok(None) };
                let io = |source| CheckpointError::Io { file: name.to_owned(), source };
                let claimed = file.metadata().map_err(io)?.len();
                if claimed > limit_bytes {
                    return Err(too_large(claimed));
                }
                // The file may grow between the two calls, so the bound is checked again.
                let mut bytes = Vec::new();
                file.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(io)?;
                match u64::try_from(bytes.len()) {
                    Ok(length) if length <= limit_bytes => Ok(Some(Cow::Owned(bytes))),
                    _ => Err(too_large(limit_bytes + 1)),
                }
            }
            Self::Memory(files) => match take(files, name) {
                Some(bytes) if bytes.len() as u64 > limit_bytes => Err(too_large(bytes.len() as u64)),
                found => Ok(found),
            },
        }
    }

    /// Opens a weight file. A file on disk is mapped. `None` if there is no file with this name.
    pub(crate) fn weights(&mut self, name: &str) -> Result<Option<Contents>, CheckpointError> {
        check_plain_name(name)?;
        let found = match self {
            Self::Directory { .. } => {
                let Some(file) = self.open(name)? else { return Ok(None) };
                let map = map(&file);
                let map = map.map_err(|source| CheckpointError::Io { file: name.to_owned(), source })?;
                Some(Contents::Mapped(map))
            }
            Self::Memory(files) => take(files, name).map(Contents::Memory),
        };
        found.as_deref().map_or(Ok(()), |bytes| content::check(name, bytes))?;
        Ok(found)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory { root, .. } => root.join(name).symlink_metadata().is_ok(),
            Self::Memory(files) => files.iter().any(|(other, _)| other == name),
        }
    }

    /// Returns the names that end in `suffix`, sorted.
    pub(crate) fn names_ending(&self, suffix: &str) -> Result<Vec<String>, CheckpointError> {
        let mut names: Vec<String> = match self {
            Self::Directory { root, .. } => list(root)?,
            Self::Memory(files) => files.iter().map(|(name, _)| name.clone()).collect(),
        };
        names.retain(|name| name.ends_with(suffix));
        names.sort();
        Ok(names)
    }

    /// Opens a file of the directory. `None` if it does not exist. Refuses files that are not regular or are really
    /// outside.
    fn open(&self, name: &str) -> Result<Option<File>, CheckpointError> {
        let Self::Directory { root, .. } = self else { return Ok(None) };
        let io = |source| CheckpointError::Io { file: name.to_owned(), source };
        let path = root.join(name);
        match path.symlink_metadata() {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        }
        let real = path.canonicalize().map_err(io)?;
        if !self.holds(&real) {
            let problem = "is a symbolic link out of the model directory; copy the file into it".to_owned();
            return Err(refused(name, problem));
        }
        // Checked before the file is opened, because opening a pipe would wait for its writer.
        if !real.metadata().map_err(io)?.is_file() {
            return Err(refused(name, "is not a regular file".to_owned()));
        }
        File::open(&real).map(Some).map_err(io)
    }
}

impl Contents {
    /// Returns the pages to the operating system. A later read loads them from the file again.
    pub(crate) fn release(&self) {
        #[cfg(unix)]
        if let Self::Mapped(map) = self {
            // SAFETY: `DontNeed` is unsafe because on private, written pages it discards the writes under a borrow.
            // This mapping is read-only and of a file, so there are no writes. The kernel drops page-table entries, and
            // a borrow that is still read sees the same file bytes, which are faulted in again.
            let result = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
            // Only advice: if the call fails, the memory stays in use as page cache, which is harmless.
            drop(result);
        }
    }
}

/// Returns the `blobs` directory of the Hugging Face cache, which keeps `NAME/snapshots/REVISION/` as links into
/// `NAME/blobs/`. Links may point there only from a directory of exactly that shape.
fn hub_blobs(root: &Path) -> Option<PathBuf> {
    let snapshots = root.parent()?;
    if snapshots.file_name()? != "snapshots" {
        return None;
    }
    let blobs = snapshots.parent()?.join("blobs");
    // If `blobs` is itself a link to another place, this is not the cache's layout.
    (blobs.canonicalize().ok()? == blobs).then_some(blobs)
}

fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is read-only and is handed out only as `&[u8]`, in which every bit pattern is valid. The
    // remaining risk is that the file changes under the borrow. If another process writes to it, bytes change that are
    // read as plain numbers and never as lengths, because the header is parsed once, into owned values. If another
    // process truncates it, the next read of a lost page raises SIGBUS. No portable lock prevents either. Both risks
    // end when the weights are copied into the engine's own memory right after loading, since the mapping is not read
    // after that. `Checkpoint` documents that model files must be replaced by renaming, which leaves the mapped file
    // intact.
    unsafe { memmap2::Mmap::map(file) }
}

/// Checks that `name` is a plain file name: no directory, no parent, no root, no backslash and no control character.
pub(crate) fn check_plain_name(name: &str) -> Result<(), CheckpointError> {
    let mut parts = Path::new(name).components();
    let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
        && name.len() <= MAX_FILE_NAME_BYTES
        && !name.contains(|c: char| c == '\\' || c.is_control());
    if plain {
        return Ok(());
    }
    Err(refused(name, "is not the plain name of a file in the model directory".to_owned()))
}

fn list(root: &Path) -> Result<Vec<String>, CheckpointError> {
    let io = |source| CheckpointError::Io { file: ".".to_owned(), source };
    let mut names = Vec::new();
    for (count, entry) in root.read_dir().map_err(io)?.enumerate() {
        if count == MAX_DIRECTORY_ENTRIES {
            let problem = format!("holds more than {MAX_DIRECTORY_ENTRIES} entries: not a model directory?");
            return Err(refused(".", problem));
        }
        // Names that are not UTF-8 are skipped, because no file with such a name is ever requested.
        names.extend(entry.map_err(io)?.file_name().into_string().ok());
    }
    Ok(names)
}

fn take(files: &mut Vec<(String, Cow<'static, [u8]>)>, name: &str) -> Option<Cow<'static, [u8]>> {
    let index = files.iter().position(|(other, _)| other == name)?;
    Some(files.swap_remove(index).1)
}

fn refused(name: &str, problem: String) -> CheckpointError {
    CheckpointError::File { file: shown(name), problem }
}
