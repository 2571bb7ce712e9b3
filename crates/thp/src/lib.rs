//! Large folios: which orders a mapping may have, how they are made and split, and the huge zero page.
//!
//! docs/folios.md describes the policy.
//!
//! # Modules, lowest first
//!
//! - `policy`: the settings, and what follows from them for one mapping.
//! - `collapse`: the pages of a block become one large folio.
//! - `thp`: splits, and zero pages.

#![no_std]

#[cfg(test)]
extern crate std;

mod collapse;
mod policy;
mod thp;

pub use collapse::{Collapse, CollapseError, CollapseLimits, NewFolio, Presence, huge_borders};
pub use policy::{
    HugeConfig, HugeControls, HugeDefrag, HugeEffort, HugeEnabled, HugePolicy, HugeUse, KhugepagedConfig,
    KhugepagedSetting, OutOfRange, SizeEnabled, is_huge_disabled,
};
pub use thp::{Thp, ThpState};
