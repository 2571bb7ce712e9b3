//! The machine that an input runs on.

use quire_arch::{Asid, PagingFormat, Platform};
use quire_frame::FailPoints;
use quire_host::{HostConfig, HostPlatform, Machine};
use quire_mm::{
    InUse, MemoryConfig, Techniques,
    frame::PcpTechnique,
    memcg::MemcgId,
    space::{Error, Layout, Limits, Overcommit, Space},
    swap::{CompressedRam, Lz4, RamDisk, SwapOnOptions},
};

/// Tags for address spaces, the shared one included: fewer than spaces, so that some have to share.
const TAGS: u32 = 4;
/// Devices that are in use at once.
const MOST_DEVICES: usize = 2;
/// Names of the memcgs that an input can make; the second is below the first.
const GROUPS: [&str; 2] = ["outer", "inner"];
const PATHS: [&str; 2] = ["outer", "outer/inner"];

/// A machine so small that its memory is soon full, in paranoid mode.
pub(super) struct Small<F: PagingFormat> {
    pub(super) machine: Machine<F>,
    layout: Layout,
    /// Spaces are not empty when they begin.
    pub(super) furnished: bool,
}

impl<F: PagingFormat> Small<F> {
    /// The machine that the byte `setting` selects.
    pub(super) fn new(setting: u8) -> Self {
        let bit = |bit: u8| setting & (1 << bit) != 0;
        let ram = if bit(3) { 1 << 20 } else { 2 << 20 };
        let host = HostConfig { asids: TAGS, ..HostConfig::with_ram(ram) }.cpus(2).paranoid();
        let mut techniques = Techniques::default();
        techniques.pcp = if bit(2) { PcpTechnique::None } else { PcpTechnique::OrderZero };
        let config = MemoryConfig {
            techniques,
            overcommit: match setting & 3 {
                0 | 1 => Overcommit::default(),
                2 => Overcommit::Always,
                _ => Overcommit::Never { limit_pages: 600 },
            },
            min_free_kib: if bit(4) { None } else { Some(0) },
            ..MemoryConfig::default()
        };
        let machine = Machine::new(&host, config).expect("so much RAM is enough to start");
        let layout = Layout { top_down: !bit(5), ..Layout::standard(F::USER_END) };
        Self { machine, layout, furnished: !bit(6) }
    }

    pub(super) fn create_space(&self) -> Result<Space<'_, HostPlatform<F>>, Error> {
        self.machine.memory().create_space_with(self.layout, Limits::default())
    }

    pub(super) fn fail_points(&self) -> &FailPoints {
        self.machine.memory().frames().fail_points()
    }

    /// Panics with everything that an audit finds.
    #[track_caller]
    pub(super) fn assert_audit(&self) {
        let findings = self.machine.audit();
        assert!(findings.is_empty(), "{}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
    }

    /// What is in use when all epochs have passed.
    pub(super) fn in_use(&self) -> InUse {
        self.machine.memory().in_use()
    }

    /// Panics unless every tag can be allocated: with too few, spaces share one, and nothing else shows it.
    pub(super) fn assert_tags_free(&self) {
        let spaces: Vec<_> = (1..TAGS).map(|_| self.create_space().expect("all memory is free")).collect();
        assert!(spaces.iter().all(|space| space.asid() != Asid::NONE), "a tag is lost");
    }

    /// Empties the slab caches.
    pub(super) fn reap(&self) {
        let frames = self.machine.memory().frames();
        let pin = self.machine.memory().platform().pin();
        frames.limbo().reap_all(&pin);
        frames.caches().reap(&pin);
    }

    /// Adds a device, if there is memory for it. One whose pages stay in its own frames allocates them at the
    /// start, so that paging out frees memory.
    pub(super) fn swap_on(&self, compressed: bool, slots: u64) -> bool {
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

    pub(super) fn memcg(&self, number: u8) -> Option<MemcgId> {
        self.machine.memory().memcgs().tree().find(PATHS[usize::from(number & 1)])
    }

    /// The memcg, made if it was not there and there is memory for it.
    pub(super) fn make_memcg(&self, number: u8) -> Option<MemcgId> {
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
