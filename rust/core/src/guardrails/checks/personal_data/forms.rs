//! Forms of personal data: patterns of candidates, and what confirms them, such as check digits.

use std::{net::IpAddr, ops::Range, sync::LazyLock};

use regex::Regex;
use serde::Deserialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Category {
    EmailAddress,
    Iban,
    CreditCard,
    IpAddress,
    Ssn,
    PhoneNumber,
    Name,
    LocationAddress,
}

impl Category {
    pub fn name(self) -> &'static str {
        match self {
            Self::EmailAddress => "EMAIL_ADDRESS",
            Self::Iban => "IBAN",
            Self::CreditCard => "CREDIT_CARD",
            Self::IpAddress => "IP_ADDRESS",
            Self::Ssn => "SSN",
            Self::PhoneNumber => "PHONE_NUMBER",
            Self::Name => "NAME",
            Self::LocationAddress => "LOCATION_ADDRESS",
        }
    }

    /// Returns the pattern that finds candidates; `None` if a model finds data of this category.
    pub fn pattern(self) -> Option<&'static LazyLock<Regex>> {
        match self {
            Self::EmailAddress => Some(&EMAIL),
            Self::Iban => Some(&IBAN),
            Self::CreditCard => Some(&CARD),
            Self::IpAddress => Some(&IP),
            Self::Ssn => Some(&SSN),
            Self::PhoneNumber => Some(&PHONE),
            Self::Name | Self::LocationAddress => None,
        }
    }

    /// Returns true if a candidate is of this category.
    fn confirms(self, candidate: &str) -> bool {
        let digits: String = candidate.chars().filter(char::is_ascii_digit).collect();
        match self {
            Self::EmailAddress => is_email(candidate),
            Self::Iban => is_iban(candidate),
            Self::CreditCard => is_card_number(&digits),
            Self::IpAddress => is_ip_address(candidate),
            Self::Ssn => is_ssn(&digits),
            Self::PhoneNumber => is_phone_number(candidate, &digits),
            Self::Name | Self::LocationAddress => true,
        }
    }

    /// Returns the longest part at the start of a candidate that is of this category. It ends between words, because
    /// the candidate may continue with another number.
    pub fn confirm(self, text: &str, candidate: Range<usize>) -> Option<Range<usize>> {
        let is_fixed = matches!(self, Self::EmailAddress | Self::Ssn);
        let is_end = |end: &usize| *end == candidate.end || !is_fixed && !continues(text[*end..].chars().next());
        let ends = (candidate.start + 1..=candidate.end).rev().filter(is_end).take(MAX_MATCH_ENDS);
        let mut ranges = ends.map(|end| candidate.start..end);
        ranges.find(|range| {
            let part = &text[range.clone()];
            let is_whole = part.ends_with(|letter: char| letter.is_ascii_alphanumeric()) || part.ends_with(':');
            is_whole && has_word_boundaries(text, range) && !self.is_part_of_longer(text, range) && self.confirms(part)
        })
    }

    /// Returns true if the text around a range shows that it is a part of something else, such as a version number.
    fn is_part_of_longer(self, text: &str, range: &Range<usize>) -> bool {
        let (part, end) = (&text[range.clone()], range.end);
        let is_separator = |letter: &char| matches!(letter, '.' | ':');
        let mut rest = text[end..].chars();
        let next = rest.next().filter(is_separator);
        let is_followed = rest.next().is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == ':');
        let is_cut = text[..end].ends_with(':') && next == Some(':');
        let is_preceded = text[..range.start].ends_with(':');
        let is_longer = is_preceded || is_cut || next.is_some() && is_followed;
        self == Self::IpAddress && part.contains(':') && is_longer
    }

    /// Returns the position at which the search continues after a candidate that is not of this category.
    pub fn end_of_rejected(self, text: &str, candidate: Range<usize>) -> usize {
        if matches!(self, Self::EmailAddress) {
            return candidate.end;
        }
        // Another candidate may begin with the next word of this one.
        let bytes = &text.as_bytes()[candidate.clone()];
        let word = bytes.iter().position(u8::is_ascii_alphanumeric).unwrap_or(bytes.len());
        let length = bytes.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(bytes.len());
        candidate.start + if word > 0 { word } else { length.max(1) }
    }
}

