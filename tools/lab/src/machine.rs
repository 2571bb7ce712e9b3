//! Machines to experiment on.

use crate::error::LabError;
use crate::host_memory::check_available;
use quire_arch::{PAGE_SIZE, Pfn, PfnRange, Pin, Platform};
use quire_frame::{FrameConfig, Frames, VmEvent};
use quire_host::{HostConfig, HostPlatform, Vcpu};
use std::sync::{Mutex, PoisonError};

/// First frame of RAM: past 4 GiB, so that all of it is one zone with one lock, as nearly all memory of a
/// large machine is.
const FIRST_FRAME: Pfn = Pfn(1 << 20);

/// How to build a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineSpec {
    /// Bytes of RAM.
    pub ram: u64,
    /// vCPUs.
    pub cpus: usize,
    /// Whether programs will touch the memory: then the host backs it before the clock starts. Where blocks
    /// are only allocated and freed, only their descriptors are touched, and RAM may be larger than the
    /// host's.
    pub backed: bool,
    /// How its frames are managed.
    pub frames: FrameConfig,
}

impl MachineSpec {
    /// `cpus` vCPUs with `ram` bytes that no program touches, managed as by default.
    pub fn new(ram: u64, cpus: usize) -> Self {
        Self { ram, cpus, backed: false, frames: FrameConfig::default() }
    }
}

/// A machine with a handle for each of its vCPUs.
#[derive(Debug)]
pub struct Machine {
    frames: Frames<HostPlatform>,
    /// Behind locks since a handle is for one thread at a time. A thread holds the lock as long as it is the
    /// vCPU.
    vcpus: Vec<Mutex<Vcpu>>,
    /// Zone lock acquisitions that one reading of the counters causes itself.
    takes_of_a_reading: u64,
}

/// What happened on a machine during some time: acquisitions of the zones' locks, those of them that had to
/// wait, and blocks that slab caches allocated.
pub type Counts = [u64; 3];

impl Machine {
    /// Builds a machine.
    ///
    /// # Errors
    ///
    /// The host or the memory manager refuses.
    pub fn new(spec: MachineSpec) -> Result<Self, LabError> {
        // A 64th of RAM is the memory map.
        check_available(spec.ram / 64 + if spec.backed { spec.ram } else { 0 })?;
        let ram = PfnRange::new(FIRST_FRAME, FIRST_FRAME.offset(spec.ram / PAGE_SIZE));
        let config = HostConfig {
            ram: vec![ram],
            // As kernels map their memory map.
            large_pages: true,
            prefault: spec.backed,
            ..HostConfig::with_ram(spec.ram).cpus(spec.cpus)
        };
        let platform = HostPlatform::new(&config)?;
        let vcpus = (0..spec.cpus)
            .map(|number| Ok(Mutex::new(platform.vcpu(number)?)))
            .collect::<Result<_, LabError>>()?;
        let frames = Frames::new(platform, spec.frames)?;
        let machine = Self { frames, vcpus, takes_of_a_reading: 0 };
        let takes_of_a_reading = machine.counted(|| ()).1[0];
        Ok(Self { takes_of_a_reading, ..machine })
    }

    /// The machine's memory.
    pub fn frames(&self) -> &Frames<HostPlatform> {
        &self.frames
    }

    /// Calls `work` with the thread on vCPU `number`, not pinned. Not to be nested.
    ///
    /// # Panics
    ///
    /// When there is no such vCPU.
    pub fn on_cpu<R>(&self, number: usize, work: impl FnOnce() -> R) -> R {
        // A handle is usable after a panic: the work of a thread ends with its stay.
        let vcpu = self.vcpus[number].lock().unwrap_or_else(PoisonError::into_inner);
        vcpu.run(work)
    }

