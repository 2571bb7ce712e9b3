//! Lock-free pinning (fast GUP).
//!
//! The walk is under the epoch, so the tables that it finds are valid tables, but their entries may be stale.
//! So the page is pinned first, whatever it is by now, and then everything is checked again:
//!
//! - *The entries* are what they were: the page was not unmapped or copied, nor has its table moved, since. A
//!   thread that puts something else in its place after that finds it pinned: it clears the entry (a collapse
//!   unlinks the table), then looks for pins, with a barrier between, as there is one between the pin and the
//!   second look at the entries.
//! - *The folio* is the one that the frame lay in: it was not split, nor freed and reused, before it was
//!   pinned.
//! - *Shared memory*: the entry allows writes. As in Linux no file needs to know of a pin of it; files that
//!   are written back are left to the slow path, which holds them open. Who truncates, splits or pages a
//!   folio out, or seals it, unmaps it and then finds the pin, or the pin finds the entry changed.
//! - *No fork* is under way or was since the first look. A fork looks for pins before it shares a page; with
//!   a barrier between its note and that look, and one between the pin and the look for the note, one of the
//!   two sees the other (Linux has `write_protect_seq` for this).
//!
//! If any check fails, or the page is not certainly exclusive to the program, the slow path decides under the
//! locks.

use crate::caller::Caller;
use crate::calls::pin::PinnedPage;
use quire_arch::{Access, Entry, LeafFlags, Level, PagingFormat, Pfn, Platform, VirtAddr};
use quire_frame::{Folio, FrameChain, Kind, Pinned};
use quire_pagetable::{Found, Tables};
use quire_sync::atomic::raw::Ordering as EntryOrdering;
use quire_sync::atomic::{Ordering, fence};

/// The result of a lock-free walk: the place, and the entry itself.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    table: Pfn,
    index: usize,
    raw: u64,
    pfn: Pfn,
    writable: bool,
}

/// The entry that maps `addr` for `access`. Under the epoch.
fn see<P: Platform>(tables: &Tables<'_, P>, addr: VirtAddr, access: Access) -> Option<Seen> {
    // Above lies the kernel's half of the root, which is not walked here.
    if addr >= P::Paging::USER_END {
        return None;
    }
    let (table, index, level) = match tables.lookup(addr) {
        Found::Table(table) => (table, P::Paging::index(addr, Level::PTE), Level::PTE),
        Found::Huge(slot) => (slot.table, slot.index, Level::PMD),
        Found::Nothing => return None,
    };
    let raw = tables.entries(table)[index].load(EntryOrdering::Acquire);
    let Entry::Leaf(leaf) = P::Paging::decode(raw, level) else { return None };
    let usable = leaf.flags.contains(access.needs()) && !leaf.flags.contains(LeafFlags::SPECIAL);
    let nth = if level == Level::PTE { 0 } else { P::Paging::index(addr, Level::PTE) as u64 };
    let writable = leaf.flags.contains(LeafFlags::WRITE);
    usable.then_some(Seen { table, index, raw, pfn: leaf.pfn.offset(nth), writable })
}

pub(crate) fn pin_page_fast<P: Platform>(
    caller: Caller<'_, P>,
    addr: VirtAddr,
    access: Access,
) -> Option<Pfn> {
    let pin = caller.spaces.platform().pin();
    let _epoch = caller.spaces.frames().epoch().enter(&pin);
    let forks = &caller.core.forks;
    let number = forks.read()?;
    let seen = see(&caller.tables(), addr, access)?;
    let folio = match caller.spaces.frames().folios().try_pin_folio(seen.pfn) {
        Pinned::Folio(folio) => folio,
        Pinned::Nothing => return None,
        Pinned::Another(head) => {
            end_pin(caller, head);
            return None;
        }
    };
    // Pairs with those of a fork, a collapse, a page-out, a copy on write and a replacement by the zero
    // page, between what they change and their looks for pins.
    fence(Ordering::SeqCst);
    if see(&caller.tables(), addr, access) == Some(seen)
        && is_own(&folio, seen.writable)
        && forks.unchanged(number)
    {
        return Some(seen.pfn);
    }
    end_pin(caller, seen.pfn);
    None
}

/// Drops a pin that was not used.
#[cold]
fn end_pin<P: Platform>(caller: Caller<'_, P>, pfn: Pfn) {
    let pin = caller.spaces.platform().pin();
    let mut chain = FrameChain::new();
    PinnedPage::unpin(caller.spaces, &mut chain, pfn);
    caller.spaces.frames().free_chain(&pin, chain);
}

/// Whether no later write of the program to a page of `folio`, which is pinned, gets a copy: it is certain to
/// be exclusive to the program; or it is shared memory, which only a shared mapping maps `writable`.
fn is_own(folio: &Folio<'_>, writable: bool) -> bool {
    match folio.kind() {
        Kind::Anonymous => folio.is_exclusive(),
        Kind::Shmem => writable,
        _ => false,
    }
}
