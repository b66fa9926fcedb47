//! Reads the files of certificate authorities that a client trusts: of `--ca`, of an upstream, and of the telemetry
//! receiver. Must not know which server the client connects to.

use std::path::Path;

use headrace_client::count_authorities;

/// Reads the file of `--ca`.
pub fn read_ca(path: &Path) -> Result<Vec<u8>, String> {
    read_authorities(path).map_err(|why| format!("--ca: {why}"))
}

/// The PEM text of a file that holds certificates of authorities.
///
/// # Errors
/// What the file holds, what it must hold, and the way out.
pub(crate) fn read_authorities(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    match count_authorities(&bytes) {
        Some(1..) => Ok(bytes),
        Some(0) => Err(format!("{shown} holds no certificate in PEM{}", instead(path, &bytes))),
        None => Err(format!(
            "{shown} holds a certificate that cannot be decoded: it is cut or damaged. Copy the file of the authority once more"
        )),
    }
}

/// What a file holds where certificates must be, and the way out.
fn instead(path: &Path, bytes: &[u8]) -> String {
    const EXPECTED: &str = "It must hold one or more blocks that begin with `-----BEGIN CERTIFICATE-----`: name the file of the authority that signs";
    /// A sequence with a length of two bytes: what each certificate in DER begins with.
    const DER: &[u8] = &[0x30, 0x82];
    if bytes.is_empty() {
        return format!(": it is empty. {EXPECTED}");
    }
    if bytes.starts_with(DER) {
        let shown = path.display();
        return format!(
            ", but binary data, such as DER: `openssl x509 -inform der -in {shown} -out {shown}.pem` makes a file in PEM"
        );
    }
    let text = String::from_utf8_lossy(bytes);
    let block = text.split("-----BEGIN ").nth(1).and_then(|rest| rest.split("-----").next());
    match block {
        Some("CERTIFICATE") => format!(": its block is cut or damaged. {EXPECTED}"),
        Some(kind) if kind.len() < 40 => format!(", but a block `{kind}`. {EXPECTED}"),
        _ => format!(". {EXPECTED}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_authorities_is_named_with_what_it_holds_and_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (bytes, words) in [
            (&b""[..], ["holds no certificate in PEM: it is empty", "-----BEGIN CERTIFICATE-----"]),
            (b"hello", ["holds no certificate in PEM. It must hold", "name the file of the authority"]),
            (
                concat!("-----BEGIN PRIVATE ", "KEY-----\nAAAA\n-----END PRIVATE ", "KEY-----\n").as_bytes(),
                ["but a block `PRIVATE KEY`", "-----BEGIN CERTIFICATE-----"],
            ),
            (b"\x30\x82\x01\x0a\x00", ["but binary data, such as DER", "openssl x509 -inform der"]),
            (b"-----BEGIN CERTIFICATE-----\nAA", ["its block is cut or damaged", "name the file"]),
            (junk.as_bytes(), ["holds a certificate that cannot be decoded", "Copy the file"]),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let why = read_authorities(&path).unwrap_err();
            assert!(why.contains(path.to_str().unwrap()), "{why}");
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
        let why = read_ca(Path::new("/does/not/exist")).unwrap_err();
        assert!(why.starts_with("--ca: cannot read /does/not/exist"), "{why}");
    }
}
