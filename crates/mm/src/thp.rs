//! Large folios: when they are used, and in which sizes.
//!
//! The switches are those of Linux's `/sys/kernel/mm/transparent_hugepage`. A machine starts with
//! [`MemoryConfig::huge`](crate::MemoryConfig::huge); [`Memory::huge`](crate::Memory::huge) changes them
//! while it runs, and [`HugeFile`](crate::proc::HugeFile) reads and writes them as Linux's files.

#[doc(inline)]
pub use quire_arch::OrderSet;
#[doc(inline)]
pub use quire_space::KhugepagedStep;
#[doc(inline)]
pub use quire_space::{
    HugeConfig, HugeControls, HugeDefrag, HugeDisable, HugeEnabled, HugePolicy, KhugepagedConfig, OutOfRange,
    SizeEnabled,
};

/// For the project's own tests and tools.
#[doc(hidden)]
pub use quire_space::{HugeEffort, HugeUse, KhugepagedSetting};
