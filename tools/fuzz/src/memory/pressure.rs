//! Steps that reduce memory: swap devices that are added and removed, reclaim, and memcgs with limits.

use super::Play;
use super::values::Values;
use crate::bytes::Bytes;
use quire_arch::{PAGE_SIZE, PagingFormat, VirtAddr};
use quire_mm::{
    memcg::{Limit, MemcgId},
    space::Advice,
    swap::DeviceId,
};

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
