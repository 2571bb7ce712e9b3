//! A machine in a process: RAM, vCPUs with a software MMU and a TLB each, shootdowns, parking, time.
//!
//! [`HostPlatform`] is the [`Platform`](quire_arch::Platform) that a memory manager runs on. A [`Vcpu`]
//! handle makes the calling thread one of the machine's CPUs; a [`Program`] on it reads and writes memory
//! through the page tables that the memory manager built, takes page faults into a [`ProgramSpace`], and is
//! stopped by shootdowns as a real CPU is. A thread that is no vCPU may call the memory manager too: it
//! borrows a free vCPU for each pinned section.
//!
//! # Modules, lowest first
//!
//! - `threads`: threads and locks of the host.
//! - `available`: how much memory the host has.
//! - `config`, `zeroing`: the configuration of a machine; zeroing that bypasses the caches.
//! - `arena`: the RAM.
//! - `written`: which frames programs wrote to, where there are no bytes.
//! - `wait`, `give_way`, `lock_order`: how threads wait, yield at random, and take locks in order.
//! - `counters`: per-CPU counters.
//! - `door`: the state word and the mailbox of a vCPU: who may touch its TLB.
//! - `tlb`, `walk`: the TLB of a vCPU, and walks of the tables.
//! - `paranoid`: finding translations that should have been flushed.
//! - `cpu`: vCPUs, and which of them a thread is.
//! - `parking`: sleeping on a key.
//! - `machine`: what all handles of a machine share.
//! - `shootdown`: the protocol by which flushes reach a vCPU, and why it is right.
//! - `mmu`: translation, and program data.
//! - `program`: programs in guest mode.
//! - `platform`: the machine as the memory manager sees it, and the handles of its vCPUs.
//! - `memory`: a machine with its memory manager.
//! - `instances`: what is compiled here once for all tests and tools.
//! - `swap`: devices that keep pages on the host.

mod arena;
mod available;
mod config;
mod counters;
mod cpu;
mod door;
mod give_way;
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
#[doc(hidden)]
pub mod instances;
mod lock_order;
mod machine;
#[cfg(not(loom))]
mod memory;
mod mmu;
pub mod paranoid;
mod parking;
mod platform;
mod program;
pub mod shootdown;
#[cfg(not(loom))]
pub mod swap;
mod threads;
mod tlb;
mod wait;
mod walk;
mod written;
mod zeroing;

pub use available::host_memory_available;
pub use config::{Contents, HostConfig, HostError};
pub use counters::HostCounters;
pub use give_way::give_way;
pub use machine::{FrameQuery, MachineId};
#[cfg(not(loom))]
pub use memory::{Finding, Machine, MachineError};
pub use paranoid::{StaleHit, Staleness};
pub use platform::{HostPlatform, Vcpu, VcpuError};
pub use program::{AccessError, Guest, Program, ProgramSpace, STUCK_AFTER, Translation};
