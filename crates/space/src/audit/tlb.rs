//! The auditor's part: TLBs and sets of CPUs.

use super::{Report, SpaceViolation};
use crate::space::for_each_space;
use crate::spaces::Spaces;
use core::sync::atomic::Ordering;
use quire_arch::{CachedTranslation, CpuId, Entry, LeafFlags, Level, PagingFormat, Platform};
use quire_pagetable::{Found, Tables};

/// Each CPU is in the running set of the space that it runs, and in no other.
pub(super) fn audit_current<P: Platform>(spaces: &Spaces<P>, report: Report<'_>) {
    for_each_space(spaces, |core| {
        let running = core.tables.cpus.running();
        for cpu in (0..spaces.platform().cpu_count()).filter_map(CpuId::new) {
            let current = spaces.current().is_current(cpu, &core.tables);
            if current != running.contains(cpu) {
                report(SpaceViolation::Running { space: core.id(), cpu, current });
            }
        }
    });
}

/// Compares a cached translation with the tables of the space that could use it. One that no space can
/// use before its CPU flushes is dead, and ignored: that of a CPU that flushes skipped, or of a space that
/// has exited. Translations of the kernel's half are not checked: their tables are not known here.
pub(super) fn audit_cached<P: Platform>(spaces: &Spaces<P>, cached: CachedTranslation, report: Report<'_>) {
    if cached.addr >= P::Paging::USER_END {
        return;
    }
    for_each_space(spaces, |core| {
        if core.tables.asid() != cached.asid || !core.tables.cpus.live(cached.asid, cached.cpu) {
            return;
        }
        let tables = Tables::new(spaces.memory(), &core.tables);
        let place = match tables.lookup(cached.addr) {
            Found::Table(table) => Some((table, Level::PTE)),
            Found::Huge(slot) => Some((slot.table, Level::PMD)),
            Found::Nothing => None,
        };
        let backed = place.is_some_and(|(table, level)| {
            let index = P::Paging::index(cached.addr, level);
            let raw = tables.entries(table)[index].load(Ordering::Relaxed);
            // A translation may know less than the entry (not yet dirty, not yet writable), never more;
            // but for the accessed bit, which is cleared without a flush.
            matches!(P::Paging::decode(raw, level), Entry::Leaf(leaf)
                if leaf.pfn == cached.leaf.pfn
                    && level == cached.level
                    && leaf.flags.contains(cached.leaf.flags - LeafFlags::ACCESSED))
        });
        if !backed {
            report(SpaceViolation::StaleTranslation(cached));
        }
    });
}
