//! Checks of values whose form a pattern has matched: check digits, and numbers that are never issued. Must not know
//! patterns. Each check returns the bytes of the value at the start of its text.

use std::net::{Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};

/// The whole text, if it is a value.
fn whole(text: &str, is_value: bool) -> Option<usize> {
    is_value.then_some(text.len())
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter_map(|c| c.to_digit(10)).collect()
}

/// The remainder of a sum in which each digit counts as often as its weight says.
fn weighted(digits: &[u32], weights: &[u32], modulus: u32) -> u32 {
    digits.iter().zip(weights).map(|(digit, weight)| digit * weight).sum::<u32>() % modulus
}

/// A card by its check digit (Luhn, ISO/IEC 7812-1 annex B). A number of 13 digits that starts with 1 is a time in
/// milliseconds.
pub(super) fn card(text: &str) -> Option<usize> {
    let digits = digits(text);
    let is_time = digits.len() == 13 && digits.first() == Some(&1);
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| match at % 2 {
            0 => *digit,
            _ => digit * 2 - if *digit > 4 { 9 } else { 0 },
        })
        .sum();
    whole(text, !is_time && sum.is_multiple_of(10))
}

/// Countries and the lengths of their IBANs, from the registry of SWIFT.
const IBAN_LENGTHS: &str = "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 \
     DJ27 DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 \
     IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 \
     OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 \
     UA29 VA22 VG24 XK20 YE30";

/// An IBAN by its country's length and its check digits (ISO 7064, MOD 97-10). The text may continue behind it.
pub(super) fn iban(text: &str) -> Option<usize> {
    let country = text.get(..2)?.to_ascii_uppercase();
    let known = IBAN_LENGTHS.split(' ').find_map(|entry| entry.strip_prefix(country.as_str()))?;
    let length: usize = known.parse().ok()?;
    let characters: Vec<(usize, char)> =
        text.char_indices().filter(|(_, c)| c.is_ascii_alphanumeric()).take(length).collect();
    if characters.len() < length {
        return None;
    }
    let end = characters.last()?.0.checked_add(1)?;
    if text.get(end..)?.starts_with(|c: char| c.is_alphanumeric()) {
        return None;
    }
    let (head, tail) = characters.split_at_checked(4)?;
    let remainder = tail.iter().chain(head).try_fold(0_u32, |rest, (_, c)| {
        let value = c.to_digit(36)?;
        Some(if value < 10 { (rest * 10 + value) % 97 } else { (rest * 100 + value) % 97 })
    });
    (remainder == Some(1)).then_some(end)
}

/// An e-mail address within the lengths of RFC 5321.
pub(super) fn email(text: &str) -> Option<usize> {
    let (local, domain) = text.rsplit_once('@')?;
    let is_dotted = !local.starts_with('.') && !local.ends_with('.') && !local.contains("..");
    whole(text, is_dotted && local.len() <= 64 && domain.len() <= 255)
}

/// A number with a country code: 8 to 15 digits (ITU-T E.164).
pub(super) fn phone(text: &str) -> Option<usize> {
    whole(text, (8..=15).contains(&digits(text).len()))
}

/// An IPv4 address. `0.0.0.0` and the like are of no host.
pub(super) fn ip(text: &str) -> Option<usize> {
    whole(text, text.parse::<Ipv4Addr>().is_ok_and(|ip| !ip.is_unspecified()))
}

/// An IPv6 address. The text may end in the stop of a sentence.
pub(super) fn ipv6(text: &str) -> Option<usize> {
    let text = text.trim_end_matches('.');
    let is_address = |text: &str| {
        text.len() > 3 && text.parse::<Ipv6Addr>().is_ok_and(|ip| !ip.is_unspecified() && !ip.is_loopback())
    };
    let short = text.strip_suffix(':').unwrap_or(text);
    [text, short].into_iter().find(|text| is_address(text)).map(str::len)
}

/// A key: not a word with hyphens.
pub(super) fn has_digit_and_letter(text: &str) -> Option<usize> {
    let has = |is: fn(&char) -> bool| text.chars().skip(3).any(|c| is(&c));
    whole(text, has(char::is_ascii_digit) && has(char::is_ascii_alphabetic))
}

/// A Bitcoin address in base 58, by its checksum.
pub(super) fn bitcoin_base58(text: &str) -> Option<usize> {
    const ALPHABET: &str = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let mut bytes = [0_u8; 25];
    for c in text.chars() {
        let mut carry = u32::try_from(ALPHABET.find(c)?).ok()?;
        for byte in bytes.iter_mut().rev() {
            carry += u32::from(*byte) * 58;
            *byte = u8::try_from(carry % 256).ok()?;
            carry /= 256;
        }
        if carry > 0 {
            return None;
        }
    }
    let (payload, checksum) = bytes.split_at_checked(21)?;
    let hash = Sha256::digest(Sha256::digest(payload));
    whole(text, hash.get(..4) == Some(checksum))
}

/// A Bitcoin address in bech32 or bech32m, by its checksum (BIP 173 and 350).
pub(super) fn bitcoin_bech32(text: &str) -> Option<usize> {
    const ALPHABET: &str = "qpzry9x8gf2tvdw0s3jn54khce6mua7l";
    const GENERATORS: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let is_one_case = text == text.to_ascii_lowercase() || text == text.to_ascii_uppercase();
    let lower = text.to_ascii_lowercase();
    let mut values = vec![3, 3, 0, 2, 3];
    for c in lower.strip_prefix("bc1")?.chars() {
        values.push(u32::try_from(ALPHABET.find(c)?).ok()?);
    }
    let checksum =
        values.iter().fold(1_u32, |sum, value| {
            let top = sum >> 25;
            let shifted = ((sum & 0x01ff_ffff) << 5) ^ value;
            GENERATORS.iter().enumerate().fold(shifted, |sum, (bit, generator)| {
                if (top >> bit) & 1 == 1 { sum ^ generator } else { sum }
            })
        });
    whole(text, is_one_case && matches!(checksum, 1 | 0x2bc8_30a3))
}

