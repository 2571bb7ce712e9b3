//! How the machine under test is built.

use quire_arch::PagingFormat;
use quire_host::{HostConfig, Machine};
use quire_mm::{
    MemoryConfig,
    space::Overcommit,
    thp::{HugeConfig, HugeEnabled, HugePolicy, OrderSet, SizeEnabled},
};

/// A machine to build: in paranoid mode, with one CPU, without a reserve of free memory, audited at its end,
/// unless told otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    host: HostConfig,
    memory: MemoryConfig,
}

impl Setup {
    /// With so many MiB of RAM.
    pub(crate) fn mib(mib: u64) -> Self {
        Self::of(HostConfig::with_ram(mib << 20).paranoid())
    }

    /// On the host machine `host`, which alone decides whether it is paranoid.
    pub(crate) fn of(host: HostConfig) -> Self {
        let memory = MemoryConfig { min_free_kib: Some(0), ..MemoryConfig::default() };
        Self { host: HostConfig { audit_at_end: true, ..host }, memory }
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

    pub(crate) fn build<F: PagingFormat>(&self) -> Machine<F> {
        Machine::new(&self.host, self.memory).expect("a machine can be built")
    }
}