    /// Calls `work` with the thread on vCPU `number`, pinned.
    ///
    /// # Panics
    ///
    /// When there is no such vCPU.
    pub fn pinned_on<'m, R>(&'m self, number: usize, work: impl FnOnce(&Pin<'m, HostPlatform>) -> R) -> R {
        self.on_cpu(number, || work(&self.frames.platform().pin()))
    }

    /// A tick of the lists on vCPU `number`.
    pub(crate) fn tick(&self, number: usize) {
        self.pinned_on(number, |pin| self.frames.pcp().age_lists(pin));
        self.on_cpu(number, || self.frames.pcp().give_back_in_portions());
    }

    /// What happened so far. The machine is quiet.
    fn counts(&self) -> Counts {
        let slabs = self.frames.events().sum(VmEvent::SlabGrow);
        self.frames.reports().zone_reports().fold([0, 0, slabs], |[takes, contended, slabs], zone| {
            [takes + zone.lock.takes, contended + zone.lock.contended, slabs]
        })
    }

    /// What happens during `work`, apart from the counting itself. The machine is quiet before and after.
    pub fn counted<R>(&self, work: impl FnOnce() -> R) -> (R, Counts) {
        let before = self.counts();
        let result = work();
        let now = self.counts();
        let own = [self.takes_of_a_reading, 0, 0];
        (result, core::array::from_fn(|nth| now[nth] - before[nth] - own[nth]))
    }

    /// Base pages that the CPUs' lists hold now.
    pub fn held(&self) -> u64 {
        self.frames.reports().zone_reports().map(|zone| zone.pcp).sum()
    }

    /// The most base pages that each CPU's lists held at a time, summed over the CPUs.
    pub fn peak_held(&self) -> u64 {
        self.frames.reports().zone_reports().map(|zone| zone.pcp_peak).sum()
    }

    /// Frames that are free when all lists are drained.
    pub fn free_when_drained(&self) -> u64 {
        self.pinned_on(0, |pin| {
            self.frames.limbo().reap_all(pin);
            self.frames.pcp().drain_all(pin);
        });
        self.frames.reports().free_frames()
    }

    /// Ends an experiment: everything that it took was freed, and `free` frames were free before it. Returns
    /// what is wrong. The machine is quiet.
    pub fn findings(&self, free: u64) -> Vec<String> {
        let mut findings = Vec::new();
        let now = self.free_when_drained();
        if now != free {
            findings.push(format!("{free} frames were free before the experiment and {now} are after it"));
        }
        if self.held() != 0 {
            findings.push(format!("the CPUs' lists hold {} frames after they were drained", self.held()));
        }
        self.frames.audit().validate(&mut |violation| findings.push(violation.to_string()));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_arch::Order;
    use quire_frame::{AllocRequest, FailSite, PcpTechnique};

    fn machine() -> Machine {
        let frames = FrameConfig { pcp: PcpTechnique::None, ..FrameConfig::default() };
        Machine::new(MachineSpec { frames, ..MachineSpec::new(16 << 20, 2) }).expect("a small machine")
    }

    #[test]
    fn counting_does_not_count_itself() {
        let machine = machine();
        assert_eq!(machine.counted(|| ()).1, [0; 3]);
        let request = AllocRequest::new(Order::ZERO, FailSite::new("test"));
        let (pfn, counts) =
            machine.counted(|| machine.pinned_on(0, |pin| machine.frames().allocate(pin, request)));
        assert_eq!(counts[0], 1);
        let free = machine.free_when_drained() + 1;
        machine.pinned_on(1, |pin| machine.frames().free(pin, pfn.unwrap(), Order::ZERO)).unwrap();
        assert_eq!(machine.findings(free), [""; 0]);
    }

    #[test]
    fn a_lost_block_is_a_finding() {
        let machine = machine();
        let free = machine.free_when_drained();
        let request = AllocRequest::new(Order::ZERO, FailSite::new("test"));
        machine.pinned_on(0, |pin| machine.frames().allocate(pin, request)).unwrap();
        assert_eq!(machine.findings(free).len(), 1);
    }
}
