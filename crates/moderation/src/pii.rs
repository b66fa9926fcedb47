//! Recognisers of values that identify a person or give access: patterns, and checks of their digits. Must not know
//! texts beyond the value.
//!
//! Formats: ISO/IEC 7812 (cards), ISO 13616 (IBAN), RFC 5321 and 5322 (e-mail), RFC 7519 (JWT), BIP 173 and 350
//! (Bitcoin). Numbers of states: see `checks.rs`.

mod checks;

use serde::{Deserialize, Serialize};

/// A kind of value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PiiEntity {
    /// Numbers of payment cards, by their check digit.
    Card,
    /// International bank account numbers, by their check digits.
    Iban,
    /// E-mail addresses.
    Email,
    /// Telephone numbers: with a country code, or in the North American form.
    Phone,
    /// IPv4 and IPv6 addresses.
    Ip,
    /// Hardware addresses of network devices.
    Mac,
    /// JSON web tokens.
    Jwt,
    /// Keys of APIs with a known prefix.
    ApiKey,
    /// Addresses of Bitcoin and Ethereum wallets. Bitcoin's by their checksum.
    Crypto,
    /// Social security numbers of the United States.
    UsSsn,
    /// NHS numbers of the United Kingdom, by their check digit.
    UkNhs,
    /// Tax identification numbers of Spain (NIF and NIE), by their check letter.
    EsNif,
    /// Tax codes of Italy (codice fiscale), by their check letter.
    ItFiscalCode,
    /// PESEL numbers of Poland, by their check digit.
    PlPesel,
    /// Aadhaar numbers of India, by their check digit.
    InAadhaar,
    /// Personal identity codes of Finland, by their check character.
    FiPersonId,
}

impl PiiEntity {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::Card,
        Self::Iban,
        Self::Email,
        Self::Phone,
        Self::Ip,
        Self::Mac,
        Self::Jwt,
        Self::ApiKey,
        Self::Crypto,
        Self::UsSsn,
        Self::UkNhs,
        Self::EsNif,
        Self::ItFiscalCode,
        Self::PlPesel,
        Self::InAadhaar,
        Self::FiPersonId,
    ];

    /// The text that replaces a value of this kind.
    pub const fn placeholder(self) -> &'static str {
        match self {
            Self::Card => "<CARD>",
            Self::Iban => "<IBAN>",
            Self::Email => "<EMAIL>",
            Self::Phone => "<PHONE>",
            Self::Ip => "<IP>",
            Self::Mac => "<MAC>",
            Self::Jwt => "<JWT>",
            Self::ApiKey => "<API_KEY>",
            Self::Crypto => "<CRYPTO>",
            Self::UsSsn => "<US_SSN>",
            Self::UkNhs => "<UK_NHS>",
            Self::EsNif => "<ES_NIF>",
            Self::ItFiscalCode => "<IT_FISCAL_CODE>",
            Self::PlPesel => "<PL_PESEL>",
            Self::InAadhaar => "<IN_AADHAAR>",
            Self::FiPersonId => "<FI_PERSON_ID>",
        }
    }
}

impl PiiEntity {
    /// The label of numbered placeholders: [`Self::placeholder`] without its brackets.
    pub(crate) fn label(self) -> &'static str {
        self.placeholder().trim_matches(['<', '>'])
    }
}

/// A pattern of one kind of value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PiiPattern {
    pub(crate) entity: PiiEntity,
    /// In the syntax of the `regex` crate.
    pub(crate) pattern: &'static str,
    /// The longest value that is recognised, in characters.
    pub(crate) window: usize,
    /// Checks a match. `None` if the pattern decides alone.
    pub(crate) check: Option<ValueCheck>,
}

/// Returns the bytes that the value takes at the start of the match. `None` if there is no value.
pub(crate) type ValueCheck = fn(&str) -> Option<usize>;

/// The patterns of `entities`. All patterns if it is empty.
pub(crate) fn patterns_of(entities: &[PiiEntity]) -> impl Iterator<Item = &'static PiiPattern> {
    let is_named = move |pattern: &&PiiPattern| entities.is_empty() || entities.contains(&pattern.entity);
    PATTERNS.iter().filter(is_named)
}

const fn pattern(
    entity: PiiEntity,
    pattern: &'static str,
    window: usize,
    check: Option<ValueCheck>,
) -> PiiPattern {
    PiiPattern { entity, pattern, window, check }
}

