//! Limits, and how they are written as text.

use crate::Memcgs;
use crate::counter::UNLIMITED;
use crate::error::MemcgError;
use crate::id::MemcgId;
use crate::outcome::WriteOutcome;
use quire_arch::{PAGE_SHIFT, Platform};
use quire_sync::atomic::Ordering;

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
    /// The limit of swap.
    SwapMax,
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

impl<P: Platform> Memcgs<P> {
    /// Sets a limit in bytes, rounded down to pages, or no limit.
    ///
    /// # Errors
    ///
    /// [`MemcgError::Root`], [`MemcgError::NoMemcg`].
    pub fn set(&self, id: MemcgId, limit: Limit, bytes: Option<u64>) -> Result<WriteOutcome, MemcgError> {
        if id.is_root() {
            return Err(MemcgError::Root);
        }
        let pin = self.frames.platform().pin();
        let pages = bytes.map_or(UNLIMITED, |bytes| (bytes >> PAGE_SHIFT).min(UNLIMITED));
        {
            // Against a removal, after which there are no claims.
            let _registry = self.registry.lock();
            let memcg = self.online(id)?;
            match limit {
                Limit::Max => memcg.memory.set_max(pages),
                Limit::High => memcg.high.store(pages, Ordering::Relaxed),
                Limit::Low => self.set_min_and_low(memcg, memcg.min.setting(), pages),
                Limit::Min => self.set_min_and_low(memcg, pages, memcg.low.setting()),
                Limit::SwapMax => memcg.swap.set_max(pages),
            }
        }
        if matches!(limit, Limit::Max | Limit::High) && self.usage(id) > pages {
            self.drain_stocks_of(&pin, |whose| self.is_below(whose, id));
        }
        Ok(match limit {
            Limit::Max if self.pages_over(id, limit) > 0 => WriteOutcome::AboveMax,
            Limit::High if self.pages_over(id, limit) > 0 => WriteOutcome::AboveHigh,
            _ => WriteOutcome::Done,
        })
    }

    /// By how many pages the memcg is over its `memory.max` or `memory.high` now.
    pub fn pages_over(&self, id: MemcgId, limit: Limit) -> u64 {
        match limit {
            Limit::Max | Limit::High => {
                let most = self.limit(id, limit).map_or(UNLIMITED, |bytes| bytes >> PAGE_SHIFT);
                self.usage(id).saturating_sub(most)
            }
            Limit::Low | Limit::Min | Limit::SwapMax => 0,
        }
    }

    /// A limit in bytes, or `None` if there is none.
    pub fn limit(&self, id: MemcgId, limit: Limit) -> Option<u64> {
        let memcg = self.table.get(id)?;
        let pages = match limit {
            Limit::Max => memcg.memory.max(),
            Limit::High => memcg.high.load(Ordering::Relaxed),
            Limit::Low => memcg.low.setting(),
            Limit::Min => memcg.min.setting(),
            Limit::SwapMax => memcg.swap.max(),
        };
        (pages < UNLIMITED).then_some(pages << PAGE_SHIFT)
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
}
