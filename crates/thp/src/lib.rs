//! Large folios: which a mapping may have, how they are split and made, and the huge page of zeros.
//!
//! docs/folios.md describes the policy.
//!
//! # Modules, lowest first
//!
//! - `policy`: what was set, and what follows from it for one mapping.
//! - `collapse`: the pages of a block become one large folio.
//! - `thp`: splits, and pages of zeros.

#![no_std]

#[cfg(test)]
extern crate std;

mod collapse;
mod policy;
mod thp;

pub use collapse::{Collapse, CollapseError, CollapseLimits, huge_borders};
pub use policy::{
    HugeConfig, HugeControls, HugeDefrag, HugeEffort, HugeEnabled, HugePolicy, HugeUse, KhugepagedConfig,
    KhugepagedSetting, OrderSet, OutOfRange, SizeEnabled,
};
pub use thp::{Thp, ThpState};
