//! The space under test.

use super::*;
use std::ops::Deref;

/// A space on the host machine. Its children are of this kind too.
#[derive(Debug)]
pub(crate) struct HostSpace<'m, F: PagingFormat = X86_64Level4> {
    space: Space<'m, HostPlatform<F>>,
    /// What is audited before the space exits.
    audited: Option<&'m Machine<F>>,
}

/// A space without mappings.
#[track_caller]
pub(crate) fn create_space<F: PagingFormat>(machine: &Machine<F>) -> HostSpace<'_, F> {
    machine.memory().create_space().expect("there is memory enough").into()
}

/// CPU 0 of the machine, and a space for the programs that it runs. Before this space exits the machine is
/// audited.
#[track_caller]
pub(crate) fn cpu_and_space<F: PagingFormat>(machine: &Machine<F>) -> (Vcpu<F>, HostSpace<'_, F>) {
    let cpu = machine.vcpu(0).expect("the CPU is free");
    (cpu, create_space(machine).audited(machine))
}

impl<'m, F: PagingFormat> HostSpace<'m, F> {
    /// The machine is audited before this space exits, and before its children do. It must be quiet then.
    pub(crate) fn audited(self, machine: &'m Machine<F>) -> Self {
        let mut space = self;
        space.audited = Some(machine);
        space
    }

    pub(crate) fn fork(&self) -> Result<Self, Error> {
        Ok(Self { space: self.space.fork()?, audited: self.audited })
    }
}

impl<'m, F: PagingFormat> From<Space<'m, HostPlatform<F>>> for HostSpace<'m, F> {
    fn from(space: Space<'m, HostPlatform<F>>) -> Self {
        Self { space, audited: None }
    }
}

impl<'m, F: PagingFormat> Deref for HostSpace<'m, F> {
    type Target = Space<'m, HostPlatform<F>>;

    fn deref(&self) -> &Self::Target {
        &self.space
    }
}

impl<F: PagingFormat> Drop for HostSpace<'_, F> {
    fn drop(&mut self) {
        if let Some(machine) = self.audited
            && !std::thread::panicking()
        {
            assert_audit(machine);
        }
    }
}

// SAFETY: it has the handle for as long as it lives.
unsafe impl<F: PagingFormat> ProgramSpace for HostSpace<'_, F> {
    type Error = FaultError;

    fn machine(&self) -> MachineId {
        ProgramSpace::machine(&self.space)
    }

    fn root(&self) -> Pfn {
        ProgramSpace::root(&self.space)
    }

    fn activate(&self) {
        ProgramSpace::activate(&self.space);
    }

    fn is_current(&self, cpu: CpuId) -> bool {
        ProgramSpace::is_current(&self.space, cpu)
    }

    fn fault(&self, addr: VirtAddr, access: Access) -> Result<(), FaultError> {
        ProgramSpace::fault(&self.space, addr, access)
    }
}
