//! The state shared by all handles of one machine.

use crate::arena::Arena;
use crate::available::host_memory_available;
use crate::config::{Contents, HostConfig, HostError};
use crate::cpu::Cpus;
use crate::parking::Parking;
use crate::threads::RwLock;
use crate::written::Written;
use core::fmt;
use quire_arch::{CpuId, MAX_CPUS, NodeId, Pfn, RamClaim};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Returns whether a frame is free; see
/// [`HostPlatform::set_frame_query`](crate::HostPlatform::set_frame_query).
pub type FrameQuery = Box<dyn Fn(Pfn) -> bool + Send + Sync>;

/// A machine's number, which no other machine of the process has or had.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MachineId(u64);

/// A machine, whatever page tables it walks.
pub(crate) struct SharedMachine {
    /// Not 0.
    pub(crate) id: MachineId,
    pub(crate) arena: Arena,
    pub(crate) ram_claim: RamClaim,
    pub(crate) cpus: Cpus,
    nodes: usize,
    /// The node of each CPU. By value and for all CPU numbers, because every allocation reads it: one load is
    /// enough.
    node_of_cpu: [NodeId; MAX_CPUS],
    pub(crate) parking: Parking,
    pub(crate) asids: u32,
    pub(crate) paranoid: bool,
    pub(crate) contents: Contents,
    /// Where contents are known by what was written.
    pub(crate) written: Option<Written>,
    pub(crate) kernel_half: Box<[(usize, u64)]>,
    started: Instant,
    frame_query: RwLock<Option<FrameQuery>>,
}

static MACHINES: AtomicU64 = AtomicU64::new(1);

impl SharedMachine {
    pub(crate) fn new(config: &HostConfig) -> Result<Self, HostError> {
        let ranges = config.check()?;
        config.check_host(host_memory_available)?;
        let number = MACHINES.fetch_add(1, Ordering::Relaxed);
        let arena = Arena::new(&ranges, config.large_pages, config.prefault)?;
        let written = (config.contents == Contents::Writes).then(|| Written::new(arena.ranges()));
        Ok(Self {
            id: MachineId(number),
            arena,
            ram_claim: RamClaim::new(),
            cpus: Cpus::new(config.cpus, number, config.paranoid),
            nodes: config.nodes,
            node_of_cpu: core::array::from_fn(|cpu| dealt(cpu, config.nodes)),
            parking: Parking::new(),
            asids: config.asids,
            paranoid: config.paranoid,
            contents: config.contents,
            written,
            kernel_half: config.kernel_half.clone().into_boxed_slice(),
            started: Instant::now(),
            frame_query: RwLock::new(None),
        })
    }

    /// Number of nodes.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    /// The node of the range of RAM that `pfn` lies in; past all RAM, that of a range yet to come.
    pub(crate) fn node_of_ram(&self, pfn: Pfn) -> NodeId {
        dealt(self.arena.ranges().partition_point(|range| range.end() <= pfn), self.nodes)
    }

    /// The node of `cpu`.
    #[inline]
    pub(crate) fn node_of_cpu(&self, cpu: CpuId) -> NodeId {
        self.node_of_cpu[cpu.index()]
    }

    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn set_frame_query(&self, query: Option<FrameQuery>) {
        *self.frame_query.write().unwrap_or_else(PoisonError::into_inner) = query;
    }

    /// Whether the embedder calls the frame free.
    pub(crate) fn is_free(&self, pfn: Pfn) -> bool {
        let query = self.frame_query.read().unwrap_or_else(PoisonError::into_inner);
        query.as_ref().is_some_and(|query| query(pfn))
    }
}

/// The node that gets `index` when things are distributed in turn over `nodes` nodes, of which there is at
/// least one.
fn dealt(index: usize, nodes: usize) -> NodeId {
    NodeId::new(index % nodes).unwrap_or_default()
}

impl fmt::Debug for SharedMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMachine")
            .field("number", &self.id.0)
            .field("ram", &self.arena.ranges())
            .field("cpus", &self.cpus.len())
            .field("nodes", &self.nodes)
            .field("paranoid", &self.paranoid)
            .finish_non_exhaustive()
    }
}
