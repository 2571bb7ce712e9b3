//! Trying what a call would return in another order, without a trace in the program's own space.

use super::overlap::meet;
use crate::event::Call;
use quire_arch::{PAGE_SHIFT, PAGE_SIZE, VirtAddr, VirtRange};
use quire_host::{HostPlatform, Machine};
use quire_mm::abi::{self, CallNumber, FaultIn, NoFiles};
use quire_mm::space::{Limits, LockAll, Mapping, Protection, RemapFlags, Space};
use std::ops::Range;

type HostSpace<'m> = Space<'m, HostPlatform>;

const MLOCK_ONFAULT: u64 = 1;

/// The mappings of `space` that meet one of `ranges`.
pub(super) fn mappings_in(space: &HostSpace<'_>, ranges: &[Range<u64>]) -> Vec<Mapping> {
    let mut found = Vec::new();
    space.for_each_mapping(|mapping| {
        let addrs = mapping.range.start().0..mapping.range.end().0;
        if ranges.iter().any(|range| meet(range, &addrs)) {
            found.push(mapping);
        }
    });
    found
}

/// The parts of mappings inside of `range`.
pub(super) fn inside(mappings: &[Mapping], range: &Range<u64>) -> Vec<Mapping> {
    let part = |mapping: &Mapping| {
        let (start, end) = (mapping.range.start().0, mapping.range.end().0);
        let (from, to) = (start.max(range.start), end.min(range.end));
        let page_offset = mapping.page_offset + ((from.max(start) - start) >> PAGE_SHIFT);
        let range = || VirtRange::new(VirtAddr(from), VirtAddr(to));
        (from < to).then(|| Mapping { range: range(), page_offset, ..*mapping })
    };
    mappings.iter().filter_map(part).collect()
}

/// The parts of mappings outside of all `ranges`.
pub(super) fn outside(mappings: Vec<Mapping>, ranges: &[Range<u64>]) -> Vec<Mapping> {
    ranges.iter().fold(mappings, |rest, range| {
        let mut parts = inside(&rest, &(0..range.start));
        parts.extend(inside(&rest, &(range.end..!(PAGE_SIZE - 1))));
        parts
    })
}

/// A space with the mappings of another one and none of its pages.
pub(super) struct Trial<'m>(HostSpace<'m>);

impl<'m> Trial<'m> {
    /// With these mappings, otherwise like `space`. `None` if there is no memory for it.
    pub(super) fn new(machine: &'m Machine, space: &HostSpace<'_>, mappings: &[Mapping]) -> Option<Self> {
        let limits = Limits { mappings: u64::MAX, ..Limits::default() };
        let trial = machine.memory().create_space_with(space.layout(), limits).ok()?;
        let trial = trial.acting_with(space.rights());
        mappings.iter().all(|mapping| trial.install(mapping).is_ok()).then_some(Self(trial))
    }

    /// Changes the mappings as `call` did. Nothing comes in.
    pub(super) fn change(&self, call: &Call) {
        let [first, second, third, flags, ..] = call.args;
        let space = &self.0;
        let number = CallNumber::from_raw(call.number);
        let result = VirtAddr(call.result as u64);
        match i64::from(call.number) {
            libc::SYS_mmap => {
                let protection = Protection::from_bits_truncate(third as u32);
                super::unbuilt::map_private(space, result.0, second, protection);
                if flags & libc::MAP_LOCKED as u64 != 0 {
                    let _ = space.mlock(result, second, true);
                }
            }
            libc::SYS_mlock | libc::SYS_mlock2 => {
                let args = [first, second, MLOCK_ONFAULT, 0, 0, 0];
                let _ = abi::call(space, CallNumber::Mlock2, args, &NoFiles, &FaultIn(space));
            }
            libc::SYS_mlockall => {
                let _ = space.mlockall(LockAll::from_bits_truncate(first as u32) | LockAll::ONFAULT);
            }
            libc::SYS_mremap if result.0 != first => {
                let how = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                let _ = space.mremap(VirtAddr(first), second, third, how, result);
            }
            _ => {
                let _ = abi::call(space, number, call.args, &NoFiles, &FaultIn(space));
            }
        }
    }

    /// Whether `call` returns what is recorded.
    pub(super) fn agrees(&self, call: &Call) -> bool {
        let number = CallNumber::from_raw(call.number);
        let outcome = abi::call(&self.0, number, call.args, &NoFiles, &FaultIn(&self.0));
        outcome.raw() == Some(call.result)
    }
}
