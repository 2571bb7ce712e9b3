//! Why an experiment could not be carried out.

use core::fmt;
use quire_arch::{Order, Pfn, VirtAddr};
use quire_frame::{AllocError, BootError, FreeError};
use quire_host::{AccessError, HostError, MachineError, VcpuError};
use quire_mm::FaultError;
use quire_trace::replay::ReplayError;
use std::path::PathBuf;

/// Why an experiment could not be carried out. What an experiment finds wrong in Quire is a finding, not an
/// error: [`Report::findings`](crate::Report::findings).
#[derive(Debug)]
#[non_exhaustive]
pub enum LabError {
    /// The host refused the machine.
    Host(HostError),
    /// A vCPU has a handle already.
    Vcpu(VcpuError),
    /// The memory manager could not start.
    Boot(BootError),
    /// An allocation failed though there is enough memory.
    Refused(AllocError),
    /// The allocator under test had no block of this order though there is enough memory.
    NoBlock(Order),
    /// A block of the lab's own could not be freed.
    Kept(Pfn, FreeError),
    /// The allocator under test refused to free a block of its own.
    NotTaken(Pfn, Order),
    /// A machine with its memory manager could not be built.
    Machine(MachineError),
    /// A call failed.
    Call(quire_mm::Error),
    /// A program's access failed.
    Access(VirtAddr, AccessError<FaultError>),
    /// A fault was not resolved.
    Fault(VirtAddr, FaultError),
    /// Memory did not come in the requested folios.
    OtherFolios {
        /// Their order.
        order: Order,
        /// How many were requested.
        wanted: u64,
        /// How many faults made.
        got: u64,
    },
    /// A swap device could not be added.
    SwapOn(quire_mm::SwapOnError),
    /// A swap device could not be removed.
    SwapOff(quire_mm::SwapOffError),
    /// A swap device could not be made.
    Device(quire_host::swap::FileDeviceError),
    /// A memcg could not be made, or not be used.
    Group(quire_mm::MemcgError),
    /// A recording that is part of the repository was not found.
    NoRecording(PathBuf),
    /// A recording could not be replayed.
    Replay(ReplayError),
    /// The replay of a recording differs from the recording.
    Differs(String),
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(error) => write!(f, "the machine could not be built: {error}"),
            Self::Vcpu(error) => error.fmt(f),
            Self::Boot(error) => write!(f, "the memory manager could not start: {error}"),
            Self::Refused(error) => write!(f, "an allocation failed though there is enough memory: {error}"),
            Self::NoBlock(order) => write!(f, "no block of order {order} though there is enough memory"),
            Self::Kept(pfn, error) => write!(f, "the block at {pfn:?} could not be freed: {error}"),
            Self::NotTaken(pfn, order) => {
                write!(f, "the block of order {order} at {pfn:?} could not be freed")
            }
            Self::Machine(error) => error.fmt(f),
            Self::Call(error) => write!(f, "a call failed: {error}"),
            Self::Access(addr, error) => write!(f, "an access to {addr:#x}: {error}"),
            Self::Fault(addr, error) => write!(f, "a fault at {addr:#x}: {error}"),
            Self::OtherFolios { order, wanted, got } => {
                write!(f, "of {wanted} folios of order {order} faults made {got}")
            }
            Self::SwapOn(error) => error.fmt(f),
            Self::SwapOff(error) => write!(f, "swapoff: {error}"),
            Self::Device(error) => error.fmt(f),
            Self::Group(error) => write!(f, "a memcg: {error}"),
            Self::NoRecording(path) => write!(
                f,
                "the recording {} is not there; start quire in the folder of its repository",
                path.display()
            ),
            Self::Replay(error) => error.fmt(f),
            Self::Differs(what) => write!(f, "a replay differs from its recording: {what}"),
        }
    }
}

impl std::error::Error for LabError {}

impl From<HostError> for LabError {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}

impl From<VcpuError> for LabError {
    fn from(error: VcpuError) -> Self {
        Self::Vcpu(error)
    }
}

impl From<BootError> for LabError {
    fn from(error: BootError) -> Self {
        Self::Boot(error)
    }
}

impl From<AllocError> for LabError {
    fn from(error: AllocError) -> Self {
        Self::Refused(error)
    }
}

impl From<MachineError> for LabError {
    fn from(error: MachineError) -> Self {
        Self::Machine(error)
    }
}

impl From<quire_mm::Error> for LabError {
    fn from(error: quire_mm::Error) -> Self {
        Self::Call(error)
    }
}

impl From<ReplayError> for LabError {
    fn from(error: ReplayError) -> Self {
        Self::Replay(error)
    }
}
