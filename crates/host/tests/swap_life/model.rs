//! What a space must hold.

use crate::common::{PAGE, Random};
use std::collections::BTreeMap;

/// Words of a page that are written and checked. Others are zero unless the page is [full](Page::full).
pub(crate) const WORDS: [u64; 4] = [0, 1000, 2048, 4088];

/// What is known of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    /// What was written last: zero if nothing was.
    pub(crate) value: u64,
    /// All words were written, and do not compress.
    pub(crate) full: bool,
    /// It may read as zeros until it is written again.
    pub(crate) lazy: bool,
    pub(crate) writable: bool,
    pub(crate) locked: bool,
}

impl Page {
    pub(crate) const NEW: Self = Self { value: 0, full: false, lazy: false, writable: true, locked: false };

    /// The word at `offset` of a page with this value.
    pub(crate) fn word(value: u64, offset: u64) -> u64 {
        if value == 0 { 0 } else { Random(value ^ offset << 32).next() | 1 }
    }

    /// All bytes of a full page.
    pub(crate) fn bytes(value: u64) -> Vec<u8> {
        (0..PAGE / 8).flat_map(|word| Self::word(value, word * 8).to_ne_bytes()).collect()
    }
}

/// The pages of a space by their number.
pub(crate) type Pages = BTreeMap<u64, Page>;
