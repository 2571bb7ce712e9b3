//! The abstraction of a machine for the rest of Quire.
//!
//! Addresses, frame numbers, orders and ranges are newtypes here ([`addr`], [`pfn`], [`order`]); page-table
//! formats are implementations of one level-generic trait ([`paging`]); and everything that touches hardware
//! goes through the [`Platform`] trait. No crate above knows which machine it runs on.
//!
//! # Modules, lowest first
//!
//! - `named_enum`: enums whose variants have names.
//! - `addr`: byte addresses and ranges of them.
//! - `cpu`: CPU numbers and sets of CPUs.
//! - `order`: block orders: a block of order `n` is `2^n` naturally aligned base pages.
//! - `order_set`: sets of orders.
//! - `pfn`: page-frame numbers and ranges of them.
//! - `paging`: page-table formats behind one level-generic trait.
//! - `access`: accesses to memory, and permissions.
//! - `ram_claim`: who has a machine's RAM.
//! - `platform`: the interface to hardware: everything that touches a machine goes through [`Platform`], and
//!   nothing else does.
//! - `prefetch`: prefetching cache lines.
//! - `zeros`: whether memory is zeros.
//! - `part_of`: types that are one duty of a larger whole.

#![no_std]

#[cfg(test)]
extern crate std;

pub mod access;
pub mod addr;
pub mod cpu;
mod named_enum;
pub mod order;
mod order_set;
pub mod paging;
mod part_of;
pub mod pfn;
pub mod platform;
pub mod prefetch;
pub mod ram_claim;
mod zeros;

pub use access::Access;
pub use addr::{PAGE_SHIFT, PAGE_SIZE, PhysAddr, VirtAddr, VirtRange};
pub use cpu::{CpuId, CpuMask, MAX_CPUS, MAX_NODES, NodeId};
pub use order::Order;
pub use order_set::OrderSet;
pub use paging::{Entry, Leaf, LeafFlags, Level, PagingFormat, SwapEntry};
pub use pfn::{Pfn, PfnRange};
pub use platform::{Asid, CachedTranslation, Execution, LockClass, Pin, Platform, TlbFlush};
pub use prefetch::prefetch;
pub use ram_claim::RamClaim;
pub use zeros::{ZEROS_BLOCK, are_zeros};
