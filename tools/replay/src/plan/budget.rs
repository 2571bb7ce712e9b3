//! What a plan, and the replay of what it was made for, may cost: the numbers of a recording are only claims.
//!
//! Each event adds to what may be spent, so that a long recording may cost more than a short one. What an
//! event costs beyond that comes out of what ordinary recordings need in all.

/// What the events of a recording may claim together, beyond something for each of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Claims {
    /// What ordinary recordings need: a few seconds, and less than half a GiB.
    #[default]
    Ordinary,
    /// A 4096th of that, and of pages a 16384th: a few milliseconds.
    Few,
}

impl Claims {
    /// What is left of a bound for ordinary recordings.
    pub(crate) fn of(self, ordinary: u64) -> u64 {
        match self {
            Self::Ordinary => ordinary,
            Self::Few => ordinary >> 12,
        }
    }
}

/// What may still be spent.
#[derive(Debug)]
pub(super) struct Budget {
    /// Blocks that may be told apart. Beyond, touches are counted without looking whether they are new.
    pub(super) blocks: u64,
    /// What the plan may look at.
    work: u64,
    /// Pages that events may bring in, or walk over, without being touches of each: the time of a replay.
    pages: u64,
    /// Bytes that the plan may take beside blocks, and a replay beside its machine.
    bytes: u64,
}

/// What walking over a page table costs, in pages that are brought in.
pub(super) const PAGES_OF_WALK: u64 = 32;
/// What it costs a plan to change a block, where a look at a mapping costs 1.
const WORK_OF_EDIT: u64 = 8;

impl Budget {
    /// What ordinary recordings need.
    pub(super) const FIRST: Self = Self { blocks: 1 << 18, work: 1 << 26, pages: 1 << 26, bytes: 1 << 28 };

    /// A 16th of that, for tests.
    #[cfg(test)]
    pub(super) const SMALL: Self = Self { blocks: 1 << 14, work: 1 << 22, pages: 1 << 22, bytes: 1 << 24 };

    /// What a recording may claim.
    pub(super) fn of(claims: Claims) -> Self {
        let Self { blocks, work, pages, bytes } = Self::FIRST;
        let [blocks, work, pages, bytes] = [blocks, work, pages, bytes].map(|bound| claims.of(bound));
        // Each page is a step of the replay, of its end, and of an audit.
        let pages = if claims == Claims::Few { pages / 4 } else { pages };
        Self { blocks, work, pages, bytes }
    }

    /// Each event may cost something.
    pub(super) fn event(&mut self) {
        self.work += 8;
        self.pages += 64;
        self.bytes += 64;
    }

    /// The plan looks at so many things; `false` if that is too much.
    pub(super) fn visit(&mut self, count: u64) -> bool {
        take(&mut self.work, count)
    }

    /// The plan changes so many blocks.
    pub(super) fn edit(&mut self, blocks: u64) -> bool {
        self.visit(blocks.saturating_mul(WORK_OF_EDIT))
    }

    /// An event names so many pages; `false` if that is too much.
    pub(super) fn bring_in(&mut self, pages: u64) -> bool {
        take(&mut self.pages, pages)
    }

    /// The plan and the replay look at so many mappings, or make them.
    pub(super) fn mappings(&mut self, count: u64) -> bool {
        self.visit(count) && self.bring_in(count)
    }

    /// A call walks over so many page tables, which the plan visits too.
    pub(super) fn walk(&mut self, tables: u64) -> bool {
        self.visit(tables) && self.bring_in(tables.saturating_mul(PAGES_OF_WALK))
    }

    /// So many bytes are taken; `false` if there may be no more.
    pub(super) fn hold(&mut self, bytes: u64) -> bool {
        take(&mut self.bytes, bytes)
    }

    /// So many bytes are given back.
    pub(super) fn release(&mut self, bytes: u64) {
        self.bytes += bytes;
    }
}

fn take(from: &mut u64, count: u64) -> bool {
    let left = from.checked_sub(count);
    *from = left.unwrap_or(0);
    left.is_some()
}
