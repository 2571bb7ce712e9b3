//! Why an experiment could not be carried out.

use core::fmt;
use quire_arch::{Order, Pfn};
use quire_frame::{AllocError, BootError, FreeError};
use quire_host::{HostError, VcpuError};

/// Why an experiment could not be carried out. What an experiment finds wrong in Quire is no error but a finding:
/// [`Report::findings`](crate::Report::findings).
#[derive(Debug)]
#[non_exhaustive]
pub enum LabError {
    /// The host refused the machine.
    Host(HostError),
    /// A vCPU could not be had.
    Vcpu(VcpuError),
    /// The memory manager could not start.
    Boot(BootError),
    /// An allocation failed where there has to be room.
    Refused(AllocError),
    /// The allocator under test had no block of this order where there has to be room.
    NoBlock(Order),
    /// A block of the lab's own was not taken back.
    Kept(Pfn, FreeError),
    /// The allocator under test did not take a block back that it had given out.
    NotTaken(Pfn, Order),
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(error) => write!(f, "the machine could not be built: {error}"),
            Self::Vcpu(error) => error.fmt(f),
            Self::Boot(error) => write!(f, "the memory manager could not start: {error}"),
            Self::Refused(error) => write!(f, "an allocation failed where there has to be room: {error}"),
            Self::NoBlock(order) => write!(f, "no block of order {order} where there has to be room"),
            Self::Kept(pfn, error) => write!(f, "the block at {pfn:?} was not taken back: {error}"),
            Self::NotTaken(pfn, order) => {
                write!(f, "the block of order {order} at {pfn:?} was not taken back")
            }
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
