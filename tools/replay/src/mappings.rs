//! The anonymous memory of mappings at one moment of a replay, by name.

use super::files::FileIds;
use super::sites::Sites;
use crate::space::HostSpace;
use quire_arch::VirtAddr;
use quire_mm::space::{Mapping, VmFlags};
use serde::{Deserialize, Serialize};

/// The anonymous memory of one mapping.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MappingLife {
    /// Its process: its place in [`ReplayReport::processes`](super::ReplayReport::processes).
    pub process: usize,
    /// Its first address.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// The name that Linux shows, without folders: `[heap]`, `[stack]`, a file's. Empty if it has none.
    pub name: String,
    /// Of a mapping without a name where most of it was mapped: a file and the offset in it, as
    /// `libjvm.so+0x8c12f4`. Empty if the recording does not say.
    pub site: String,
    /// Anonymous memory in it, in bytes.
    pub anonymous: u64,
    /// Of it, what may be freed at once where memory is short (`MADV_FREE`).
    pub lazily_free: u64,
}

/// Adds the mappings of `space`, whose number is `number`, that hold anonymous memory.
pub(super) fn add(
    space: &HostSpace<'_>,
    (process, number): (usize, usize),
    files: &FileIds<'_>,
    sites: &Sites,
    found: &mut Vec<MappingLife>,
) {
    let heap = heap(space);
    space.mappings().for_each_figures(|figures| {
        if figures.anonymous == 0 {
            return;
        }
        let mapping = &figures.mapping;
        let (start, end) = (mapping.range.start().0, mapping.range.end().0);
        let name = name(heap, files, mapping);
        let site = if name.is_empty() { sites.of(number, start, end) } else { None };
        let site = site.unwrap_or_default();
        let (anonymous, lazily_free) = (figures.anonymous, figures.lazy_free);
        found.push(MappingLife { process, start, end, name, site, anonymous, lazily_free });
    });
}

/// The heap of `space`: its start and its end. It takes the mmap lock, which a visit of mappings holds.
pub(super) fn heap(space: &HostSpace<'_>) -> (VirtAddr, VirtAddr) {
    (space.layout().brk_start, space.brk(VirtAddr(0)))
}

/// The name of a mapping of a space with this heap, as [`MappingLife::name`] has it.
pub(super) fn name(heap: (VirtAddr, VirtAddr), files: &FileIds<'_>, mapping: &Mapping) -> String {
    match mapping.file {
        Some(number) => files.name(number).unwrap_or_default(),
        None if mapping.range.start() < heap.1 && mapping.range.end() > heap.0 => "[heap]".to_owned(),
        None if mapping.flags.contains(VmFlags::GROWSDOWN) => "[stack]".to_owned(),
        None => String::new(),
    }
}
