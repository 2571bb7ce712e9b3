//! A host platform with its memory manager: what programs, tests and the replay run on.

use crate::config::{HostConfig, HostError};
use crate::machine::MachineId;
use crate::paranoid::StaleHit;
use crate::platform::{HostPlatform, Vcpu, VcpuError};
use crate::program::ProgramSpace;
use core::fmt;
use quire_arch::paging::X86_64Level4;
use quire_arch::{Access, CpuId, PagingFormat, Pfn, Platform, VirtAddr};
use quire_frame::Kind;
use quire_mm::{
    BuildError, Memory, MemoryConfig, Violation,
    space::{FaultError, Space},
};
use std::sync::Arc;

/// A machine in this process, with its memory under Quire's management.
#[derive(Debug)]
pub struct Machine<F: PagingFormat = X86_64Level4> {
    memory: Arc<Memory<HostPlatform<F>>>,
    audit_at_end: bool,
}

/// Why a machine could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The host refused, or the configuration is invalid.
    #[error("{0}")]
    Host(HostError),
    /// The memory manager could not start.
    #[error("{0}")]
    Memory(BuildError),
}

/// What an audit of a machine found.
#[derive(Clone, PartialEq, Debug)]
pub enum Finding {
    /// The memory manager's counts are wrong.
    Memory(Violation),
    /// A CPU used a translation that no flush ever covered.
    StaleHit(StaleHit),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(violation) => violation.fmt(f),
            Self::StaleHit(hit) => hit.fmt(f),
        }
    }
}

impl<F: PagingFormat> Machine<F> {
    /// Builds a machine and gives its RAM to a new memory manager.
    ///
    /// # Errors
    ///
    /// [`MachineError`].
    pub fn new(host: &HostConfig, memory: MemoryConfig) -> Result<Self, MachineError> {
        let platform = HostPlatform::new(host).map_err(MachineError::Host)?;
        let memory = Arc::new(Memory::new(platform.clone(), memory).map_err(MachineError::Memory)?);
        let weak = Arc::downgrade(&memory);
        platform.set_frame_query(Some(Box::new(move |pfn| {
            let kind = weak.upgrade().and_then(|memory| memory.frame_kind(pfn));
            matches!(kind, Some(Kind::Free | Kind::Pcp))
        })));
        Ok(Self { memory, audit_at_end: host.audit_at_end })
    }

    /// The memory manager.
    pub fn memory(&self) -> &Memory<HostPlatform<F>> {
        &self.memory
    }

    /// The machine's CPU `number`, exclusively for the caller.
    ///
    /// # Errors
    ///
    /// There is no such CPU, or it has a handle already.
    pub fn vcpu(&self, number: usize) -> Result<Vcpu<F>, VcpuError> {
        self.memory.platform().vcpu(number)
    }

    /// The timer's tick, on `vcpu`: see [`Memory::tick`].
    pub fn tick(&self, vcpu: &Vcpu<F>) -> u64 {
        vcpu.run(|| self.memory.tick(&self.memory.platform().pin()))
    }

    /// Audits the memory and the TLBs. The machine must be quiet.
    pub fn audit(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let _ = self.memory.audit(|violation| findings.push(Finding::Memory(violation)));
        findings.extend(self.memory.platform().check_suspects().into_iter().map(Finding::StaleHit));
        findings
    }
}

impl<F: PagingFormat> Drop for Machine<F> {
    /// # Panics
    ///
    /// If an audit was configured ([`HostConfig::audit_at_end`]) and finds something.
    fn drop(&mut self) {
        // Otherwise the query could own the memory briefly, and free it in the middle of an access.
        self.memory.platform().set_frame_query(None);
        // A test that fails already has its message.
        if !self.audit_at_end || std::thread::panicking() {
            return;
        }
        let findings: Vec<String> = self.audit().iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "the audit at the machine's end found: {}", findings.join("; "));
    }
}

// SAFETY: this is a handle of the space, and while it has handles its root is not freed, and the rest after a
// shootdown of the CPUs that run it.
unsafe impl<F: PagingFormat> ProgramSpace for Space<'_, HostPlatform<F>> {
    type Error = FaultError;

    fn machine(&self) -> MachineId {
        self.platform().id()
    }

    fn root(&self) -> Pfn {
        Space::root(self)
    }

    fn activate(&self) {
        Space::activate(self, &self.platform().pin());
    }

    #[inline]
    fn is_current(&self, cpu: CpuId) -> bool {
        self.is_current_on(cpu)
    }

    #[inline]
    fn fault(&self, addr: VirtAddr, access: Access) -> Result<(), FaultError> {
        Space::fault(self, addr, access)
    }
}
