//! What is counted on a machine.

use super::*;

/// What is in use when all epochs have passed.
pub(crate) fn in_use<F: PagingFormat>(machine: &Machine<F>) -> InUse {
    machine.memory().in_use()
}

/// The mappings as `start-end flags` lines.
pub(crate) fn mappings<F: PagingFormat>(space: &HostSpace<'_, F>) -> Vec<(u64, u64, VmFlags)> {
    let mut all = Vec::new();
    space.mappings().for_each(|m| all.push((m.range.start().0, m.range.end().0, m.flags)));
    all
}

/// How many of the 512 pages at `area` map a page of zeros.
pub(crate) fn zeros(space: &HostSpace<'_>, area: VirtAddr) -> u64 {
    let mut pages = 0;
    space.mappings().pagemap(VirtRange::new(area, VirtAddr(area.0 + MIB2)), |range, state| {
        pages += if state == PageState::Zero { range.len() / PAGE } else { 0 };
    });
    pages
}

/// Frames that are not free, with nothing on CPU lists.
pub(crate) fn used_frames<F: PagingFormat>(machine: &Machine<F>) -> u64 {
    let frames = machine.memory().frames();
    frames.limbo().reap_all(&frames.platform().pin());
    let totals = frames.reports().totals();
    totals.managed - totals.free
}

/// How often `event` was counted.
pub(crate) fn count<F: PagingFormat>(machine: &Machine<F>, event: VmEvent) -> u64 {
    machine.memory().frames().events().sum(event)
}

/// How many frames hold anonymous memory.
pub(crate) fn anonymous_frames<F: PagingFormat>(machine: &Machine<F>) -> u64 {
    let mut count = 0;
    machine
        .memory()
        .frames()
        .audit()
        .for_each_frame(|_, frame| count += u64::from(frame.kind() == Kind::Anonymous));
    count
}

/// How many folios of `order` were counted.
pub(crate) fn folios<F: PagingFormat>(machine: &Machine<F>, order: u8, counter: FolioCounter) -> u64 {
    machine.memory().frames().events().folios(Order::new(order).expect("an order"), counter)
}

/// Folios that PMD leaves map.
pub(crate) fn pmd_mapped<F: PagingFormat>(machine: &Machine<F>) -> u64 {
    machine.memory().frames().events().pmd_mapped()
}

/// Folios that wait to be split.
pub(crate) fn waiting_to_split(machine: &Machine) -> u64 {
    machine.memory().memcgs().splits().waiting()
}

/// Frames that a shortage gets from folios that wait to be split.
pub(crate) fn split_deferred(machine: &Machine) -> u64 {
    machine.memory().spaces().thp().split_deferred(u64::MAX)
}
