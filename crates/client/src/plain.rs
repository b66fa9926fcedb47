//! Explains TLS errors, and addresses of the wrong kind, in plain words with a remedy. The libraries below expose only
//! texts, so the texts are matched. Unknown errors stay as they are. Knows no connection.

/// How to make a self-signed certificate that works.
const MAKE_ONE: &str = "make one with `openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=localhost -addext \
                        subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout \
                        key.pem -out cert.pem` and name it with --ca cert.pem";

/// Explains a connection error at `base` (without its trailing slash). `None` if the cause is of another kind.
pub(crate) fn plain(base: &str, cause: &str) -> Option<String> {
    let has = |part: &str| cause.contains(part);
    let certificate = |what: &str| Some(format!("{base} shows a certificate {what}"));
    if has("CaUsedAsEndEntity") {
        return certificate(&format!(
            "made for an authority (CA:TRUE), which clients do not take for a server's: {MAKE_ONE}"
        ));
    }
    if has("UnknownIssuer") {
        return certificate(
            "of an authority that is not known here: if it is your own, name the file of the authority (or of a \
             certificate that signed itself) with --ca FILE",
        );
    }
    if has("not valid for name") || has("NotValidForName") {
        return certificate(&format!(
            "for another name: ask for it by the name that it was made for ({cause})"
        ));
    }
    if has("certificate expired") || has("certificate not valid yet") {
        return certificate(&format!(
            "that is not valid today: renew it, or set this machine's clock ({cause})"
        ));
    }
    if has("invalid peer certificate") {
        return certificate(&format!("that cannot be trusted ({cause})"));
    }
    if base.starts_with("https:") && has("InvalidContentType") {
        let http = base.replacen("https:", "http:", 1);
        return Some(format!("{base} answers without TLS: it is {http}"));
    }
    if base.starts_with("http:") && has("invalid HTTP") {
        let https = base.replacen("http:", "https:", 1);
        return Some(format!("{base} does not answer in HTTP: if it has a certificate, it is {https}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_has_a_way_out() {
        let rows = [
            ("https://h", "x: invalid peer certificate: UnknownIssuer", Some("--ca FILE")),
            ("https://h", "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", Some("CA:FALSE")),
            ("https://h", "invalid peer certificate: certificate not valid for name \"h\"; …", Some("name")),
            (
                "https://h",
                "invalid peer certificate: certificate expired: verification time …",
                Some("renew"),
            ),
            ("https://h", "invalid peer certificate: BadEncoding", Some("cannot be trusted")),
            ("https://h:1", "received corrupt message of type InvalidContentType", Some("it is http://h:1")),
            ("http://h:1", "invalid HTTP version parsed", Some("it is https://h:1")),
            ("http://h:1", "tcp connect error: Connection refused", None),
        ];
        for (base, cause, expected) in rows {
            let said = plain(base, cause);
            match expected {
                Some(part) => {
                    let said = said.unwrap_or_default();
                    assert!(said.starts_with(base) && said.contains(part), "{cause}: {said}");
                    assert!(!said.contains("OtherError") && !said.contains("InvalidContentType"), "{said}");
                }
                None => assert_eq!(said, None),
            }
        }
    }
}
