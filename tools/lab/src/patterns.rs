//! What pages are filled with.

use quire_arch::PAGE_SIZE;

/// The contents of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contents {
    /// Nothing but zeros.
    Zeros,
    /// A number, then nothing but zeros.
    Numbers,
    /// Half of it is random: compresses to about that.
    Half,
    /// Only random bytes.
    Noise,
}

const PAGE: usize = PAGE_SIZE as usize;
/// Pages of random bytes that differ.
const PATTERNS: usize = 16;

/// Pages to write, each of which gets its own number in front.
#[derive(Clone, Debug)]
pub(crate) struct Patterns {
    pages: Vec<[u8; PAGE]>,
    numbered: bool,
}

impl Patterns {
    /// Those of `contents`, the same in each run; none for zeros.
    pub(crate) fn of(contents: Contents) -> Self {
        let mut random = fastrand::Rng::with_seed(0x5eed);
        let noise = match contents {
            Contents::Zeros | Contents::Numbers => 0,
            Contents::Half => PAGE / 2,
            Contents::Noise => PAGE,
        };
        let page = |_| {
            let mut page = [0; PAGE];
            page[..noise].iter_mut().for_each(|byte| *byte = random.u8(..));
            page
        };
        let count = if noise > 0 { PATTERNS } else { 0 };
        Self { pages: (0..count).map(page).collect(), numbered: contents != Contents::Zeros }
    }

    /// What page `number` holds, but for its first word.
    pub(crate) fn page(&self, number: u64) -> Option<&[u8; PAGE]> {
        self.pages.get((number % PATTERNS as u64) as usize)
    }

    /// What the first word of page `number` is.
    pub(crate) fn first_word(&self, number: u64) -> u64 {
        if self.numbered { number + 1 } else { 0 }
    }
}
