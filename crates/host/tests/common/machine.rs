//! How the machine under test is built.

use super::*;
use std::ops::Deref;

/// A machine to build: in paranoid mode, with one CPU, without a reserve of free memory, audited at its end,
/// unless told otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    host: HostConfig,
    memory: MemoryConfig,
    slots: u64,
}

impl Setup {
    /// With so many MiB of RAM.
    pub(crate) fn mib(mib: u64) -> Self {
        Self::of(HostConfig::with_ram(mib << 20).paranoid())
    }

    /// On the host machine `host`, which alone decides whether it is paranoid.
    pub(crate) fn of(host: HostConfig) -> Self {
        let memory = MemoryConfig { min_free_kib: Some(0), ..MemoryConfig::default() };
        Self { host: HostConfig { audit_at_end: true, ..host }, memory, slots: 0 }
    }

    pub(crate) fn cpus(self, cpus: usize) -> Self {
        Self { host: self.host.cpus(cpus), ..self }
    }

    /// With so many ASIDs.
    pub(crate) fn asids(self, asids: u32) -> Self {
        Self { host: HostConfig { asids, ..self.host }, ..self }
    }

    /// Nothing is audited at the end: what a test breaks stays broken.
    pub(crate) fn unaudited(self) -> Self {
        Self { host: HostConfig { audit_at_end: false, ..self.host }, ..self }
    }

    /// With Linux's reserve of free memory.
    pub(crate) fn reserve(self) -> Self {
        self.with(|memory| memory.min_free_kib = None)
    }

    /// Commits memory without a limit.
    pub(crate) fn overcommit(self) -> Self {
        self.with(|memory| memory.overcommit = Overcommit::Always)
    }

    /// With folios of these orders wherever they fit, and no others.
    pub(crate) fn folios(self, sizes: OrderSet) -> Self {
        let policy = HugePolicy::default().with_enabled(HugeEnabled::Never);
        self.huge(policy.with_sizes(sizes, SizeEnabled::Always))
    }

    /// With folios of 2 MiB wherever they fit, and other sizes where programs ask for them.
    pub(crate) fn always_huge(self) -> Self {
        self.huge(HugePolicy::default().with_enabled(HugeEnabled::Always))
    }

    pub(crate) fn huge(self, policy: HugePolicy) -> Self {
        self.with(|memory| memory.huge = HugeConfig { policy, ..HugeConfig::default() })
    }

    /// With this configuration, but for the reserve.
    pub(crate) fn memory(self, config: MemoryConfig) -> Self {
        self.with(|memory| *memory = MemoryConfig { min_free_kib: memory.min_free_kib, ..config })
    }

    /// Changes anything else.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut MemoryConfig)) -> Self {
        change(&mut self.memory);
        self
    }

    /// With a RAM disk of so many slots as swap.
    pub(crate) fn swap(self, slots: u64) -> Self {
        Self { slots, ..self }
    }

    pub(crate) fn build<F: PagingFormat>(&self) -> Machine<F> {
        let machine = Machine::new(&self.host, self.memory).expect("a machine can be built");
        if self.slots > 0 {
            swap_on_ram(&machine, self.slots);
        }
        machine
    }
}

/// A paranoid machine.
pub(crate) fn machine(mib: u64, cpus: usize) -> Machine {
    Setup::mib(mib).cpus(cpus).build()
}

/// One with a RAM disk of so many slots as swap.
pub(crate) fn swapping(mib: u64, cpus: usize, slots: u64) -> Machine {
    Setup::mib(mib).cpus(cpus).swap(slots).build()
}

/// A machine under test. When it ends, after its spaces, it is audited, and nothing that its programs used
/// may be in use any more; what memcgs and swap devices keep is not looked at.
#[derive(Debug)]
pub(crate) struct Machine<F: PagingFormat = X86_64Level4> {
    machine: quire_host::Machine<F>,
    /// What was in use when it was new, if it is audited at its end.
    before: Option<InUse>,
}

impl<F: PagingFormat> Machine<F> {
    pub(crate) fn new(host: &HostConfig, memory: MemoryConfig) -> Result<Self, MachineError> {
        let machine = quire_host::Machine::new(host, memory)?;
        let before = host.audit_at_end.then(|| machine.memory().in_use());
        Ok(Self { machine, before })
    }
}

impl<F: PagingFormat> Deref for Machine<F> {
    type Target = quire_host::Machine<F>;

    fn deref(&self) -> &quire_host::Machine<F> {
        &self.machine
    }
}

impl<F: PagingFormat> Drop for Machine<F> {
    fn drop(&mut self) {
        let memory = self.machine.memory();
        let mut memcgs = 0;
        memory.memcgs().tree().for_each_in_subtree(MemcgId::ROOT, |_| memcgs += 1);
        let kept = memory.swap().devices().total_slots() > 0 || memcgs > 1;
        if let Some(before) = self.before
            && !kept
            && !std::thread::panicking()
        {
            assert_eq!(memory.in_use(), before, "frames or objects are lost");
        }
    }
}
