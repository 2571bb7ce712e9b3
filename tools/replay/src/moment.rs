//! What a caller can inspect after each event of a replay.

use super::charge::file_bytes;
use super::names;
use super::pressure::SwapFigures;
use quire_arch::{Order, PAGE_SIZE};
use quire_host::HostPlatform;
use quire_mm::Memory;
use quire_mm::abi::CallNumber;
use quire_mm::frame::VmEvent;
use quire_mm::memcg::MemcgId;
use quire_trace::event::Event;

/// Called after each event of a replay.
pub type Watcher<'w> = &'w mut dyn FnMut(Moment<'_>);

/// The machine of a replay after an event.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'m> {
    /// The event.
    pub event: &'m Event,
    pub(super) memory: &'m Memory<HostPlatform>,
    pub(super) memcg: MemcgId,
}

/// Resident memory, in bytes except for the last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Anonymous memory of all programs, each page once.
    pub anonymous: u64,
    /// That, and pages of files that were touched.
    pub resident: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Pages in swap.
    pub swapped: u64,
    /// The RAM of the machine that they take.
    pub swap_ram: u64,
    /// Free blocks of each order, smallest first.
    pub free_blocks: Vec<u64>,
}

impl Moment<'_> {
    /// The counters. Takes about as long as there are address spaces and zones.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let memory = self.memory;
        let files = file_bytes(memory, self.memcg);
        let resident = memory.memcgs().charges().charged(self.memcg) * PAGE_SIZE;
        let swap = SwapFigures::of(memory);
        let mut counters = Counters {
            resident,
            anonymous: resident.saturating_sub(files),
            swapped: swap.used * PAGE_SIZE,
            swap_ram: swap.ram_bytes,
            free_blocks: vec![0; Order::COUNT],
            ..Counters::default()
        };
        memory.for_each_resident(|_, resident| counters.page_tables += resident.page_tables);
        for zone in memory.frames().reports().zone_reports() {
            let blocks = counters.free_blocks.iter_mut().zip(zone.blocks_by_order());
            blocks.for_each(|(sum, blocks)| *sum += blocks);
        }
        counters
    }

    /// How many page faults waited for swap so far.
    #[must_use]
    pub fn major_faults(&self) -> u64 {
        self.memory.event(VmEvent::Pgmajfault)
    }

    /// The name of a call by its number.
    #[must_use]
    pub fn call_name(number: u32) -> String {
        names::of_call(CallNumber::from_raw(number)).to_string()
    }
}
