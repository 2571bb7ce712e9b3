//! What a program does with its memory, and what it must find there.

use super::*;

/// Maps private anonymous memory exactly at `addr`.
#[track_caller]
pub(crate) fn map_at<P: Platform>(
    space: &Space<'_, P>,
    addr: u64,
    len: u64,
    protection: Protection,
) -> VirtAddr {
    let request = MapRequest::anonymous(len, protection).at(VirtAddr(addr), MapFlags::FIXED);
    space.mmap(&request).expect("a fixed mapping can be made")
}

/// Writes `value` to the word at `addr`.
#[track_caller]
pub(crate) fn write<F: PagingFormat>(cpu: &Vcpu<F>, space: &HostSpace<'_, F>, addr: VirtAddr, value: u64) {
    cpu.program(space).write_u64(addr, value).expect("mapped for writing");
}

/// The word at `addr`.
#[track_caller]
pub(crate) fn read<F: PagingFormat>(cpu: &Vcpu<F>, space: &HostSpace<'_, F>, addr: VirtAddr) -> u64 {
    cpu.program(space).read_u64(addr).expect("mapped")
}

/// Writes to each of `pages`, counted from `addr`: `first` to the first one there, one more to each further
/// one.
#[track_caller]
pub(crate) fn fill<F: PagingFormat>(
    cpu: &Vcpu<F>,
    space: &HostSpace<'_, F>,
    addr: VirtAddr,
    pages: impl IntoIterator<Item = u64>,
    first: u64,
) {
    for at in pages {
        write(cpu, space, page(addr, at), first + at);
    }
}

/// Panics unless the pages hold what [`fill`] wrote.
#[track_caller]
pub(crate) fn assert_filled<F: PagingFormat>(
    cpu: &Vcpu<F>,
    space: &HostSpace<'_, F>,
    addr: VirtAddr,
    pages: impl IntoIterator<Item = u64>,
    first: u64,
) {
    for at in pages {
        assert_eq!(read(cpu, space, page(addr, at)), first + at, "page {at} of {addr:?}");
    }
}

/// Maps `pages` pages at `addr` and fills them: see [`fill`].
#[track_caller]
pub(crate) fn map_filled<F: PagingFormat>(
    cpu: &Vcpu<F>,
    space: &HostSpace<'_, F>,
    addr: u64,
    pages: u64,
    first: u64,
) -> VirtAddr {
    let area = map_at(space, addr, pages * PAGE, RW);
    fill(cpu, space, area, 0..pages, first);
    area
}

/// [`cpu_and_space`], and there a mapping of `len` bytes at `addr`.
#[track_caller]
pub(crate) fn mapped<F: PagingFormat>(
    machine: &Machine<F>,
    addr: u64,
    len: u64,
) -> (Vcpu<F>, HostSpace<'_, F>, VirtAddr) {
    let (cpu, space) = cpu_and_space(machine);
    let area = map_at(&space, addr, len, RW);
    (cpu, space, area)
}

/// Maps blocks of 2 MiB that hold small pages, those with these numbers: see [`fill`].
#[track_caller]
pub(crate) fn map_small(
    cpu: &Vcpu,
    space: &HostSpace<'_>,
    (addr, blocks): (u64, u64),
    pages: impl IntoIterator<Item = u64>,
    first: u64,
) -> VirtAddr {
    let area = map_at(space, addr, blocks * MIB2, RW);
    space.madvise(area, blocks * MIB2, Advice::NoHugePage).expect("it is mapped");
    fill(cpu, space, area, pages, first);
    area
}

/// [`cpu_and_space`], and there `pages` pages at 1 GiB, which are filled: see [`fill`].
#[track_caller]
pub(crate) fn filled<F: PagingFormat>(
    machine: &Machine<F>,
    pages: u64,
    first: u64,
) -> (Vcpu<F>, HostSpace<'_, F>, VirtAddr) {
    let (cpu, space, area) = mapped(machine, GIB, pages * PAGE);
    fill(&cpu, &space, area, 0..pages, first);
    (cpu, space, area)
}

/// Writes to one page after the other, from `addr` on, until there is no memory.
pub(crate) fn fill_memory(cpu: &Vcpu, space: &HostSpace<'_>, addr: VirtAddr) {
    let program = cpu.program(space);
    _ = (0..).take_while(|&at| program.write_u64(page(addr, at), 1).is_ok()).count();
}

/// What the device reads that has `pinned` a page.
pub(crate) fn device_reads(machine: &Machine, pinned: &PinnedPage<'_, HostPlatform>) -> u64 {
    // SAFETY: the page is pinned, so it is a page of a program, whose first word this is.
    unsafe { machine.memory().platform().direct_map(pinned.pfn()).cast::<u64>().read_volatile() }
}

/// What it writes.
pub(crate) fn device_writes(machine: &Machine, pinned: &PinnedPage<'_, HostPlatform>, value: u64) {
    // SAFETY: the page is pinned, so it is a page of a program, whose first word this is.
    unsafe { machine.memory().platform().direct_map(pinned.pfn()).cast::<u64>().write_volatile(value) };
}

/// The frame of a page.
pub(crate) fn frame_of(space: &HostSpace<'_>, addr: VirtAddr) -> Pfn {
    space.pin_page(addr, Access::Read).expect("mapped").pfn()
}
