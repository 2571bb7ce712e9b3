//! `mincore`.

use super::page_range;
use crate::caller::Caller;
use crate::error::Error;
use core::ptr::NonNull;
use quire_arch::{PAGE_SHIFT, PagingFormat, Platform, VirtAddr, VirtRange};
use quire_file::{OpenFile, PageIndex};
use quire_pagetable::{MappedPage, Walker};
use quire_vma::{VmFlags, Vma};

/// Pages that are looked at at once.
const CHUNK: u64 = 1024;

pub(crate) fn mincore<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    len: u64,
    mut tell: impl FnMut(bool),
) -> Result<(), Error> {
    if addr.is_page_aligned() && addr.0.checked_add(len).is_none_or(|end| end > P::Paging::USER_END.0) {
        return Err(Error::OutOfRange);
    }
    let Some(range) = page_range(addr, len, Error::OutOfRange)? else { return Ok(()) };
    let mut at = range.start();
    while at < range.end() {
        let (mut found, mut pages) = ([0_u64; (CHUNK / 64) as usize], 0);
        let most = VirtRange::new(at, range.end()).pages().min(CHUNK);
        mincore_of_mapping(caller, at, most, |present| {
            found[pages / 64] |= u64::from(present) << (pages % 64);
            pages += 1;
        })?;
        (0..pages).for_each(|page| tell(found[page / 64] >> (page % 64) & 1 != 0));
        at = VirtAddr(at.0 + ((pages as u64) << PAGE_SHIFT));
    }
    Ok(())
}

/// The same for `pages` pages at most of one mapping.
pub(crate) fn mincore_of_mapping<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    pages: u64,
    mut tell: impl FnMut(bool),
) -> Result<(), Error> {
    let core = caller.core;
    let mappings = core.read_mappings(caller.spaces.platform());
    let vma = mappings.find(addr).ok_or(Error::NotMapped)?;
    let wanted = addr.0.saturating_add(pages.saturating_mul(1 << PAGE_SHIFT));
    let part = VirtRange::new(addr, vma.range().end().min(VirtAddr(wanted)));
    let snapshot = vma.snapshot();
    // SAFETY: the VMA holds its opening, and stays while the mmap lock is held.
    let opening = unsafe { snapshot.backing.opening() };
    // SAFETY: VMAs name openings of this machine's files only.
    let file = opening.map(|opening| unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file());
    if snapshot.flags.contains(VmFlags::HIDES_CACHE) {
        (0..part.pages()).for_each(|_| tell(true));
        return Ok(());
    }
    let is_cached = |addr: VirtAddr| {
        let index = PageIndex::new(snapshot.page_offset_at(addr));
        file.zip(index).is_some_and(|(file, index)| file.has_page(caller.spaces.swap(), index))
    };
    Walker::new(&caller.tables()).look_present(part, |run, seen| {
        for page in 0..run.pages() {
            // As in Linux an entry speaks for itself: what is paged out is no page of the file.
            tell(match seen {
                MappedPage::InMemory => true,
                MappedPage::Out => false,
                MappedPage::None => is_cached(VirtAddr(run.start().0 + (page << PAGE_SHIFT))),
            });
        }
    });
    Ok(())
}
