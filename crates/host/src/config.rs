//! The configuration of a machine.

use core::ops::Range;
use quire_arch::{MAX_CPUS, MAX_NODES, PAGE_SIZE, Pfn, PfnRange, addr::page_align_up};
use std::io;

/// What a machine knows of the contents of programs' memory. Without its bytes no frame of a program is
/// zeroed or copied, so the host backs only the memory map, page tables and slabs: for a replay that asks
/// what is resident, not what is in it. What a program then reads is whatever the frame holds, zeros as a
/// rule; that is what goes to swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// Its bytes.
    Bytes,
    /// Which pages programs wrote to: these count as not zero, all others as zeros. A bit for each frame.
    Writes,
    /// Nothing: all pages count as written. For programs some of whose writes are not seen.
    Unknown,
}

/// How to build a machine. Start from [`HostConfig::with_ram`] and change what should differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConfig {
    /// Ranges of RAM by frame number, in any order; gaps between them are holes.
    pub ram: Vec<PfnRange>,
    /// Number of vCPUs, 1 to [`MAX_CPUS`].
    pub cpus: usize,
    /// Number of NUMA nodes, 1 to [`MAX_NODES`]. Ranges of RAM, from the lowest up, and vCPUs are dealt out
    /// to them in turn, so there are at least as many ranges. Nodes may not share a page block of 2 MiB.
    pub nodes: usize,
    /// Number of address-space tags, the shared one included; at least 1.
    pub asids: u32,
    /// Compares every TLB hit with the tables; see [`paranoid`](crate::paranoid).
    pub paranoid: bool,
    /// Audits the machine when it is dropped, and panics on what is found.
    pub audit_at_end: bool,
    /// Asks the host to back the RAM with large pages, so that the machine's first use of a frame seldom
    /// faults on the host. Costs host memory: it comes in steps of 2 MiB.
    pub large_pages: bool,
    /// Touches all RAM when the machine is built, so that the host's own page faults stay out of
    /// measurements.
    pub prefault: bool,
    /// What is known of the contents of programs' memory.
    pub contents: Contents,
    /// The kernel's half of each address space: entries that are written to every new root, by their index.
    /// For kernels that are tried out here; the machine's MMU refuses all of these addresses to programs.
    pub kernel_half: Vec<(usize, u64)>,
}

impl HostConfig {
    /// The first frame of RAM unless the configuration says otherwise: 1 MiB, as on a PC.
    pub const FIRST_FRAME: Pfn = Pfn(256);

    /// A machine with `bytes` of RAM (rounded up to whole pages), one vCPU and 4096 address-space tags.
    pub fn with_ram(bytes: u64) -> Self {
        let frames = page_align_up(bytes).unwrap_or(u64::MAX) / PAGE_SIZE;
        Self {
            ram: vec![PfnRange::new(Self::FIRST_FRAME, Self::FIRST_FRAME.offset(frames))],
            cpus: 1,
            nodes: 1,
            asids: 4096,
            paranoid: false,
            audit_at_end: false,
            large_pages: false,
            prefault: false,
            contents: Contents::Bytes,
            kernel_half: Vec::new(),
        }
    }

    /// The same machine with `cpus` vCPUs.
    #[must_use]
    pub fn cpus(self, cpus: usize) -> Self {
        Self { cpus, ..self }
    }

    /// The same machine with `nodes` nodes.
    #[must_use]
    pub fn nodes(self, nodes: usize) -> Self {
        Self { nodes, ..self }
    }

    /// The same machine with paranoid mode on, and with an audit at its end.
    #[must_use]
    pub fn paranoid(self) -> Self {
        Self { paranoid: true, audit_at_end: true, ..self }
    }

    /// Whether the host has the memory that the machine uses from the start. RAM is only reserved, but its
    /// memory map is written when the machine is built: a host that cannot give that would kill the process
    /// half way.
    pub(crate) fn check_host(&self, available: impl FnOnce() -> Option<u64>) -> Result<(), HostError> {
        /// Below this size the host is not checked.
        const SMALL: u64 = 1 << 30;
        /// Bytes of the memory map for each page of RAM.
        const DESCRIPTOR: u64 = 64;
        let frames = self.ram.iter().fold(0_u64, |sum, range| sum.saturating_add(range.len()));
        let ram = frames.saturating_mul(PAGE_SIZE);
        let prefaulted = if self.prefault { ram } else { 0 };
        let needed = frames.saturating_mul(DESCRIPTOR).saturating_add(prefaulted);
        if ram < SMALL {
            return Ok(());
        }
        match available() {
            Some(available) if needed > available / 2 => {
                Err(HostError::HostMemory { ram, needed, available })
            }
            _ => Ok(()),
        }
    }

