//! Encrypts secrets with a key from a file, and decrypts them. Knows the format of an encrypted secret, and not where
//! secrets are stored.
//!
//! Version 1, 72 bytes: `HRS`, the version in one byte, the id of the key in 8 bytes, a random nonce of 12 bytes, the
//! encrypted secret of 32 bytes, and a tag of 16 bytes. The cipher is AES-256-GCM. Its associated data are the first 12
//! bytes and the name of the secret. Key and id are derived from the file by HKDF-SHA256 (RFC 5869).

use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use headrace_identity::StoreError;
use zeroize::Zeroizing;

/// The setting that names the file.
pub const SETTING: &str = "storage.secret_file";

const MAGIC: &[u8] = b"HRS";
const VERSION: u8 = 1;
/// Bytes of the magic, the version and the id of the key.
const HEADER_BYTES: usize = 12;
const SECRET_BYTES: usize = 32;
/// Minimum bytes of the file's secret.
const MIN_BYTES: usize = 32;
/// Maximum bytes of the file.
const MAX_FILE_BYTES: u64 = 65_536;
const SALT: &[u8] = b"headrace storage secrets 1";

/// Why a stored secret cannot be used, or a file cannot encrypt secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealError {
    /// The stores cannot be reached.
    Store(StoreError),
    /// The file cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The secrets are encrypted, and the setting names no file.
    NoFile {
        /// The place of the secret.
        place: String,
        /// The id of the key that encrypted it.
        key: SealKeyId,
    },
    /// The secrets were encrypted with another file.
    OtherFile {
        /// The place of the secret.
        place: String,
        /// The id of the key that encrypted it.
        key: SealKeyId,
        /// The file of the setting.
        file: PathBuf,
        /// The id of the key from the file.
        found: SealKeyId,
    },
    /// A newer program encrypted the secret.
    Newer {
        /// The place of the secret.
        place: String,
        /// The version of the format.
        version: u8,
    },
    /// The bytes are no secret, or were changed.
    Damaged {
        /// The place of the secret.
        place: String,
    },
    /// No random numbers, or the cipher failed.
    Cipher,
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::File { path, why } => write!(f, "{SETTING}: {} {why}", path.display()),
            Self::NoFile { place, key } => write!(
                f,
                "{place} is encrypted with the key {key}, and {SETTING} is not set: set it to the file with that key"
            ),
            Self::OtherFile { place, key, file, found } => write!(
                f,
                "{place} is encrypted with the key {key}, and the file of {SETTING}, {}, has the key {found}: set it to \
                 the file with the key {key}",
                file.display()
            ),
            Self::Newer { place, version } => write!(
                f,
                "{place} is encrypted in format {version}, and this program knows format {VERSION}: use a newer program"
            ),
            Self::Damaged { place } => write!(
                f,
                "{place} is damaged: it is neither a secret of {SECRET_BYTES} bytes nor an encrypted one; restore it from a backup"
            ),
            Self::Cipher => {
                f.write_str("the secrets cannot be encrypted: the operating system gave no randomness")
            }
        }
    }
}

impl std::error::Error for SealError {}

impl From<StoreError> for SealError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The id of a key. It follows from the file, and does not reveal the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealKeyId([u8; 8]);

impl fmt::Display for SealKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Encrypts and decrypts secrets with the key of one file.
pub struct SecretSealer {
    key: LessSafeKey,
    id: SealKeyId,
    file: PathBuf,
}

