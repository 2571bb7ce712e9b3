//! The trees that VMAs lie in.
//!
//! Both are generic over their members. The range tree allocates nodes from a store of its owner; the
//! interval tree has its links in its members.
//!
//! # Modules, lowest first
//!
//! - `intervals`: an intrusive interval tree: which members hold an offset.
//! - `tree`: the tree of an address space's VMAs: a B+tree over disjoint address ranges, in memory.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

pub mod intervals;
pub mod tree;
