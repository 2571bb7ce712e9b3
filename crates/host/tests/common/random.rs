//! Random programs: numbers by a seed, calls on ranges of pages, and what each page must hold afterwards.
//!
//! A test draws what a program does next, with weights of its own, and has a [`Process`] do it. The process
//! keeps its model of the contents beside its space.

use super::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A small random number generator (SplitMix64): the same seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True `percent` times in a hundred.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// One of `from`, each as often as the weight before it says.
    pub(crate) fn weighted<T: Copy>(&mut self, from: &[(u64, T)]) -> T {
        let mut left = self.below(from.iter().map(|(weight, _)| weight).sum());
        for &(weight, what) in from {
            if left < weight {
                return what;
            }
            left -= weight;
        }
        unreachable!("a number below the sum of the weights")
    }
}

/// A call on a range of pages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// Maps private anonymous memory there.
    Map(Protection),
    Unmap,
    Protect(Protection),
    Advise(Advice),
    /// `mremap` to so many pages. Page `to` is the new address of flags that take one.
    Remap {
        to: u64,
        pages: u64,
        flags: RemapFlags,
    },
}

impl Call {
    /// Moves a range of `pages` pages to page `to`, over whatever is there.
    pub(crate) fn move_to(to: u64, pages: u64) -> Self {
        Self::Remap { to, pages, flags: MOVE }
    }
}

/// What is known of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) protection: Protection,
    /// The first word: zero until it is written to.
    pub(crate) word: u64,
}

/// A space, or one thread's part of it, and what it must hold. Pages are numbered from `start`.
#[derive(Clone, Debug)]
pub(crate) struct Process<'m, F: PagingFormat = X86_64Level4> {
    pub(crate) space: Arc<HostSpace<'m, F>>,
    start: VirtAddr,
    /// All that are mapped.
    pub(crate) pages: BTreeMap<u64, Page>,
}

impl<'m, F: PagingFormat> Process<'m, F> {
    /// In a space where `mapped` are mapped for reading and writing, with nothing in them.
    pub(crate) fn new(
        space: impl Into<Arc<HostSpace<'m, F>>>,
        start: VirtAddr,
        mapped: impl IntoIterator<Item = u64>,
    ) -> Self {
        let pages = mapped.into_iter().map(|at| (at, Page { protection: RW, word: 0 })).collect();
        Self { space: space.into(), start, pages }
    }

    /// Maps `pages` pages at `start`.
    #[track_caller]
    pub(crate) fn with_pages(space: impl Into<Arc<HostSpace<'m, F>>>, start: VirtAddr, pages: u64) -> Self {
        let process = Self::new(space, start, 0..pages);
        map_at(&process.space, start.0, pages * PAGE, RW);
        process
    }

    pub(crate) fn fork(&self) -> Result<Self, Error> {
        Ok(Self { space: Arc::new(self.space.fork()?), start: self.start, pages: self.pages.clone() })
    }

    pub(crate) fn addr(&self, at: u64) -> VirtAddr {
        // Pages below the start have numbers that wrap.
        VirtAddr(self.start.0.wrapping_add(at.wrapping_mul(PAGE)))
    }

    fn number(&self, addr: VirtAddr) -> u64 {
        addr.0.wrapping_sub(self.start.0) / PAGE
    }

    /// The end of the pages of `range` that are mapped without a hole.
    pub(crate) fn hole(&self, range: Range<u64>) -> u64 {
        range.clone().find(|at| !self.pages.contains_key(at)).unwrap_or(range.end)
    }

    /// Makes a call on `range`. Where it fails for other reasons than a hole in the range the model stays as
    /// it is: see [`Self::reload`].
    pub(crate) fn call(&mut self, call: Call, range: Range<u64>) -> Result<(), Error> {
        let (addr, pages) = (self.addr(range.start), range.end - range.start);
        let (space, len) = (&self.space, pages * PAGE);
        match call {
            Call::Map(protection) => {
                space.mmap(&MapRequest::anonymous(len, protection).at(addr, MapFlags::FIXED))?;
                self.pages.extend(range.map(|at| (at, Page { protection, word: 0 })));
            }
            Call::Unmap => {
                space.munmap(addr, len)?;
                self.forget(range);
            }
            Call::Protect(protection) => {
                let done = space.mprotect(addr, len, protection, false);
                // The pages before a hole are changed all the same.
                if matches!(done, Ok(()) | Err(Error::NotMapped)) {
                    let changed = range.start..self.hole(range);
                    self.pages.range_mut(changed).for_each(|(_, page)| page.protection = protection);
                }
                done?;
            }
            Call::Advise(Advice::DontNeed) => {
                let done = space.madvise(addr, len, Advice::DontNeed);
                // The pages around a hole are dropped all the same.
                self.pages.range_mut(range).for_each(|(_, page)| page.word = 0);
                done?;
            }
            Call::Advise(advice) => space.madvise(addr, len, advice)?,
            Call::Remap { to, pages: new, flags } => {
                let moved = space.mremap(addr, len, new * PAGE, flags, self.addr(to))?;
                self.moved(range, self.number(moved), new, flags);
            }
        }
        Ok(())
    }