    /// The ranges sorted, if the configuration is valid.
    pub(crate) fn check(&self) -> Result<Vec<PfnRange>, HostError> {
        if self.cpus == 0 || self.cpus > MAX_CPUS {
            return Err(HostError::CpuCount(self.cpus));
        }
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return Err(HostError::NodeCount(self.nodes));
        }
        if self.asids == 0 {
            return Err(HostError::NoAsid);
        }
        let mut ranges: Vec<PfnRange> = self.ram.iter().copied().filter(|range| !range.is_empty()).collect();
        ranges.sort_by_key(|range| range.start());
        if let Some(pair) = ranges.windows(2).find(|pair| pair[1].start() < pair[0].end()) {
            return Err(HostError::RamOverlaps(pair[0], pair[1]));
        }
        match ranges.len() {
            0 => Err(HostError::NoRam),
            count if count < self.nodes => {
                Err(HostError::NodeWithoutRam { nodes: self.nodes, ranges: count })
            }
            _ => Ok(ranges),
        }
    }
}

/// Why a machine cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// No range of RAM holds a frame.
    #[error("the machine has no RAM")]
    NoRam,
    /// The RAM does not fit the host's address space.
    #[error("the RAM does not fit the host's address space")]
    TooMuchRam,
    /// Two ranges of RAM share frames.
    #[error("RAM ranges overlap: {0:?} and {1:?}")]
    RamOverlaps(PfnRange, PfnRange),
    /// No CPU, or more than [`MAX_CPUS`].
    #[error("{0} CPUs asked for, 1 to {MAX_CPUS} possible")]
    CpuCount(usize),
    /// No node, or more than [`MAX_NODES`].
    #[error("{0} nodes asked for, 1 to {MAX_NODES} possible")]
    NodeCount(usize),
    /// Some node would have no range of RAM.
    #[error("{nodes} nodes asked for; there are {ranges} ranges of RAM")]
    NodeWithoutRam {
        /// How many nodes were asked for.
        nodes: usize,
        /// How many ranges of RAM there are.
        ranges: usize,
    },
    /// Not even the shared address-space tag.
    #[error("at least one address-space tag is needed")]
    NoAsid,
    /// The host has too little memory left for what a machine of this size uses from the start.
    #[error(
        "a machine with {} MiB of RAM uses {} MiB of the host from the start (its memory map, and what is touched \
         beforehand), more than half of the {} MiB that the host has available: take less RAM",
        .ram >> 20, .needed >> 20, .available >> 20
    )]
    HostMemory {
        /// Bytes of RAM that were asked for.
        ram: u64,
        /// Bytes of the host that are in use as soon as the machine is built.
        needed: u64,
        /// Bytes that the host has available for this process (`MemAvailable`, and limits of cgroups).
        available: u64,
    },
    /// An entry of the kernel's half has an index out of range.
    #[error("entry {index} of a root is not in the kernel's half, {kernel_half:?}")]
    KernelHalf {
        /// The index.
        index: usize,
        /// Those that the format has.
        kernel_half: Range<usize>,
    },
    /// The host refused the mapping for the RAM.
    #[error("the host refused the mapping for RAM: {0}")]
    Map(#[source] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_whose_memory_map_the_host_cannot_hold_is_refused() {
        let huge = HostConfig::with_ram(1 << 40);
        let error = huge.check_host(|| Some(16 << 30)).expect_err("16 GiB of memory map on 16 GiB");
        assert!(matches!(error, HostError::HostMemory { needed, .. } if needed == 16 << 30), "{error}");
        assert!(error.to_string().contains("1048576 MiB"), "{error}");
        assert!(huge.check_host(|| Some(32 << 30)).is_ok());
        // If the host does not report it, the memory itself is requested.
        assert!(huge.check_host(|| None).is_ok());
    }

    #[test]
    fn what_is_touched_beforehand_counts() {
        let mut config = HostConfig::with_ram(2 << 30);
        assert!(config.check_host(|| Some(3 << 30)).is_ok());
        config.prefault = true;
        assert!(config.check_host(|| Some(3 << 30)).is_err());
        assert!(HostConfig::with_ram(64 << 20).check_host(|| Some(0)).is_ok(), "too small to ask");
    }
}
