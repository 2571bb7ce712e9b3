//! The RAM of a machine.

use std::ops::RangeInclusive;

/// The sizes of RAM, in bytes, that the machine of a replay can have: from what holds the memory map and the
/// areas of the most CPUs, to what is surely numbered by 32 bits.
pub const MACHINE_RAM: RangeInclusive<u64> = 1 << 20..=15 << 40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::MOST_CPUS;
    use quire_host::{HostConfig, Machine};
    use quire_mm::MemoryConfig;

    #[test]
    fn a_machine_can_have_the_least_ram() {
        for cpus in [1, MOST_CPUS as usize] {
            let host = HostConfig::with_ram(*MACHINE_RAM.start()).cpus(cpus);
            let built: Result<Machine, _> = Machine::new(&host, MemoryConfig::default());
            assert!(built.is_ok(), "{cpus}: {:?}", built.err());
        }
    }
}
