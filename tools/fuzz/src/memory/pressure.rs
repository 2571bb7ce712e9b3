//! Steps that reduce memory: swap devices that are added and removed, reclaim, and memcgs with limits.

use super::Play;
use super::machine::Small;
use super::values::Values;
use crate::bytes::Bytes;
use quire_arch::{PAGE_SIZE, PagingFormat, VirtAddr};
use quire_mm::{
    memcg::{Limit, MemcgId},
    space::Advice,
    swap::{CompressedRam, DeviceId, Lz4, RamDisk, SwapOnOptions},
};

/// Devices that are in use at once.
const MOST_DEVICES: usize = 2;
/// Names of the memcgs that an input can make; the second is below the first.
const GROUPS: [&str; 2] = ["outer", "inner"];
const PATHS: [&str; 2] = ["outer", "outer/inner"];

impl<F: PagingFormat> Play<'_, F> {
    /// One such step, chosen by the next byte.
    pub(super) fn pressure(&mut self, cpu: usize, bytes: &mut Bytes<'_>) {
        let (what, number) = (bytes.byte(), bytes.byte());
        let vcpu = &self.vcpus[cpu];
        let memory = self.small.machine.memory();
        match what & 7 {
            0 => {
                let result = vcpu.run(|| self.small.swap_on(what & 8 != 0, u64::from(number)));
                self.say(|| format!("CPU {cpu}: swapon of {number} slots: {result}"));
            }
            1 => {
                let mut asked = number >> 1;
                let goes_on = || {
                    asked = asked.saturating_sub(1);
                    asked > 0
                };
                let device = DeviceId::new(usize::from(number & 1));
                let result = device.map(|device| vcpu.run(|| memory.swapoff(device, goes_on)));
                self.say(|| format!("CPU {cpu}: swapoff of {}: {result:?}", number & 1));
            }
            2 => {
                let step = vcpu.run(|| memory.kswapd_step());
                self.say(|| format!("CPU {cpu}: {step:?}"));
            }
            3 => {
                let memcg = if what & 8 != 0 { self.small.memcg(number & 1) } else { None };
                let freed = vcpu.run(|| memory.reclaim(memcg.unwrap_or(MemcgId::ROOT), u64::from(number)));
                self.say(|| format!("CPU {cpu}: reclaim of {number} pages from {memcg:?}: {freed}"));
            }
            4 | 5 => {
                let values = Values::<F>::new(&self.calls.areas);
                let (addr, len) = (VirtAddr(values.address(bytes)), values.length(bytes));
                let advice = if what & 1 == 0 { Advice::PageOut } else { Advice::Cold };
                if let Some(current_space) = self.spaces.get(self.current) {
                    let result = vcpu.run(|| current_space.space.madvise(addr, len, advice));
                    self.say(|| format!("CPU {cpu}: {advice:?} from {addr:x?}, {len:#x} bytes: {result:?}"));
                }
            }
            6 => {
                let memcg = vcpu.run(|| self.small.make_memcg(number & 1));
                if let Some(current_space) = self.spaces.get(self.current) {
                    let result = vcpu.run(|| current_space.space.set_memcg(memcg.unwrap_or(MemcgId::ROOT)));
                    self.say(|| format!("space {} goes to memcg {memcg:?}: {result:?}", self.current));
                }
            }
            _ => {
                let Some(memcg) = self.small.memcg(what >> 3 & 1) else { return };
                let limit = if what & 16 == 0 { Limit::Max } else { Limit::SwapMax };
                let bytes = (number < 255).then(|| u64::from(number) * PAGE_SIZE);
                let result = vcpu.run(|| memory.memcgs().files().set(memcg, limit, bytes));
                self.say(|| format!("memcg {memcg:?}: {limit:?} {bytes:?}: {result:?}"));
            }
        }
    }
}

impl<F: PagingFormat> Small<F> {
    /// Adds a device, if there is memory for it. One whose pages stay in its own frames allocates them at the
    /// start, so that paging out frees memory.
    fn swap_on(&self, compressed: bool, slots: u64) -> bool {
        let memory = self.machine.memory();
        if memory.swap().devices().reports().count() >= MOST_DEVICES {
            return false;
        }
        let options = SwapOnOptions::default();
        if compressed {
            CompressedRam::new(memory.frames(), slots, Lz4)
                .is_ok_and(|device| memory.swapon(device, options).is_ok())
        } else {
            RamDisk::preallocated(memory.frames(), slots & 63)
                .is_ok_and(|device| memory.swapon(device, options).is_ok())
        }
    }

    fn memcg(&self, number: u8) -> Option<MemcgId> {
        self.machine.memory().memcgs().tree().find(PATHS[usize::from(number & 1)])
    }

    /// The memcg, made if it was not there and there is memory for it.
    fn make_memcg(&self, number: u8) -> Option<MemcgId> {
        let memcgs = self.machine.memory().memcgs();
        let mut memcg = MemcgId::ROOT;
        for (nth, name) in (0..=number & 1).zip(GROUPS) {
            memcg = match self.memcg(nth) {
                Some(memcg) => memcg,
                None => memcgs.lifecycle().create(memcg, name).ok()?,
            };
        }
        Some(memcg)
    }

    /// Memcgs are reused: from here on there are as many as will ever be.
    pub(super) fn prepare_memcgs(&self) {
        self.make_memcg(1);
        self.relax();
    }

    /// Removes devices and memcgs, when no space is left.
    pub(super) fn relax(&self) {
        let memory = self.machine.memory();
        let devices: Vec<_> = memory.swap().devices().reports().map(|device| device.id).collect();
        for device in devices {
            assert_eq!(memory.swapoff(device, || true), Ok(()), "nothing is on {device}");
        }
        for number in [1, 0] {
            if let Some(memcg) = self.memcg(number) {
                assert_eq!(memory.memcgs().lifecycle().remove(memcg), Ok(()), "no space is in {memcg:?}");
            }
        }
        // Children first, each after an epoch.
        (0..4).for_each(|_| memory.memcgs().lifecycle().sweep());
    }
}
