//! The trees that VMAs lie in.
//!
//! Modules, neither of which uses the other:
//!
//! - `tree`: the VMAs of an address space by their addresses; looked up without a lock by page faults.
//! - `intervals`: the VMAs of an anon_vma by their page offsets; walked by the rmap.
//!
//! Both are generic over what lies in them. The first allocates nodes from a store of its owner; the second
//! has its links in its members.

#![no_std]

#[cfg(any(test, loom))]
extern crate std;

pub mod intervals;
pub mod tree;