impl fmt::Debug for SecretSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretSealer").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SecretSealer {
    /// Reads a file with 32 or more random bytes, or their base64 or hexadecimal form.
    ///
    /// # Errors
    /// [`SealError::File`] if the file cannot be read, others than its owner and group may use it, or it is too short.
    pub fn read(file: &Path) -> Result<Self, SealError> {
        let fault = |why: String| SealError::File { path: file.to_owned(), why };
        let unreadable = |error: std::io::Error| fault(format!("cannot be read: {error}"));
        let opened = std::fs::File::open(file).map_err(unreadable)?;
        let found = opened.metadata().map_err(unreadable)?;
        if !found.is_file() {
            return Err(fault("is no file".to_owned()));
        }
        let mode = found.permissions().mode() & 0o777;
        if mode & 0o007 != 0 {
            return Err(fault(format!(
                "is open to all users of this machine (mode {mode:o}): close it with chmod 600"
            )));
        }
        let mut content = Zeroizing::new(Vec::new());
        opened.take(MAX_FILE_BYTES + 1).read_to_end(&mut content).map_err(unreadable)?;
        if content.len() as u64 > MAX_FILE_BYTES {
            return Err(fault(format!("has more than {MAX_FILE_BYTES} bytes")));
        }
        let secret = secret_of(&content);
        if secret.len() < MIN_BYTES {
            return Err(fault(format!(
                "holds a secret of {} bytes, and needs {MIN_BYTES} random ones: make it with `openssl rand -hex 32`",
                secret.len()
            )));
        }
        Self::derive(&secret, file)
    }

    fn derive(secret: &[u8], file: &Path) -> Result<Self, SealError> {
        let derived = Salt::new(HKDF_SHA256, SALT).extract(secret);
        let fill = |info: &'static [u8]| {
            let mut bytes = Zeroizing::new([0; 32]);
            let filled = derived.expand(&[info], HKDF_SHA256).and_then(|key| key.fill(bytes.as_mut_slice()));
            filled.map_err(|_| SealError::Cipher).map(|()| bytes)
        };
        let key = UnboundKey::new(&AES_256_GCM, fill(b"key")?.as_slice()).map_err(|_| SealError::Cipher)?;
        let id = fill(b"key id")?.first_chunk().copied().ok_or(SealError::Cipher)?;
        Ok(Self { key: LessSafeKey::new(key), id: SealKeyId(id), file: file.to_owned() })
    }

    /// Returns the id of the key.
    pub const fn key_id(&self) -> SealKeyId {
        self.id
    }

    /// Encrypts the secret with this name.
    ///
    /// # Errors
    /// [`SealError::Cipher`] if there are no random numbers.
    pub fn seal(&self, name: &str, secret: &[u8; SECRET_BYTES]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(|_| SealError::Cipher)?;
        let mut header = MAGIC.to_vec();
        header.push(VERSION);
        header.extend_from_slice(&self.id.0);
        let mut content = secret.to_vec();
        let with = Aad::from([header.as_slice(), name.as_bytes()].concat());
        let sealed =
            self.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), with, &mut content);
        sealed.map_err(|_| SealError::Cipher)?;
        Ok([header, nonce.to_vec(), content].concat())
    }
}

/// A stored secret, as far as it can be read without a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StoredSecret<'a> {
    /// It is not encrypted.
    Plain(&'a [u8; SECRET_BYTES]),
    /// It is encrypted with this key.
    Sealed(SealKeyId, &'a [u8]),
}

impl fmt::Debug for StoredSecret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(_) => f.write_str("Plain"),
            Self::Sealed(key, _) => f.debug_tuple("Sealed").field(key).finish(),
        }
    }
}

