//! What a space must hold.

use crate::common::{AccessResult, DENIED, HostSpace, MIB2, PAGE, RW, Random};
use quire_arch::VirtAddr;
use quire_host::Vcpu;
use quire_mm::space::{Advice, Error, MapFlags, MapRequest};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Where the arena of every space begins: aligned to the largest folio, and below a border of tables.
pub(crate) const BASE: u64 = (1 << 30) - MIB2;
/// Pages of an arena.
pub(crate) const ARENA: u64 = 3072;

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

    /// The same page without its contents.
    pub(crate) fn emptied(self) -> Self {
        Self { writable: self.writable, locked: self.locked, ..Self::NEW }
    }

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

/// The address of a page.
pub(crate) fn addr(number: u64) -> VirtAddr {
    VirtAddr(BASE + number * PAGE)
}

/// What a range takes in bytes.
pub(crate) fn bytes(range: &Range<u64>) -> u64 {
    (range.end - range.start) * PAGE
}

/// Any pages of the arena: up to one of these lengths.
pub(crate) fn any_range(random: &mut Random, longest: &[u64]) -> Range<u64> {
    let longest = random.pick(longest);
    let len = 1 + random.below(longest);
    let first = random.below(ARENA - len);
    first..first + len
}

/// A space and what it must hold. Threads that share a space each know their own pages of it.
pub(crate) struct Mind<'m> {
    pub(crate) space: Arc<HostSpace<'m>>,
    pub(crate) pages: Pages,
}

impl Mind<'_> {
    /// A page that is mapped.
    pub(crate) fn any_page(&self, random: &mut Random) -> Option<u64> {
        let from = random.below(ARENA);
        self.pages.range(from..).chain(self.pages.range(..from)).next().map(|(&at, _)| at)
    }

    /// The page, of which the caller knows that it is mapped.
    pub(crate) fn page(&mut self, at: u64) -> &mut Page {
        self.pages.get_mut(&at).expect("the caller looked")
    }

    /// Writes a page. One that is half written when an error comes is dropped.
    pub(crate) fn write(&mut self, cpu: &Vcpu, at: u64, value: u64, full: bool) -> AccessResult<()> {
        let mut begun = false;
        let result = self.write_words(cpu, at, value, full, &mut begun);
        match result {
            Ok(()) => *self.page(at) = Page { value, full, lazy: false, ..*self.page(at) },
            // The caller may write it anew when that is allowed again.
            Err(DENIED) => {}
            Err(_) if begun => self.forget(at..at + 1),
            Err(_) => {}
        }
        result
    }

    fn write_words(&self, cpu: &Vcpu, at: u64, value: u64, full: bool, begun: &mut bool) -> AccessResult<()> {
        let program = cpu.program(&*self.space);
        for offset in WORDS {
            program.write_u64(VirtAddr(addr(at).0 + offset), Page::word(value, offset))?;
            *begun = true;
        }
        if full { program.write(addr(at), &Page::bytes(value)) } else { Ok(()) }
    }

    /// Reads a page, which must hold what the model says.
    pub(crate) fn check(&mut self, cpu: &Vcpu, at: u64) -> AccessResult<()> {
        let program = cpu.program(&*self.space);
        let page = self.pages.get_mut(&at).expect("the caller looked");
        for offset in WORDS {
            match program.read_u64(VirtAddr(addr(at).0 + offset))? {
                0 if page.lazy => *page = Page { value: 0, full: false, lazy: false, ..*page },
                seen => assert_eq!(seen, Page::word(page.value, offset), "page {at} at {offset}: {page:?}"),
            }
        }
        if page.full && !page.lazy {
            let mut bytes = vec![0; PAGE as usize];
            program.read(addr(at), &mut bytes)?;
            assert!(bytes == Page::bytes(page.value), "page {at}: {page:?}");
        }
        Ok(())
    }

    pub(crate) fn map(&mut self, range: Range<u64>) -> Result<(), Error> {
        let request = MapRequest::anonymous(bytes(&range), RW).at(addr(range.start), MapFlags::FIXED);
        self.space.mmap(&request)?;
        self.pages.extend(range.map(|at| (at, Page::NEW)));
        Ok(())
    }

    pub(crate) fn unmap(&mut self, range: Range<u64>) -> Result<(), Error> {
        self.space.munmap(addr(range.start), bytes(&range))?;
        self.pages.retain(|at, _| !range.contains(at));
        Ok(())
    }

    /// Drops the contents of mapped pages, also of locked ones.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        self.advise(&range, Advice::DontNeedLocked).expect("dropping a page cannot fail");
        self.pages.range_mut(range).for_each(|(_, page)| *page = page.emptied());
    }

    /// What is freed lazily may be there as before, or read as zeros.
    pub(crate) fn free(&mut self, range: Range<u64>) -> Result<(), Error> {
        let result = self.advise(&range, Advice::Free);
        for (_, page) in self.pages.range_mut(range) {
            page.lazy |= page.value != 0 && !page.locked;
        }
        result
    }

    pub(crate) fn advise(&self, range: &Range<u64>, advice: Advice) -> Result<(), Error> {
        self.space.madvise(addr(range.start), bytes(range), advice)
    }

    /// How many pages are locked.
    pub(crate) fn locked(&self) -> usize {
        self.pages.values().filter(|page| page.locked).count()
    }

    /// Unlocks the first locked page, if there is one.
    pub(crate) fn unlock(&mut self) -> Result<(), Error> {
        if let Some((&at, page)) = self.pages.iter_mut().find(|(_, page)| page.locked) {
            self.space.munlock(addr(at), PAGE)?;
            page.locked = false;
        }
        Ok(())
    }

    pub(crate) fn fork(&self) -> Result<Self, Error> {
        let unlocked = |(&at, page): (&u64, &Page)| (at, Page { locked: false, ..*page });
        let pages = self.pages.iter().map(unlocked).collect();
        Ok(Self { space: Arc::new(self.space.fork()?), pages })
    }
}
