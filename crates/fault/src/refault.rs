//! Refaults: whether pages were evicted too soon.
//!
//! A list's age is incremented for each page evicted from it and for each page activated
//! (`MemcgFolios::advance`). The shadow of a page holds its list's age at eviction. So the difference to the
//! current age is the number of pages evicted or activated since: had the list been longer by as many, the
//! page would not have been evicted. If that is no more than the number of active and of inactive file pages,
//! one of those should have been evicted instead, and the page is activated at once (Linux's workingset
//! detection, after Johannes Weiner).

use quire_arch::{Pfn, Pin, Platform};
use quire_frame::{FrameFlags, VmEvent};
use quire_memcg::{LruList, MemcgId, MemcgStat};
use quire_pagetable::MemoryCore;
use quire_swap::Shadow;

/// The list for a folio that refaults with `shadow`. Whether it was evicted too soon is a matter of the memcg
/// that evicted it; counted and aged is the one that it is charged to, which differ where the first was
/// removed.
pub(crate) fn refault<P: Platform>(
    memory: &MemoryCore<P>,
    pin: &Pin<'_, P>,
    head: Pfn,
    shadow: Option<Shadow>,
) -> LruList {
    let Some(shadow) = shadow else { return LruList::InactiveAnon };
    let memcgs = memory.memcgs();
    let events = memory.frames().events();
    let (evicted_from, node) = (MemcgId::from_bits(shadow.memcg()), shadow.node());
    let memcg = MemcgId::from_bits(memory.frames().known(head).as_folio().memcg());
    let pages = memory.frames().known(head).word().order().pages();
    let count = |event, stat| {
        events.add(pin, event, pages);
        memcgs.counters().add_stat(pin, memcg, stat, pages as i64);
    };
    count(VmEvent::WorkingsetRefaultAnon, MemcgStat::WorkingsetRefaultAnon);
    let (sizes, age) = memcgs.folios().sizes_and_age(evicted_from, node);
    // Pages that could be reclaimed instead of a private page.
    let kept = [LruList::ActiveAnon, LruList::ActiveFile, LruList::InactiveFile];
    let kept: u64 = kept.into_iter().map(|list| sizes[list as usize]).sum();
    if memory.swap().ages().distance(age, shadow) > kept {
        return LruList::InactiveAnon;
    }
    memcgs.folios().advance(memcg, node, pages);
    count(VmEvent::WorkingsetActivateAnon, MemcgStat::WorkingsetActivateAnon);
    if shadow.workingset() {
        memory.frames().known(head).set_flags(FrameFlags::WORKINGSET);
        count(VmEvent::WorkingsetRestoreAnon, MemcgStat::WorkingsetRestoreAnon);
    }
    LruList::ActiveAnon
}
