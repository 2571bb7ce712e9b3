//! The policy of large folios: the settings, and what follows from them for one mapping.
//!
//! [`HugeControls`] are the files of Linux's `/sys/kernel/mm/transparent_hugepage` as values; their texts are
//! in the crate `quire-mm`. Nothing here allocates, waits or reads a page: a fault gets the orders that it
//! may try and how hard, and tries them itself.

mod controls;
mod khugepaged;
mod switches;
mod words;

pub use controls::{HugeConfig, HugeControls};
pub use khugepaged::{KhugepagedConfig, KhugepagedSetting, OutOfRange};
pub use switches::{HugeEffort, HugePolicy, HugeUse, is_huge_disabled};
pub use words::{HugeDefrag, HugeEnabled, SizeEnabled};