impl<'a> StoredSecret<'a> {
    /// Parses the bytes that are stored at `place`.
    ///
    /// # Errors
    /// [`SealError::Damaged`] for bytes that are no secret, and [`SealError::Newer`] for those of a newer program.
    pub fn parse(bytes: &'a [u8], place: &str) -> Result<Self, SealError> {
        if let Ok(plain) = bytes.try_into() {
            return Ok(Self::Plain(plain));
        }
        let damaged = || SealError::Damaged { place: place.to_owned() };
        let (version, rest) = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first).ok_or_else(damaged)?;
        if *version > VERSION {
            return Err(SealError::Newer { place: place.to_owned(), version: *version });
        }
        let (id, _) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
        Ok(Self::Sealed(SealKeyId(*id), bytes))
    }

    /// Returns the id of the key that encrypted it. `None` if it is not encrypted.
    pub const fn key(self) -> Option<SealKeyId> {
        match self {
            Self::Plain(_) => None,
            Self::Sealed(key, _) => Some(key),
        }
    }

    /// Returns the secret with this name. `sealer` has the key of the setting's file, or is `None` without the setting.
    ///
    /// # Errors
    /// [`SealError::NoFile`], [`SealError::OtherFile`], or [`SealError::Damaged`] if the bytes were changed.
    pub fn open(
        self,
        name: &str,
        place: &str,
        sealer: Option<&SecretSealer>,
    ) -> Result<Zeroizing<[u8; SECRET_BYTES]>, SealError> {
        let (key, bytes) = match self {
            Self::Plain(secret) => return Ok(Zeroizing::new(*secret)),
            Self::Sealed(key, bytes) => (key, bytes),
        };
        let place = || place.to_owned();
        let sealer = sealer.ok_or_else(|| SealError::NoFile { place: place(), key })?;
        if sealer.id != key {
            let (file, found) = (sealer.file.clone(), sealer.id);
            return Err(SealError::OtherFile { place: place(), key, file, found });
        }
        let damaged = || SealError::Damaged { place: place() };
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(damaged)?;
        let (nonce, content) = rest.split_first_chunk::<NONCE_LEN>().ok_or_else(damaged)?;
        let mut content = Zeroizing::new(content.to_vec());
        let with = Aad::from([header, name.as_bytes()].concat());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = sealer.key.open_in_place(nonce, with, &mut content).map_err(|_| damaged())?;
        let secret: &[u8; SECRET_BYTES] = (&*opened).try_into().map_err(|_| damaged())?;
        Ok(Zeroizing::new(*secret))
    }
}