    fn forget(&mut self, range: Range<u64>) {
        for at in range {
            self.pages.remove(&at);
        }
    }

    /// `range` is at page `to` now, with so many pages.
    fn moved(&mut self, range: Range<u64>, to: u64, pages: u64, flags: RemapFlags) {
        let taken: Vec<_> = self.pages.range(range.clone()).map(|(&at, &page)| (at, page)).collect();
        if flags.contains(RemapFlags::DONTUNMAP) {
            self.pages.range_mut(range.clone()).for_each(|(_, page)| page.word = 0);
        } else {
            self.forget(range.clone());
        }
        let last = taken.last().expect("a page was moved").1;
        // Where a hole is in the range, what is mapped at its target stays.
        let kept = taken.into_iter().map(|(at, page)| (at - range.start, page));
        self.pages.extend(kept.filter(|&(at, _)| at < pages).map(|(at, page)| (to + at, page)));
        let grown = range.end - range.start..pages;
        self.pages.extend(grown.map(|at| (to + at, Page { word: 0, ..last })));
    }

    /// Writes `value` to a page. Panics if an access is allowed or refused against the model; other errors
    /// are for the caller.
    #[track_caller]
    pub(crate) fn write(&mut self, cpu: &Vcpu<F>, at: u64, value: u64) -> AccessResult<()> {
        let written = cpu.program(&*self.space).write_u64(self.addr(at), value);
        if matches!(written, Ok(()) | Err(NOT_MAPPED | DENIED)) {
            let expected = match self.pages.get_mut(&at) {
                None => Err(NOT_MAPPED),
                Some(page) if !page.protection.contains(Protection::WRITE) => Err(DENIED),
                Some(page) => {
                    page.word = value;
                    Ok(())
                }
            };
            assert_eq!(written, expected, "a write to page {at:#x}, at {:?}", self.addr(at));
        }
        written
    }

    /// Reads a page. Panics unless that returns what the model says; other errors are for the caller.
    #[track_caller]
    pub(crate) fn check(&self, cpu: &Vcpu<F>, at: u64) -> AccessResult<()> {
        let read = cpu.program(&*self.space).read_u64(self.addr(at));
        if let Err(error) = read
            && ![NOT_MAPPED, DENIED].contains(&error)
        {
            return Err(error);
        }
        let expected = match self.pages.get(&at) {
            None => Err(NOT_MAPPED),
            Some(page) if page.protection.is_empty() => Err(DENIED),
            Some(page) => Ok(page.word),
        };
        assert_eq!(read, expected, "page {at:#x}, at {:?}", self.addr(at));
        Ok(())
    }

    /// Checks all pages that are mapped.
    #[track_caller]
    pub(crate) fn check_all(&self, cpu: &Vcpu<F>) {
        for &at in self.pages.keys() {
            assert_eq!(self.check(cpu, at), Ok(()), "page {at:#x}");
        }
    }

    /// Adopts what the space holds, after a call that may have failed half way. What cannot be read is left
    /// out.
    pub(crate) fn reload(&mut self, cpu: &Vcpu<F>) {
        let program = cpu.program(&*self.space);
        let mut pages = BTreeMap::new();
        for (start, end, flags) in mappings(&self.space) {
            let rights = [
                (VmFlags::READ, Protection::READ),
                (VmFlags::WRITE, Protection::WRITE),
                (VmFlags::EXEC, Protection::EXECUTE),
            ];
            let protection = rights
                .into_iter()
                .filter(|&(flag, _)| flags.contains(flag))
                .map(|(_, right)| right)
                .collect();
            for addr in (start..end).step_by(PAGE as usize).map(VirtAddr) {
                if let Ok(word) = program.read_u64(addr) {
                    pages.insert(self.number(addr), Page { protection, word });
                }
            }
        }
        self.pages = pages;
    }
}
