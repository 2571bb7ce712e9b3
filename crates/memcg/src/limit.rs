//! Limits, and how they and switches are written as text.

use crate::error::MemcgError;

/// A limit of a memcg.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Limit {
    /// No charge exceeds it.
    Max,
    /// A thread that charges past it reclaims, and is throttled.
    High,
    /// Nothing is reclaimed below it while unprotected memory is left elsewhere.
    Low,
    /// Nothing is reclaimed below it.
    Min,
    /// A thread that charges while more swap is used is held up.
    SwapHigh,
    /// The limit of swap.
    SwapMax,
    /// What of it compressed caches may have, compressed.
    ZswapMax,
}

/// A number at the front of `text` as Linux reads sizes (`memparse`), and what is behind it: decimal, octal
/// or hexadecimal, with a power of 1024 as suffix. No digit at all is zero; what does not fit in 64 bits
/// loses its upper ones.
pub(crate) fn parse_size(text: &str) -> (u64, &str) {
    let bytes = text.as_bytes();
    let hex = bytes.first() == Some(&b'0')
        && matches!(bytes.get(1), Some(b'x' | b'X'))
        && bytes.get(2).is_some_and(u8::is_ascii_hexdigit);
    let (radix, start) = match bytes.first() {
        Some(b'0') if hex => (16, 2),
        Some(b'0') => (8, 0),
        _ => (10, 0),
    };
    let digits = bytes[start..].iter().map_while(|&byte| char::from(byte).to_digit(radix));
    let (mut size, mut end) = (0u64, start);
    for digit in digits {
        size = size.wrapping_mul(u64::from(radix)).wrapping_add(u64::from(digit));
        end += 1;
    }
    let power = match bytes.get(end) {
        Some(b'K' | b'k') => 1,
        Some(b'M' | b'm') => 2,
        Some(b'G' | b'g') => 3,
        Some(b'T' | b't') => 4,
        Some(b'P' | b'p') => 5,
        Some(b'E' | b'e') => 6,
        _ => return (size, &text[end..]),
    };
    (size << (10 * power), &text[end + 1..])
}

/// A limit in bytes, or `None` for `max`.
pub(crate) fn parse_limit(text: &str) -> Result<Option<u64>, MemcgError> {
    let text = text.trim_ascii();
    if text == "max" {
        return Ok(None);
    }
    match parse_size(text) {
        (bytes, "") => Ok(Some(bytes)),
        _ => Err(MemcgError::BadValue),
    }
}

/// 0 or 1 as Linux reads it (`kstrtoint` of any base): with a sign or not, decimal, octal or hexadecimal.
pub(crate) fn parse_switch(text: &str) -> Result<bool, MemcgError> {
    let text = text.trim_ascii();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.strip_prefix('0') {
        Some(rest) if !rest.is_empty() => match rest.strip_prefix(['x', 'X']) {
            Some(hex) => (16, hex),
            None => (8, rest),
        },
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(MemcgError::BadValue);
    }
    let number = u64::from_str_radix(digits, radix).map_err(|_| MemcgError::OutOfRange)?;
    match number {
        0 => Ok(false),
        1 if !is_negative => Ok(true),
        _ if number > i32::MAX as u64 + u64::from(is_negative) => Err(MemcgError::OutOfRange),
        _ => Err(MemcgError::BadValue),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_linux_reads_them() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("1K", 1 << 10),
            ("2m", 2 << 20),
            ("3G", 3 << 30),
            ("1T", 1 << 40),
            ("1p", 1 << 50),
            ("1E", 1 << 60),
            ("0x10", 16),
            ("0XfK", 15 << 10),
            ("010", 8),
            ("", 0),
            ("K", 0),
            ("  5\n", 5),
            ("18446744073709551617", 1),
            ("16E", 0),
        ] {
            assert_eq!(parse_limit(text), Ok(Some(expected)), "{text:?}");
        }
        assert_eq!(parse_limit("max\n"), Ok(None));
        for text in ["-1", "+1", "1KB", "1 K", "08", "maximum", "Max", "0xg", "1.5G", "\u{e9}"] {
            assert_eq!(parse_limit(text), Err(MemcgError::BadValue), "{text:?}");
        }
    }

    #[test]
    fn switches_are_read_as_linux_reads_them() {
        for (text, expected) in [
            ("0", false),
            ("1\n", true),
            (" 1 ", true),
            ("+1", true),
            ("-0", false),
            ("0x1", true),
            ("01", true),
            ("00", false),
        ] {
            assert_eq!(parse_switch(text), Ok(expected), "{text:?}");
        }
        for text in ["", "2", "-1", "+-1", "0x", "08", "1K", "yes", "1 1", "2147483647", "-2147483648"] {
            assert_eq!(parse_switch(text), Err(MemcgError::BadValue), "{text:?}");
        }
        for text in ["2147483648", "-2147483649", "99999999999999999999"] {
            assert_eq!(parse_switch(text), Err(MemcgError::OutOfRange), "{text:?}");
        }
    }
}