/// Returns the secret of a file's content: decoded if the content is hexadecimal or base64, else its bytes. The end of a
/// line does not count in a text.
fn secret_of(content: &[u8]) -> Zeroizing<Vec<u8>> {
    let Ok(text) = std::str::from_utf8(content) else { return Zeroizing::new(content.to_vec()) };
    let text = text.trim_ascii();
    if text.len() >= 2 * MIN_BYTES && text.len().is_multiple_of(2) {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let pair = |pair: &[u8]| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        };
        if let Some(bytes) = text.as_bytes().chunks_exact(2).map(pair).collect() {
            return Zeroizing::new(bytes);
        }
    }
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    for alphabet in [&base64::alphabet::STANDARD, &base64::alphabet::URL_SAFE] {
        match GeneralPurpose::new(alphabet, config).decode(text) {
            Ok(bytes) if bytes.len() >= MIN_BYTES => return Zeroizing::new(bytes),
            _ => {}
        }
    }
    Zeroizing::new(text.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_file_has_the_same_key_as_bytes_hexadecimal_and_base64() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..32).map(|n| 200 + n).collect();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        let base64 = base64::engine::general_purpose::STANDARD.encode(&bytes);
        let url_safe = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&bytes);
        let key =
            |content: &[u8]| SecretSealer::read(&file(folder.path(), "key", content, 0o640)).unwrap().id;
        let expected = key(&bytes);
        for text in [hex.clone(), format!("{hex}\n"), format!("{base64}\n"), url_safe] {
            assert_eq!(key(text.as_bytes()), expected, "{text}");
        }
        assert_ne!(key(&[7; 32]), expected);
        assert_eq!(
            key(b"a phrase of words with over 32 bytes\n"),
            key(b"a phrase of words with over 32 bytes")
        );
    }

    #[test]
    fn a_file_that_is_open_to_all_or_too_short_is_refused_by_its_setting() {
        let folder = tempfile::tempdir().unwrap();
        for (name, content, mode, part) in [
            ("open", &[7_u8; 32][..], 0o644, "chmod 600"),
            ("short", &[200; 31], 0o600, "a secret of 31 bytes"),
            ("short hexadecimal", "ab".repeat(15).as_bytes(), 0o600, "a secret of 30 bytes"),
            ("empty", b"\n", 0o600, "a secret of 0 bytes"),
            ("large", &[200; 70_000], 0o600, "more than 65536 bytes"),
        ] {
            let error =
                SecretSealer::read(&file(folder.path(), name, content, mode)).unwrap_err().to_string();
            assert!(error.starts_with("storage.secret_file: ") && error.contains(part), "{name}: {error}");
        }
        let missing = SecretSealer::read(&folder.path().join("missing")).unwrap_err().to_string();
        assert!(missing.contains("missing cannot be read"), "{missing}");
        let folder = SecretSealer::read(folder.path()).unwrap_err().to_string();
        assert!(folder.contains("is no file") || folder.contains("is open to all"), "{folder}");
    }

    #[test]
    fn only_the_same_file_and_name_open_a_secret() {
        let sealer = |byte| SecretSealer::derive(&[byte; 32], Path::new("/run/key")).unwrap();
        let (own, other) = (sealer(1), sealer(2));
        let sealed = own.seal("key-hash", &[9; 32]).unwrap();
        assert_eq!(sealed.len(), 72);
        assert_ne!(sealed, own.seal("key-hash", &[9; 32]).unwrap(), "each has its own nonce");
        let open = |bytes: &[u8], name, sealer: Option<&SecretSealer>| {
            StoredSecret::parse(bytes, "here").and_then(|stored| stored.open(name, "here", sealer))
        };
        assert_eq!(*open(&sealed, "key-hash", Some(&own)).unwrap(), [9; 32]);
        assert_eq!(*open(&[5; 32], "key-hash", None).unwrap(), [5; 32]);
        let key = own.id;
        assert_eq!(open(&sealed, "key-hash", None), Err(SealError::NoFile { place: "here".into(), key }));
        let error = open(&sealed, "key-hash", Some(&other)).unwrap_err();
        assert!(matches!(&error, SealError::OtherFile { found, .. } if *found == other.id), "{error}");
        assert!(
            error.to_string().contains(&format!("the key {key}")) && error.to_string().contains("/run/key")
        );
        let damaged = Err(SealError::Damaged { place: "here".into() });
        assert_eq!(open(&sealed, "cache-salt", Some(&own)), damaged);
        for end in [0, 3, 4, 11, 31, 33, 71] {
            assert_eq!(open(&sealed[..end], "key-hash", Some(&own)), damaged, "{end} bytes");
        }
        for at in 12..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open(&changed, "key-hash", Some(&own)), damaged, "byte {at}");
        }
        let mut newer = sealed;
        newer[3] = 2;
        assert_eq!(
            open(&newer, "key-hash", Some(&own)),
            Err(SealError::Newer { place: "here".into(), version: 2 })
        );
        assert!(!format!("{own:?} {:?}", StoredSecret::parse(&[5; 32], "here")).contains("5, 5"));
    }

    #[test]
    fn a_secret_that_the_first_format_encrypted_can_still_be_read() {
        let own = SecretSealer::derive(&[1; 32], Path::new("/run/key")).unwrap();
        assert_eq!(own.id.to_string(), GOLDEN_KEY);
        let sealed: Vec<u8> = (0..GOLDEN.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&GOLDEN[at..at + 2], 16).unwrap())
            .collect();
        let stored = StoredSecret::parse(&sealed, "here").unwrap();
        assert_eq!(*stored.open("key-hash", "here", Some(&own)).unwrap(), [9; 32]);
    }

    // Made with another implementation (Python: hmac, cryptography).
    const GOLDEN_KEY: &str = "938805de6f8ba85d";
    const GOLDEN: &str = "48525301938805de6f8ba85d000102030405060708090a0bd879dc51d9f16e1178d7474bb605d5d0dfae333badb4\
                          297650d4cdd8dc00d4ca21ebc57c11d759f4c2c4cfaf7f6b6bba";
}