/// A social security number: no part is zero, and the area was issued. Its separators are the same.
pub(super) fn us_ssn(text: &str) -> Option<usize> {
    let mut parts = text.split(['-', '.', ' ']);
    let (area, group, serial) = (parts.next()?, parts.next()?, parts.next()?);
    let separators: Vec<char> = text.chars().filter(|c| !c.is_ascii_digit()).collect();
    let is_same = separators.first() == separators.last();
    let is_issued =
        !matches!(area, "000" | "666") && !area.starts_with('9') && group != "00" && serial != "0000";
    let is_example =
        matches!(digits(text).as_slice(), [1, 2, 3, 4, 5, 6, 7, 8, 9] | [0, 7, 8, 0, 5, 1, 1, 2, 0]);
    whole(text, is_same && is_issued && !is_example)
}

/// An NHS number by its check digit, modulo 11.
pub(super) fn uk_nhs(text: &str) -> Option<usize> {
    let digits = digits(text);
    let weights = [10, 9, 8, 7, 6, 5, 4, 3, 2, 1];
    let is_zero = digits.iter().all(|digit| *digit == 0);
    whole(text, digits.len() == 10 && !is_zero && weighted(&digits, &weights, 11) == 0)
}

/// A NIF or NIE by its check letter, modulo 23.
pub(super) fn es_nif(text: &str) -> Option<usize> {
    let last = text.chars().next_back()?;
    let number = text.strip_suffix(last)?.trim_end_matches('-');
    let number = number.replace('X', "0").replace('Y', "1").replace('Z', "2");
    let number: u32 = number.parse().ok()?;
    let at = usize::try_from(number % 23).ok()?;
    whole(text, "TRWAGMYFPDXBNJZSQVHLCKE".chars().nth(at) == Some(last))
}

/// A codice fiscale by its check letter.
pub(super) fn it_fiscal_code(text: &str) -> Option<usize> {
    const ODD: [u32; 36] = [
        1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12,
        14, 16, 10, 22, 25, 24, 23,
    ];
    let values: Vec<u32> = text.chars().filter_map(|c| c.to_digit(36)).collect();
    let (check, coded) = values.split_last()?;
    let mut sum = 0;
    for (at, value) in coded.iter().enumerate() {
        sum += match at % 2 {
            0 => *ODD.get(usize::try_from(*value).ok()?)?,
            _ if *value < 10 => *value,
            _ => value - 10,
        };
    }
    whole(text, values.len() == 16 && *check == sum % 26 + 10)
}

/// A PESEL number by its check digit.
pub(super) fn pl_pesel(text: &str) -> Option<usize> {
    let digits = digits(text);
    let month = digits.get(2..4).map(|month| month.iter().fold(0, |sum, digit| sum * 10 + digit) % 20);
    let is_month = month.is_some_and(|month| (1..=12).contains(&month));
    let weights = [1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1];
    whole(text, is_month && weighted(&digits, &weights, 10) == 0)
}

/// An Aadhaar number by its check digit (Verhoeff). It is not the same from both ends.
pub(super) fn in_aadhaar(text: &str) -> Option<usize> {
    const ORDERS: [[u32; 10]; 8] = [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        [1, 5, 7, 6, 2, 8, 3, 0, 9, 4],
        [5, 8, 0, 3, 7, 9, 6, 1, 4, 2],
        [8, 9, 1, 6, 0, 4, 3, 5, 2, 7],
        [9, 4, 5, 3, 1, 2, 6, 8, 7, 0],
        [4, 2, 8, 6, 5, 7, 3, 9, 0, 1],
        [2, 7, 9, 3, 8, 0, 6, 4, 1, 5],
        [7, 0, 4, 6, 9, 1, 3, 2, 5, 8],
    ];
    let digits = digits(text);
    let mut sum = 0;
    for (at, digit) in digits.iter().rev().enumerate() {
        let ordered = *ORDERS.get(at % 8)?.get(usize::try_from(*digit).ok()?)?;
        sum = dihedral(sum, ordered);
    }
    let is_mirrored = digits.iter().eq(digits.iter().rev());
    whole(text, digits.len() == 12 && sum == 0 && !is_mirrored)
}

/// The product in the dihedral group of order 10.
const fn dihedral(left: u32, right: u32) -> u32 {
    match (left < 5, right < 5) {
        (true, true) => (left + right) % 5,
        (true, false) => 5 + (left + right - 5) % 5,
        (false, true) => 5 + (left + 5 - right) % 5,
        (false, false) => (left + 5 - right) % 5,
    }
}

/// A Finnish personal identity code by its check character, modulo 31, and its date.
pub(super) fn fi_person_id(text: &str) -> Option<usize> {
    let upper = text.to_ascii_uppercase();
    let (date, serial) = (upper.get(..6)?, upper.get(7..10)?);
    let number: u32 = format!("{date}{serial}").parse().ok()?;
    let at = usize::try_from(number % 31).ok()?;
    let (day, month): (u32, u32) = (date.get(..2)?.parse().ok()?, date.get(2..4)?.parse().ok()?);
    let is_date = (1..=31).contains(&day) && (1..=12).contains(&month);
    let check = "0123456789ABCDEFHJKLMNPRSTUVWXY".chars().nth(at);
    whole(text, is_date && check.is_some() && check == upper.chars().next_back())
}
