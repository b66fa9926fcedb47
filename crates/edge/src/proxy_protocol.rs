//! The PROXY protocol, version 2: a proxy begins each connection with the client's address. Must not know which senders are
//! trusted, nor what follows.
//! Source: <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>, section 2.2.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// The first bytes of a header.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of a header before its addresses.
const FIXED_BYTES: usize = 16;
/// Maximum bytes of addresses and extensions. Proxies send some hundred at most.
const MAX_REST_BYTES: usize = 2_048;
/// Bytes of two IPv4 addresses and two ports, and of two IPv6 addresses and two ports.
const IPV4_BYTES: usize = 12;
const IPV6_BYTES: usize = 36;

/// Why a connection has no valid header.
#[derive(Debug)]
pub(crate) enum ProxyHeaderError {
    /// The connection ended or failed.
    Io(io::Error),
    /// The first bytes are not a header of version 2.
    NoHeader,
    /// The header has another version or an unknown command.
    Version,
    /// The header is longer than accepted.
    TooLong {
        /// Bytes after the fixed part.
        bytes: usize,
    },
    /// The header is shorter than its addresses.
    TooShort,
}

impl fmt::Display for ProxyHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the connection ended before its PROXY header: {error}"),
            Self::NoHeader => f.write_str("the connection does not begin with a PROXY header of version 2"),
            Self::Version => {
                f.write_str("the PROXY header has another version than 2, or an unknown command")
            }
            Self::TooLong { bytes } => {
                write!(
                    f,
                    "the PROXY header has {bytes} bytes of addresses and extensions; at most {MAX_REST_BYTES} are read"
                )
            }
            Self::TooShort => f.write_str("the PROXY header is shorter than its addresses"),
        }
    }
}

impl std::error::Error for ProxyHeaderError {}

/// Reads the header of a connection, and no byte after it. Returns the client's address. `None` if the proxy speaks for
/// itself, as in health checks, or if the client's address is none of IP.
///
/// # Errors
/// Why the connection has no valid header. It must be closed then.
pub(crate) async fn read_header(
    io: &mut (impl AsyncRead + Unpin),
) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    let mut fixed = [0; FIXED_BYTES];
    io.read_exact(&mut fixed).await.map_err(ProxyHeaderError::Io)?;
    let [signature @ .., version_and_command, family, high, low] = fixed;
    if signature != SIGNATURE {
        return Err(ProxyHeaderError::NoHeader);
    }
    let is_local = match version_and_command {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyHeaderError::Version),
    };
    let bytes = usize::from(u16::from_be_bytes([high, low]));
    if bytes > MAX_REST_BYTES {
        return Err(ProxyHeaderError::TooLong { bytes });
    }
    let mut rest = [0; MAX_REST_BYTES];
    let rest = rest.get_mut(..bytes).unwrap_or_default();
    io.read_exact(rest).await.map_err(ProxyHeaderError::Io)?;
    if is_local {
        return Ok(None);
    }
    // The upper half is the address family, the lower half the transport: only streams over IP have addresses here.
    match family {
        0x11 => ipv4(rest).map(Some).ok_or(ProxyHeaderError::TooShort),
        0x21 => ipv6(rest).map(Some).ok_or(ProxyHeaderError::TooShort),
        _ => Ok(None),
    }
}

fn ipv4(rest: &[u8]) -> Option<SocketAddr> {
    let addresses: &[u8; IPV4_BYTES] = rest.first_chunk()?;
    let [a, b, c, d, _, _, _, _, high, low, _, _] = *addresses;
    Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), u16::from_be_bytes([high, low])))
}

fn ipv6(rest: &[u8]) -> Option<SocketAddr> {
    let addresses: &[u8; IPV6_BYTES] = rest.first_chunk()?;
    let source: &[u8; 16] = addresses.first_chunk()?;
    let [high, low, _, _] = *addresses.last_chunk()?;
    let source = IpAddr::V6(Ipv6Addr::from(*source)).to_canonical();
    Some(SocketAddr::new(source, u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with this command, this family and these bytes, and the first bytes of a request behind it.
    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest, b"GET /"].concat()
    }

    fn v4() -> Vec<u8> {
        [&[203, 0, 113, 7][..], &[10, 0, 0, 1], &51_000_u16.to_be_bytes(), &443_u16.to_be_bytes()].concat()
    }

    #[tokio::test]
    async fn the_clients_address_is_read_and_no_byte_more() {
        let mapped = [&[0; 10][..], &[0xff, 0xff, 203, 0, 113, 7], &[0; 16], &[0, 7, 0, 8]].concat();
        let v6 = [&[0x20, 1, 0x0d, 0xb8][..], &[0; 11], &[9], &[0; 16], &[0, 7, 0, 8]].concat();
        let with_extensions = [v4(), vec![0xEE; 300]].concat();
        for (bytes, expected) in [
            (header(0x21, 0x11, &v4()), Some("203.0.113.7:51000")),
            (header(0x21, 0x11, &with_extensions), Some("203.0.113.7:51000")),
            (header(0x21, 0x21, &v6), Some("[2001:db8::9]:7")),
            (header(0x21, 0x21, &mapped), Some("203.0.113.7:7")),
            (header(0x20, 0x00, &[]), None),
            (header(0x20, 0x11, &v4()), None),
            (header(0x21, 0x00, &[1, 2, 3]), None),
            (header(0x21, 0x31, &[0; 216]), None),
        ] {
            let mut io = bytes.as_slice();
            let found = read_header(&mut io).await.unwrap();
            assert_eq!(found, expected.map(|text| text.parse().unwrap()), "{bytes:?}");
            assert_eq!(io, b"GET /");
        }
    }

    #[tokio::test]
    async fn anything_else_is_refused() {
        let all = header(0x21, 0x11, &v4());
        for bytes in [
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 10.0.0.1 51000 443\r\n".to_vec(),
            header(0x11, 0x11, &v4()),
            header(0x22, 0x11, &v4()),
            header(0x21, 0x11, &v4()[..11]),
            header(0x21, 0x21, &v4()),
            header(0x21, 0x11, &[0; MAX_REST_BYTES + 1]),
        ] {
            assert!(read_header(&mut bytes.as_slice()).await.is_err(), "{bytes:?}");
        }
        for end in 0..FIXED_BYTES + IPV4_BYTES {
            assert!(matches!(read_header(&mut &all[..end]).await, Err(ProxyHeaderError::Io(_))), "{end}");
        }
    }
}