/// Maximum number of end positions that are tried for one candidate.
const MAX_MATCH_ENDS: usize = 24;

/// Compiles a pattern of this file. Classes are ASCII, so that other text does not cost more.
fn pattern(source: &str) -> Regex {
    // A test compiles all patterns, so the fallback is never used.
    Regex::new(source).unwrap_or_else(|_| Regex::new("$^").unwrap_or_else(|_| unreachable!()))
}

static EMAIL: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)+",
    )
});
static IBAN: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?"));
static CARD: LazyLock<Regex> = LazyLock::new(|| pattern(r"[0-9](?:[ -]?[0-9]){12,18}"));
static IP: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:/[0-9]{1,3})?|(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4})(?:%[0-9A-Za-z]{1,15})?(?:/[0-9]{1,3})?",
    )
});
static SSN: LazyLock<Regex> = LazyLock::new(|| pattern(r"[0-9]{3}(?:-[0-9]{2}-| [0-9]{2} |\.[0-9]{2}\.)[0-9]{4}"));
static PHONE: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:\+|\(\+?)?[0-9](?:[ ()./-]{0,3}[0-9]){6,14}"));

fn is_email(candidate: &str) -> bool {
    let Some((local, domain)) = candidate.rsplit_once('@') else { return false };
    let top = domain.rsplit_once('.').map_or("", |(_, top)| top);
    local.len() <= 64
        && !local.starts_with('.')
        && !local.ends_with('.')
        && !local.contains("..")
        && top.len() >= 2
        && top.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn has_luhn_digit(digits: &str) -> bool {
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(index, byte)| {
            let digit = u32::from(byte - b'0');
            match (index % 2 == 1, digit) {
                (false, digit) => digit,
                (true, digit) if digit > 4 => digit * 2 - 9,
                (true, digit) => digit * 2,
            }
        })
        .sum();
    sum.is_multiple_of(10)
}

fn is_card_number(digits: &str) -> bool {
    // A time in milliseconds has 13 digits, and begins with 1.
    let is_time = digits.len() == 13 && digits.starts_with('1');
    (13..=19).contains(&digits.len()) && !is_time && has_luhn_digit(digits) && has_two_digits(digits)
}

/// Returns true for an address, which may have a zone and the length of a network.
fn is_ip_address(candidate: &str) -> bool {
    let (rest, length) = candidate.split_once('/').unwrap_or((candidate, ""));
    let (address, zone) = rest.split_once('%').unwrap_or((rest, ""));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let has_length = length.is_empty() || length.parse::<u8>().is_ok_and(|bits| bits <= longest);
    has_length && (zone.is_empty() || address.is_ipv6())
}

/// Returns false for a number such as 0000 0000 0000 0000, which has a valid check digit.
fn has_two_digits(digits: &str) -> bool {
    digits.bytes().any(|byte| Some(byte) != digits.bytes().next())
}

