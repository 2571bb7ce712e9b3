//! Why an experiment could not be carried out.

use quire_arch::{Order, Pfn, VirtAddr};
use quire_frame::{AllocError, BootError, FreeError};
use quire_host::{AccessError, HostError, MachineError, VcpuError};
use quire_mm::space::FaultError;
use quire_replay::ReplayError;
use std::path::PathBuf;
use thiserror::Error;

/// Whether it could be carried out, and what came of it.
pub(crate) type Done<T = ()> = Result<T, LabError>;

/// Why an experiment could not be carried out. What an experiment finds wrong in Quire is a finding, not an
/// error: [`Report::findings`](crate::Report::findings).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// The host does not have so much memory for this process: what is needed, and what there is.
    #[error("it takes {} KiB of the host's memory, and {} KiB are available", .0 >> 10, .1 >> 10)]
    HostMemory(u64, u64),
    /// The host refused the machine.
    #[error("the machine could not be built: {0}")]
    Host(#[from] HostError),
    /// A vCPU has a handle already.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// The memory manager could not start.
    #[error("the memory manager could not start: {0}")]
    Boot(#[from] BootError),
    /// An allocation failed though there is enough memory.
    #[error("an allocation failed though there is enough memory: {0}")]
    Refused(#[from] AllocError),
    /// The allocator under test had no block of this order though there is enough memory.
    #[error("no block of order {0} though there is enough memory")]
    NoBlock(Order),
    /// A case of the harness is not one of so many threads.
    #[error("the case {0} cannot be run by {1} threads")]
    Threads(&'static str, usize),
    /// A block of the lab's own could not be freed.
    #[error("the block at {0:?} could not be freed: {1}")]
    Kept(Pfn, FreeError),
    /// The allocator under test refused to free a block of its own.
    #[error("the block of order {1} at {0:?} could not be freed")]
    NotTaken(Pfn, Order),
    /// A machine with its memory manager could not be built.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A call of the host's Linux failed.
    #[error("the host's Linux: {0}")]
    Linux(#[from] rustix::io::Errno),
    /// The host's Linux made no process.
    #[error("the host's Linux made no process")]
    NoProcess,
    /// The host's Linux does not have such folios, or does not let us have them.
    #[error("the host's Linux gives no such folios")]
    HostFolios,
    /// A call failed.
    #[error("a call failed: {0}")]
    Call(#[from] quire_mm::space::Error),
    /// A program's access failed.
    #[error("an access to {0:#x}: {1}")]
    Access(VirtAddr, AccessError<FaultError>),
    /// A fault was not resolved.
    #[error("a fault at {0:#x}: {1}")]
    Fault(VirtAddr, FaultError),
    /// Memory did not come in the requested folios: their order, how many were requested, and made.
    #[error("of {1} folios of order {0} faults made {2}")]
    OtherFolios(Order, u64, u64),
    /// A swap device could not be added.
    #[error(transparent)]
    SwapOn(quire_mm::swap::SwapOnError),
    /// A swap device could not be removed.
    #[error("swapoff: {0}")]
    SwapOff(quire_mm::swap::SwapOffError),
    /// A swap device could not be made.
    #[error(transparent)]
    Device(quire_host::swap::FileDeviceError),
    /// A memcg could not be made, or not be used.
    #[error("a memcg: {0}")]
    Memcg(quire_mm::memcg::MemcgError),
    /// A recording that is part of the repository was not found.
    #[error("the recording {} is not there; start quire in the folder of its repository", .0.display())]
    NoRecording(PathBuf),
    /// A recording could not be replayed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// The replay of a recording differs from the recording.
    #[error("a replay differs from its recording: {0}")]
    Differs(String),
}
