//! Handles of vCPUs.

use super::HostPlatform;
use crate::cpu::Cpu;
use crate::program::{Program, ProgramSpace, Seat};
use core::cell::Cell;
use core::fmt;
use quire_arch::paging::X86_64Level4;
use quire_arch::{CpuId, PagingFormat};

/// A vCPU of a machine. The thread that calls a method is the vCPU for the duration of the call; between
/// calls the vCPU is free for any thread that needs one for a pinned section. One thread may hold and use
/// several.
///
/// The handle may be sent to another thread, but not be shared with one.
///
/// A call must not start in a pinned section. A thread that blocks in a call by means that the machine does
/// not know (e.g. joins another thread) keeps its CPU, which the other may be waiting for.
pub struct Vcpu<F: PagingFormat = X86_64Level4> {
    platform: HostPlatform<F>,
    index: usize,
    /// Calls under way.
    stays: Cell<u64>,
}

impl<F: PagingFormat> Vcpu<F> {
    pub(crate) fn claim(platform: HostPlatform<F>, number: usize) -> Result<Self, VcpuError> {
        let cpus = platform.machine().cpus.len();
        let cpu = platform.machine().cpus.get(number).ok_or(VcpuError::NoSuchCpu { number, cpus })?;
        if cpu.claim() {
            Ok(Self { platform, index: number, stays: Cell::new(0) })
        } else {
            Err(VcpuError::Claimed { number })
        }
    }

    fn cpu(&self) -> &Cpu {
        &self.platform.machine().cpus[self.index]
    }

    /// The vCPU's number.
    pub fn id(&self) -> CpuId {
        self.cpu().id
    }

    /// The machine.
    pub fn platform(&self) -> &HostPlatform<F> {
        &self.platform
    }

    /// Calls `action` with the thread on this vCPU: the kernel code of a thread that the vCPU runs. Nests.
    pub fn run<R>(&self, action: impl FnOnce() -> R) -> R {
        let _stay = self.seat().stay(false);
        action()
    }

    /// A program on this vCPU whose memory is `space`. Makes no access yet. One of another machine's space
    /// fails at each access.
    pub fn program<'v, S: ProgramSpace>(&'v self, space: &'v S) -> Program<'v, S, F> {
        Program::new(self.seat(), space)
    }

    #[inline]
    fn seat(&self) -> Seat<'_> {
        Seat { machine: self.platform.machine(), cpu: self.cpu(), stays: &self.stays }
    }
}

impl<F: PagingFormat> Drop for Vcpu<F> {
    fn drop(&mut self) {
        self.cpu().unclaim();
    }
}

impl<F: PagingFormat> fmt::Debug for Vcpu<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vcpu").field("id", &self.id()).field("platform", &self.platform).finish()
    }
}

/// Why there is no handle of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VcpuError {
    /// The machine has fewer CPUs.
    #[error("no vCPU {number}: the machine has {cpus}")]
    NoSuchCpu {
        /// The number asked for.
        number: usize,
        /// How many there are.
        cpus: usize,
    },
    /// There is a handle already.
    #[error("vCPU {number} has a handle already")]
    Claimed {
        /// The number asked for.
        number: usize,
    },
}