/// Lengths of account numbers by country (ISO 13616). Without them, a part of a number may have valid check digits.
const IBAN_LENGTHS: &[(&str, usize)] = &[
    ("AD", 24),
    ("AE", 23),
    ("AL", 28),
    ("AT", 20),
    ("AZ", 28),
    ("BA", 20),
    ("BE", 16),
    ("BG", 22),
    ("BH", 22),
    ("BI", 27),
    ("BR", 29),
    ("BY", 28),
    ("CH", 21),
    ("CR", 22),
    ("CY", 28),
    ("CZ", 24),
    ("DE", 22),
    ("DJ", 27),
    ("DK", 18),
    ("DO", 28),
    ("EE", 20),
    ("EG", 29),
    ("ES", 24),
    ("FI", 18),
    ("FK", 18),
    ("FO", 18),
    ("FR", 27),
    ("GB", 22),
    ("GE", 22),
    ("GI", 23),
    ("GL", 18),
    ("GR", 27),
    ("GT", 28),
    ("HR", 21),
    ("HU", 28),
    ("IE", 22),
    ("IL", 23),
    ("IQ", 23),
    ("IS", 26),
    ("IT", 27),
    ("JO", 30),
    ("KW", 30),
    ("KZ", 20),
    ("LB", 28),
    ("LC", 32),
    ("LI", 21),
    ("LT", 20),
    ("LU", 20),
    ("LV", 21),
    ("LY", 25),
    ("MC", 27),
    ("MD", 24),
    ("ME", 22),
    ("MK", 19),
    ("MN", 20),
    ("MR", 27),
    ("MT", 31),
    ("MU", 30),
    ("NI", 28),
    ("NL", 18),
    ("NO", 15),
    ("OM", 23),
    ("PK", 24),
    ("PL", 28),
    ("PS", 29),
    ("PT", 25),
    ("QA", 29),
    ("RO", 24),
    ("RS", 22),
    ("RU", 33),
    ("SA", 24),
    ("SC", 31),
    ("SD", 18),
    ("SE", 24),
    ("SI", 19),
    ("SK", 24),
    ("SM", 27),
    ("SO", 23),
    ("ST", 25),
    ("SV", 28),
    ("TL", 23),
    ("TN", 24),
    ("TR", 26),
    ("UA", 29),
    ("VA", 22),
    ("VG", 24),
    ("XK", 20),
    ("YE", 30),
];

fn is_iban(candidate: &str) -> bool {
    let plain: String = candidate.chars().filter(char::is_ascii_alphanumeric).collect();
    let expected = IBAN_LENGTHS.iter().find(|(country, _)| plain.starts_with(country)).map(|(_, length)| *length);
    if expected != Some(plain.len()) {
        return false;
    }
    let rearranged = plain[4..].bytes().chain(plain[..4].bytes());
    let remainder = rearranged.fold(0_u32, |remainder, byte| match byte {
        b'0'..=b'9' => (remainder * 10 + u32::from(byte - b'0')) % 97,
        byte => (remainder * 100 + u32::from(byte - b'A') + 10) % 97,
    });
    remainder == 1
}

fn is_ssn(digits: &str) -> bool {
    // Excludes numbers that are never assigned.
    let (area, rest) = digits.split_at(3);
    let (group, serial) = rest.split_at(2);
    !matches!(area, "000" | "666") && !area.starts_with('9') && group != "00" && serial != "0000"
}

fn is_phone_number(candidate: &str, digits: &str) -> bool {
    let has_separator = candidate.bytes().any(|byte| b" ()./-".contains(&byte));
    let is_north_american = |digits: &str| {
        let digits = if digits.len() == 11 { digits.strip_prefix('1').unwrap_or(digits) } else { digits };
        let begins = |at: usize| digits.as_bytes().get(at).is_some_and(|byte| (b'2'..=b'9').contains(byte));
        digits.len() == 10 && begins(0) && begins(3)
    };
    if candidate.starts_with('+') || candidate.starts_with("(+") {
        return (8..=15).contains(&digits.len());
    }
    // Dates and version numbers have separators too.
    let is_date = digits.len() == 8 && !candidate.starts_with('0');
    // A country code without its plus sign, and a number in groups of 3, 3 and 4.
    let groups: Vec<usize> =
        candidate.split(|letter: char| !letter.is_ascii_digit()).map(str::len).filter(|length| *length > 0).collect();
    let has_country = matches!(groups[..], [1..=3, 3, 3, 4]);
    // Numbers of mobile phones in China are written without separators.
    let is_chinese = candidate == digits
        && digits.len() == 11
        && digits.starts_with('1')
        && digits.as_bytes().get(1).is_some_and(|byte| (b'3'..=b'9').contains(byte));
    let is_national = digits.starts_with('0') && (9..=13).contains(&digits.len());
    is_chinese || has_separator && !is_date && (is_north_american(digits) || has_country || is_national)
}

fn continues(letter: Option<char>) -> bool {
    letter.is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// Returns true if no letter or digit continues the range on either side.
pub fn has_word_boundaries(text: &str, range: &Range<usize>) -> bool {
    !continues(text[..range.start].chars().next_back()) && !continues(text[range.end..].chars().next())
}