/// In the order in which they are tried at a place.
static PATTERNS: [PiiPattern; 24] = [
    pattern(
        PiiEntity::Card,
        r"\b(?:4\d{3}|5[0-5]\d{2}|6\d{3}|1\d{3}|3\d{3})[- ]?\d{3,4}[- ]?\d{3,4}[- ]?\d{3,5}\b",
        24,
        Some(checks::card),
    ),
    pattern(
        PiiEntity::Iban,
        r"(?i)\b[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,4})?\b",
        48,
        Some(checks::iban),
    ),
    pattern(
        PiiEntity::Email,
        r"\b[\w!#$%&'*+/=?^`{|}~-](?:[\w.!#$%&'*+/=?^`{|}~-]*[\w!#$%&'*+/=?^`{|}~-])?@(?:\w+(?:-+\w+)*\.)+[\pL\pN-]*\pL{2}\b",
        320,
        Some(checks::email),
    ),
    pattern(PiiEntity::Phone, r"\+[1-9](?:[ ().-]{0,2}[0-9]){7,14}\b", 48, Some(checks::phone)),
    pattern(
        PiiEntity::Phone,
        r"(?:\b1[ .-])?(?:\([2-9][0-9]{2}\) ?|\b[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4}\b",
        24,
        None,
    ),
    pattern(
        PiiEntity::Ip,
        r"\b(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})\b",
        15,
        Some(checks::ip),
    ),
    pattern(PiiEntity::Ip, r"(?i)[0-9a-f:]*:[0-9a-f:.]+", 45, Some(checks::ipv6)),
    pattern(PiiEntity::Mac, r"(?i)\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", 17, None),
    pattern(PiiEntity::Mac, r"(?i)\b(?:[0-9a-f]{2}-){5}[0-9a-f]{2}\b", 17, None),
    pattern(PiiEntity::Mac, r"(?i)\b(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}\b", 14, None),
    pattern(PiiEntity::Jwt, r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+", 16_384, None),
    pattern(
        PiiEntity::ApiKey,
        r"\b(?:sk|rk|pk)[-_][A-Za-z0-9][A-Za-z0-9_-]{18,}[A-Za-z0-9]",
        256,
        Some(checks::has_digit_and_letter),
    ),
    pattern(
        PiiEntity::ApiKey,
        r"\b(?:gh[opsur]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,}|xox[abeprs]-[A-Za-z0-9-]{10,}|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{40,}|dckr_pat_[A-Za-z0-9_-]{20,}|SG\.[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,})",
        512,
        None,
    ),
    pattern(
        PiiEntity::ApiKey,
        r"\b(?:(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b|AIza[A-Za-z0-9_-]{35})",
        40,
        None,
    ),
    pattern(PiiEntity::Crypto, r"\b[13][1-9A-HJ-NP-Za-km-z]{25,34}\b", 35, Some(checks::bitcoin_base58)),
    pattern(PiiEntity::Crypto, r"(?i)\bbc1[02-9ac-hj-np-z]{11,71}\b", 90, Some(checks::bitcoin_bech32)),
    pattern(PiiEntity::Crypto, r"\b0x[0-9a-fA-F]{40}\b", 42, None),
    pattern(PiiEntity::UsSsn, r"\b[0-9]{3}[- .][0-9]{2}[- .][0-9]{4}\b", 11, Some(checks::us_ssn)),
    pattern(PiiEntity::UkNhs, r"\b[0-9]{3}[- ]?[0-9]{3}[- ]?[0-9]{4}\b", 12, Some(checks::uk_nhs)),
    pattern(PiiEntity::EsNif, r"\b[0-9XYZ]?[0-9]{7}-?[A-Z]\b", 10, Some(checks::es_nif)),
    pattern(
        PiiEntity::ItFiscalCode,
        r"(?i)\b[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPR-T][0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{3}[A-Z]\b",
        16,
        Some(checks::it_fiscal_code),
    ),
    pattern(PiiEntity::PlPesel, r"\b[0-9]{2}[0-9][0-9][0-9]{2}[0-9]{5}\b", 11, Some(checks::pl_pesel)),
    pattern(
        PiiEntity::InAadhaar,
        r"\b[2-9][0-9]{3}[- :]?[0-9]{4}[- :]?[0-9]{4}\b",
        14,
        Some(checks::in_aadhaar),
    ),
    pattern(
        PiiEntity::FiPersonId,
        r"(?i)\b[0-9]{6}[+ABCDEFYXWVU-][0-9]{3}[0-9A-Z]\b",
        11,
        Some(checks::fi_person_id),
    ),
];

#[cfg(test)]
mod tests;
