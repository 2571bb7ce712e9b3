//! A machine in a process: RAM, vCPUs with a software MMU and a TLB each, shootdowns, parking, time.
//!
//! [`HostPlatform`] is the [`Platform`](quire_arch::Platform) that a memory manager runs on. A [`Vcpu`]
//! handle makes the calling thread one of the machine's CPUs; a [`Program`] on it reads and writes memory
//! through the page tables that the memory manager built, takes page faults into a [`ProgramSpace`], and is
//! stopped by shootdowns as a real CPU is. A thread that is no vCPU may call the memory manager too: it
//! borrows a free vCPU for each pinned section.
//!
//! - `arena`: the RAM. `cpu`: vCPUs and which of them a thread is. `mmu`: TLB, walks, program data.
//! - [`shootdown`]: the protocol by which flushes reach a vCPU, and why it is right.
//! - `swap`: devices that keep pages on the host.
//! - [`paranoid`]: finding translations that should have been flushed.

mod arena;
mod config;
mod counters;
mod cpu;
mod give_way;
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
mod vcpu;
mod wait;
mod zeroing;

pub use config::{HostConfig, HostError};
pub use counters::HostCounters;
pub use give_way::give_way;
pub use machine::FrameQuery;
#[cfg(not(loom))]
pub use memory::{Finding, Machine, MachineError};
pub use paranoid::{StaleHit, Staleness};
pub use platform::HostPlatform;
pub use program::{AccessError, Guest, Program, ProgramSpace, STUCK_AFTER, Translation};
pub use vcpu::{Vcpu, VcpuError};
